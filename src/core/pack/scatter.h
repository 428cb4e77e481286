// Batched packing (DiskGNN section 5.2): one chunk of the feature file at a time, every mini-batch takes the
// rows that it wants from the chunk and appends them to its own record.
//
// A stream is one hop of one batch: its node ids, ascending, lie in a file; the part of them that falls in
// the current chunk is known. Rows are gathered into large write buffers; reading ids, gathering and writing
// overlap.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "io/block_io.h"

namespace outcrop {

// Parallel arrays, one entry per stream.
struct PackStreams {
  size_t count = 0;
  const int64_t* ids_offset = nullptr;  // bytes in the ids file, of the ids that fall in this chunk
  const int64_t* ids_count = nullptr;
  const int64_t* out_offset = nullptr;  // where the first of their rows goes
  uint32_t* crc = nullptr;              // CRC-32C of what was appended so far; moved on
};

struct FeatureChunk {
  const std::byte* data = nullptr;
  int64_t first_row = 0, rows = 0;
};

class Scatter {
 public:
  Scatter(std::shared_ptr<BlockIo> io, Budget& budget, size_t row_bytes, size_t stride, unsigned id_bytes,
          size_t ids_buffer_bytes, size_t out_buffer_bytes);
  // Throws Error(format) where a stream's ids leave the chunk or do not rise.
  void run(const FeatureChunk& chunk, FileId ids_file, FileId out_file, const PackStreams& streams);

 private:
  struct Output {
    Buffer buffer;
    size_t used = 0;
    std::vector<IoRequest> requests;
    std::shared_ptr<IoJob> job;
  };
  size_t group_end(const PackStreams& streams, size_t begin) const;
  void read_ids(FileId file, const PackStreams& streams, size_t begin, size_t end, unsigned which);
  template <class Id>
  void append(const FeatureChunk& chunk, FileId out_file, const Id* ids, int64_t count, int64_t& out_offset,
              uint32_t& crc);
  void close_segment(FileId out_file, size_t segment_begin, int64_t& out_offset, uint32_t& crc);
  void flush();

  std::shared_ptr<BlockIo> io_;
  size_t row_bytes_, stride_;
  unsigned id_bytes_;
  Buffer ids_[2];
  std::shared_ptr<IoJob> ids_job_[2];
  Output out_[2];
  unsigned current_ = 0;
};

}  // namespace outcrop
