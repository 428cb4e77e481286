// Batched packing (DiskGNN section 5.2): one chunk of the feature file at a time, every mini-batch takes the
// rows that it wants from the chunk and appends them to its own record.
//
// A stream is one hop of one batch: its node ids, ascending, lie in a file; the part of them that falls in
// the current chunk is known. Rows are gathered into large write buffers; reading ids, gathering and writing
// overlap.
//
// A stream may have a tail: memory for what is not written yet. Then whole pages alone are written, each once, and
// past the page cache, which would copy them, hold them until they are on disk, read those again that it had no room
// for, and make everything else wait where memory is limited. Only the first and the last page of a stream, which its
// neighbours share, go through it. Without a tail what a stream takes of a chunk is written at once, through the cache.
//
// Streams that follow one another may share a place: what they take of a chunk is then appended to it one after another,
// in few large writes, and has to be put in order later.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "io/block_io.h"

namespace outcrop {

// Parallel arrays, one entry per stream; and one per place, which is a stream's own unless `shared` is there.
struct PackStreams {
  size_t count = 0;
  const int64_t* ids_offset = nullptr;  // bytes in the ids file, of the ids that fall in this chunk
  const int64_t* ids_count = nullptr;
  uint32_t* crc = nullptr;  // CRC-32C of what was appended so far; moved on
  size_t places = 0;
  const int64_t* shared = nullptr;      // [places + 1]: streams shared[p] to shared[p + 1] append to place p
  const int64_t* out_offset = nullptr;  // where the first of their rows goes
  size_t tail_bytes = 0;                // of each place's tail, at least a page; 0: there are none
  std::byte* tails = nullptr;           // the bytes from written[p] to out_offset[p], at p * tail_bytes
  int64_t* written = nullptr;           // where what was given to the disk ends; moved on
};

struct FeatureChunk {
  const std::byte* data = nullptr;
  int64_t first_row = 0, rows = 0;
};

class Scatter {
 public:
  Scatter(std::shared_ptr<BlockIo> io, Budget& budget, size_t row_bytes, size_t stride, unsigned id_bytes,
          size_t ids_buffer_bytes, size_t out_buffer_bytes);
  // out_pages: the output file opened for whole pages; only places with tails use it.
  // Throws Error(format) where a stream's ids leave the chunk or do not rise.
  void run(const FeatureChunk& chunk, FileId ids_file, FileId out_file, FileId out_pages,
           const PackStreams& streams);
  // Writes the tails, which stay, or reads them; out_offset is where they end.
  void write_tails(FileId out_file, const PackStreams& streams) {
    move_tails(IoOp::write, out_file, streams);
  }
  void read_tails(FileId out_file, const PackStreams& streams) { move_tails(IoOp::read, out_file, streams); }

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
  void move_tails(IoOp op, FileId out_file, const PackStreams& streams);
  struct Place {
    FileId file, pages;
    int64_t offset;
    std::byte* tail;  // null: there is none
    size_t tail_bytes;
    int64_t* written;
  };
  // What streams that follow one another take of a chunk; take() copies the next rows.
  template <class Id>
  struct Wanted {
    const FeatureChunk& chunk;
    const Id* ids;
    const int64_t* counts;  // of the stream that is taken from, and of those behind it
    uint32_t* crcs;
    int64_t left;       // rows, of all of them
    int64_t taken = 0;  // of the stream that is taken from
    int64_t last = -1;
  };
  template <class Id>
  void take(Wanted<Id>& wanted, int64_t rows, std::byte* out) const;
  template <class Id>
  void append(Wanted<Id> wanted, Place place);
  template <class Id>
  void append_to_tail(Wanted<Id> wanted, Place place);
  int64_t room(size_t used) const {
    return static_cast<int64_t>((out_[current_].buffer.size() - used) / row_bytes_);
  }
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
