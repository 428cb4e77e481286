// Rows of a file, asked for and waited for separately: submit() returns at once, wait() comes when the rows
// are needed. Between the two the caller does other work, and the disk has the requests of all jobs, so that
// it never runs dry between one mini-batch, or one hop of it, and the next (Hyperion, section III-A).
//
// One thread drives: it cuts the jobs, in the order in which they were submitted, into windows of page reads
// that fit a part of the scratch memory, keeps all parts under way, and copies the rows of the oldest window
// to their places. Each page that a job needs is read once. A job that fails does not touch the others.
// Whoever drops a job waits until nothing writes to its memory any more.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/budget.h"
#include "io/block_io.h"
#include "io/coalesce.h"

namespace outcrop {

class RowJob {
 public:
  virtual ~RowJob() = default;     // waits until the output is left alone; throws nothing
  virtual void wait() = 0;         // until the rows are there; throws Error(io), each time, if a read failed
  virtual bool ready() const = 0;  // wait() would not wait
};

class RowStream {
 public:
  // Rows as RowReader has them. scratch_bytes: all that the stream holds, tag "row-scratch"; at least
  // min_scratch_bytes(row_bytes). Throws Error(io) if the file is too small for num_rows.
  RowStream(std::shared_ptr<BlockIo> io, Budget& budget, FileId file, const RowLayout& layout,
            uint64_t num_rows, uint64_t scratch_bytes);
  ~RowStream();  // jobs that are not done fail
  static uint64_t min_scratch_bytes(uint64_t row_bytes);

  // out[positions[i]] = file_rows[ids[i]], i < n; row r of `out`, which has out_rows, starts at r *
  // out_stride. Ids must not fall. All four arrays must live as long as the job. Throws Error(argument) for
  // ids that fall or are no rows, and for positions outside of `out`, before anything is read.
  std::unique_ptr<RowJob> submit(const int64_t* ids, const int32_t* positions, size_t n, std::byte* out,
                                 size_t out_rows, uint64_t out_stride);
  // As RowReader has it. Before anything is submitted.
  void check_pages(const uint32_t* crcs, size_t n, std::string remedy);
  const RowLayout& layout() const;
  uint64_t num_rows() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace outcrop
