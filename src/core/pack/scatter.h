// Batched packing (DiskGNN section 5.2): one chunk of the feature file at a time, every mini-batch takes the
// rows that it wants from the chunk and appends them to its own record.
//
// A stream is one hop of one batch: its node ids, ascending, lie in a file; the part of them that falls in
// the current chunk is known. Rows are gathered into large write buffers; reading ids, gathering and writing
// overlap.
//
// What a stream takes of a chunk is written in one piece. Of large pieces the whole pages go past the page cache,
// which would copy them, hold them until they are on disk, and make everything else wait where memory is limited;
// pieces of pages at both ends go through it, since the piece before or behind has the rest of the page.
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
  // out_pages: the output file opened for whole pages, or out_file itself where nothing goes past the page cache.
  // Throws Error(format) where a stream's ids leave the chunk or do not rise.
  void run(const FeatureChunk& chunk, FileId ids_file, FileId out_file, FileId out_pages,
           const PackStreams& streams);

 private:
  struct Output {
    Buffer buffer;
    size_t used = 0;
    std::vector<IoRequest> requests, pages;
    std::shared_ptr<IoJob> job, pages_job;
    void wait();
  };
  size_t group_end(const PackStreams& streams, size_t begin) const;
  void read_ids(FileId file, const PackStreams& streams, size_t begin, size_t end, unsigned which);
  // Where one stream writes.
  struct Place {
    FileId file, pages;
    int64_t offset;
    uint32_t& crc;
    bool direct;  // its whole pages go to `pages`
  };
  template <class Id>
  void append(const FeatureChunk& chunk, const Id* ids, int64_t count, Place place);
  size_t begin_segment(const Place& place);
  void close_segment(size_t segment_begin, Place& place);
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
