// Rows by id: from a file through the I/O engine, or from memory.
//
// RowReader reads in windows that fit its scratch memory. The scratch has two sides; while the rows of one
// window are copied out, the next window is being read into the other side. Ids are taken in groups of
// group_rows(); with merging a group is sorted, and each page that it needs is read exactly once, however
// many windows it takes. All memory is reserved when the reader is made. One thread at a time reads; others
// wait for their turn. row_stream.h is the split form.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/budget.h"
#include "base/parallel.h"
#include "io/block_io.h"
#include "io/coalesce.h"

namespace outcrop {

class RowReader {
 public:
  // Rows base + id * stride, row_bytes each, ids below num_rows, of a file that stays open as long as the
  // reader. scratch_bytes: all that the reader holds, tag "row-scratch"; at least
  // min_scratch_bytes(row_bytes). Throws Error(io) if the file is too small for num_rows.
  RowReader(std::shared_ptr<BlockIo> io, Budget& budget, FileId file, const RowLayout& layout,
            uint64_t num_rows, uint64_t scratch_bytes, bool merge);
  ~RowReader();
  static uint64_t min_scratch_bytes(uint64_t row_bytes);

  // out[i] = file_rows[ids[i]], i < n; row i of `out` starts at i * out_stride. Throws Error(argument) for an
  // id outside [0, num_rows) before anything is read.
  void read_rows(const int64_t* ids, size_t n, std::byte* out, uint64_t out_stride);
  // out[positions[i]] = file_rows[ids[i]] for ids that do not fall: each page that they need is read exactly
  // once, whatever the scratch. Positions must be below out_rows. Throws Error(format) where they are not, or
  // ids fall or leave the file: both come from an address table on disk.
  void read_sorted(const int32_t* ids, const int32_t* positions, size_t n, std::byte* out, size_t out_rows,
                   uint64_t out_stride);
  // From now on every page of the file is compared with its CRC-32C when it is first read, and a difference
  // is Error(checksum) that ends with `remedy`; `crcs` has one for each page that rows lie on, and must live
  // as long as the reader. Throws Error(format) if there are fewer. Before anything is read.
  void check_pages(const uint32_t* crcs, size_t n, std::string remedy);
  // Bytes that read_rows(ids) reads, exactly.
  uint64_t count_read_bytes(const int64_t* ids, size_t n) const;

  const RowLayout& layout() const;
  uint64_t num_rows() const;
  size_t group_rows() const;

  struct State;

 private:
  const std::shared_ptr<State> state_;
};

// Rows in memory: out[i] = table[ids[i]], in parallel. Throws Error(argument) for an id outside [0, num_rows)
// before anything is written. `out` and `table` must not overlap.
struct RowTable {
  const std::byte* data = nullptr;
  uint64_t num_rows = 0, stride = 0, row_bytes = 0;
};
void gather_rows(WorkerPool& workers, const RowTable& table, const int64_t* ids, size_t n, std::byte* out,
                 uint64_t out_stride);

// Throws Error(argument) naming the first id outside [0, num_rows).
void check_ids(const int64_t* ids, size_t n, uint64_t num_rows);

}  // namespace outcrop
