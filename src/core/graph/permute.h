// Puts the rows of a source in another order, out of core: row i of the result is row numbers[i] of the source.
//
// The numbers are sorted back to positions: of each row of the source, where it goes. Then rows are added in the order of
// the source. Where the result fits into memory, they are put there; else each is appended to the bucket of its position,
// a range of positions that fits, in a nameless scratch file, with its place in the range in front. At last the buckets
// are read, put in order in memory and written, one after the other. So each row is written and read twice at the
// most, in pieces of `memory / buckets` bytes, and everything held is within the memory that was given.
//
// Protocol: add() all rows of the source, in pieces of any size, then finish() once.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/parallel.h"
#include "graph/array_file.h"
#include "graph/external_sort.h"
#include "graph/temp_file.h"
#include "io/block_io.h"

namespace outcrop {

struct PermuteOptions {
  std::string scratch_folder;
  std::string numbers_path;  // an array file of int64, of which
  uint64_t first = 0;        // those from here on
  uint64_t count = 0;        // are those of this result
  uint64_t num_rows = 0;     // of the source
  uint64_t row_bytes = 0;
  uint64_t slots = 1;         // how often the result has a row of the source, at the most
  uint64_t memory_bytes = 0;  // all that is held
  WorkerPool* workers = nullptr;
};

struct PermuteStats {
  uint64_t buckets = 0;  // 1: nothing was written but the result
  SortStats sort;        // of the numbers
};

class RowPermuter {
 public:
  static constexpr uint64_t kTagBytes = 4;  // in front of a row in a bucket: its place there
  // Bytes with which `count` rows can be put in order: buckets have write buffers of a page at least.
  static uint64_t least_memory(uint64_t count, uint64_t row_bytes);
  // Bytes with which no bucket is written, and more than which are of no use.
  static uint64_t most_memory(uint64_t count, uint64_t row_bytes);

  // Reads and sorts the numbers. Throws Error(budget) for less than least_memory, Error(format) for numbers that are
  // no rows of the source or stand there more often than `slots`.
  RowPermuter(std::shared_ptr<BlockIo> io, Budget& budget, PermuteOptions options);
  // The next n rows of the source. Throws Error(argument) for more than num_rows.
  void add(const std::byte* rows, size_t n);
  // Writes the array file, and beside it the checksums of its pages. Throws Error(argument) where rows are missing.
  ArrayFile finish(const std::string& path);
  const PermuteStats& stats() const { return stats_; }
  uint64_t row_bytes() const { return options_.row_bytes; }

 private:
  struct Wanted {
    static constexpr unsigned kKeyWords = 1;
    uint64_t number = 0, position = 0;
    uint64_t word(unsigned) const { return number; }
  };
  struct Bucket {
    uint64_t written = 0;  // bytes in the scratch file
    size_t filled = 0;     // of its write buffer
  };
  class Slots;

  static uint64_t block_bytes(uint64_t memory_bytes);
  static uint64_t piece_bytes(uint64_t memory_bytes, uint64_t row_bytes);
  static uint64_t area_bytes(uint64_t memory_bytes, uint64_t row_bytes);
  static bool suffices(uint64_t memory_bytes, uint64_t count, uint64_t row_bytes);
  void sort_numbers();
  void read_numbers(ExternalSorter<Wanted>& sorter);
  void make_room();
  void place(uint64_t position, const std::byte* row);
  void append(size_t bucket, const std::byte* data, size_t bytes);
  void flush(size_t bucket);
  void order(size_t bucket, size_t rows, std::byte* piece);
  uint64_t rows_of(uint64_t bucket) const {
    return std::min(bucket_rows_, options_.count - bucket * bucket_rows_);
  }
  uint64_t record_bytes() const { return kTagBytes + options_.row_bytes; }

  std::shared_ptr<BlockIo> io_;
  PermuteOptions options_;
  Reservation reservation_;         // of the memory
  std::shared_ptr<Budget> within_;  // divides it
  std::unique_ptr<TempFile> positions_, buckets_file_;
  uint64_t added_ = 0, bucket_rows_ = 0;
  size_t buffer_bytes_ = 0;  // of a bucket
  std::vector<Bucket> buckets_;
  Buffer block_, area_;  // positions of added rows; the result, buckets' buffers, or a bucket
  PermuteStats stats_;
};

}  // namespace outcrop
