#include "graph/permute.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace outcrop {
namespace {

constexpr uint64_t kLeastBytes = 256 << 10;  // sorting and four blocks
constexpr uint64_t kLeastBlock = 16 << 10, kMostBlock = 1 << 20;
constexpr uint64_t kMostBucketRows = uint64_t{1} << 32;  // places in a bucket have 32 bits
constexpr int64_t kNowhere = -1;

uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

Error damaged() { return {ErrorKind::format, "a scratch file was damaged: import again"}; }

}  // namespace

uint64_t RowPermuter::block_bytes(uint64_t memory_bytes) {
  return std::clamp(align_down(memory_bytes / 16, 2 * kPageBytes), kLeastBlock, kMostBlock);
}

uint64_t RowPermuter::piece_bytes(uint64_t memory_bytes, uint64_t row_bytes) {
  return align_up(std::max(block_bytes(memory_bytes), kTagBytes + row_bytes), kPageBytes);
}

// Beside the area there are, at the most, a block, a piece of a bucket and what writes the result.
uint64_t RowPermuter::area_bytes(uint64_t memory_bytes, uint64_t row_bytes) {
  const uint64_t beside = 2 * block_bytes(memory_bytes) + piece_bytes(memory_bytes, row_bytes);
  return memory_bytes > beside ? align_down(memory_bytes - beside, kPageBytes) : 0;
}

bool RowPermuter::suffices(uint64_t memory_bytes, uint64_t count, uint64_t row_bytes) {
  const uint64_t area = area_bytes(memory_bytes, row_bytes), rows = area / row_bytes;
  return rows > 0 && (count <= rows || ceil_div(count, rows) <= area / kPageBytes);
}

// Where blocks grow, at multiples of 128 KiB, the area shrinks a little. Those are tried before what lies between them,
// so that with any more memory than what is found the rows can be put in order, too.
uint64_t RowPermuter::least_memory(uint64_t count, uint64_t row_bytes) {
  row_bytes = std::max<uint64_t>(row_bytes, 1);
  uint64_t low = kLeastBytes / kPageBytes, high = low;
  while (!suffices(high * kPageBytes, count, row_bytes)) low = std::exchange(high, 2 * high);
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (suffices(middle * kPageBytes, count, row_bytes))
      high = middle;
    else
      low = middle + 1;
  }
  return high * kPageBytes;
}

uint64_t RowPermuter::most_memory(uint64_t count, uint64_t row_bytes) {
  const uint64_t sorting = 2 * sizeof(Wanted) * count, placing = count * row_bytes;
  const uint64_t blocks = 3 * kMostBlock + align_up(kTagBytes + row_bytes, kPageBytes);
  return align_up(std::max(sorting, placing) + blocks, kPageBytes);
}

// Writes, of each row of the source in turn, the positions that want it, and fills up to `slots` of them.
class RowPermuter::Slots {
 public:
  Slots(BlockIo& io, FileId file, Buffer buffer, const PermuteOptions& options)
      : io_(io), file_(file), buffer_(std::move(buffer)), options_(options) {}

  void add(const Wanted& wanted) {
    while (row_ < wanted.number) end_row();
    if (used_ == options_.slots)
      throw Error(ErrorKind::format, "row " + std::to_string(row_) + " is wanted more than " +
                                         std::to_string(options_.slots) + " times");
    push(static_cast<int64_t>(wanted.position));
    ++used_;
  }
  void finish() {
    while (row_ < options_.num_rows) end_row();
    flush();
  }

 private:
  void end_row() {
    for (; used_ < options_.slots; ++used_) push(kNowhere);
    used_ = 0;
    ++row_;
  }
  void push(int64_t position) {
    if (filled_ == buffer_.size() / sizeof(int64_t)) flush();
    buffer_.as<int64_t>()[filled_++] = position;
  }
  void flush() {
    const uint64_t bytes = filled_ * sizeof(int64_t);
    if (bytes) io_.write(file_, written_, buffer_.data(), bytes);
    written_ += bytes;
    filled_ = 0;
  }

  BlockIo& io_;
  FileId file_;
  Buffer buffer_;
  const PermuteOptions& options_;
  uint64_t row_ = 0, used_ = 0, written_ = 0;
  size_t filled_ = 0;
};

RowPermuter::RowPermuter(std::shared_ptr<BlockIo> io, Budget& budget, PermuteOptions options)
    : io_(std::move(io)), options_(std::move(options)) {
  if (options_.row_bytes == 0 || options_.slots == 0)
    throw Error(ErrorKind::argument, "rows without bytes, or wanted never, cannot be put in order");
  if (options_.slots > kLeastBlock / sizeof(int64_t))
    throw Error(ErrorKind::argument, "a row may be wanted " + std::to_string(kLeastBlock / sizeof(int64_t)) +
                                         " times at the most, not " + std::to_string(options_.slots));
  const uint64_t least = least_memory(options_.count, options_.row_bytes);
  if (options_.memory_bytes < least)
    throw Error(ErrorKind::budget, "putting " + std::to_string(options_.count) + " rows of " +
                                       std::to_string(options_.row_bytes) + " bytes in order needs " +
                                       least_bytes(least) + " of memory, " +
                                       exact_bytes(options_.memory_bytes) +
                                       " were given: raise the memory budget");
  reservation_ = budget.reserve("edge-rows", options_.memory_bytes);
  within_ = Budget::create(options_.memory_bytes);
  sort_numbers();
  make_room();
}

void RowPermuter::sort_numbers() {
  const uint64_t block = block_bytes(options_.memory_bytes);
  positions_ = std::make_unique<TempFile>(io_, options_.scratch_folder);
  ExternalSorter<Wanted> sorter(
      io_, *within_,
      SortOptions{options_.scratch_folder,
                  std::min(options_.memory_bytes - 2 * block,
                           std::max(ExternalSorter<Wanted>::kMinMemoryBytes,
                                    align_up(2 * sizeof(Wanted) * options_.count, kPageBytes))),
                  options_.workers});
  read_numbers(sorter);
  Slots slots(*io_, positions_->id(), Buffer(*within_, "positions", block), options_);
  sorter.finish([&](const Wanted* wanted, size_t n) {
    for (size_t i = 0; i < n; ++i) slots.add(wanted[i]);
  });
  slots.finish();
  stats_.sort = sorter.stats();
}

void RowPermuter::read_numbers(ExternalSorter<Wanted>& sorter) {
  const Buffer block(*within_, "numbers", block_bytes(options_.memory_bytes));
  const uint64_t most = block.size() / sizeof(int64_t);
  // Not past the page cache: numbers of an edge type may begin anywhere in a page.
  const FileId file = io_->open(options_.numbers_path, OpenMode::update);
  const std::unique_ptr<void, std::function<void(void*)>> closing(
      this, [io = io_, file](void*) { io->close(file); });
  for (uint64_t at = 0; at < options_.count;) {
    const uint64_t n = std::min(most, options_.count - at);
    io_->read(file, (options_.first + at) * sizeof(int64_t), block.data(), n * sizeof(int64_t));
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t number = block.as<uint64_t>()[i];
      if (number >= options_.num_rows)
        throw Error(ErrorKind::format, options_.numbers_path + " names row " +
                                           std::to_string(static_cast<int64_t>(number)) + ", there are " +
                                           std::to_string(options_.num_rows));
      sorter.push({number, at + i});
    }
    at += n;
  }
}

void RowPermuter::make_room() {
  const uint64_t area = area_bytes(options_.memory_bytes, options_.row_bytes), bytes = options_.row_bytes;
  block_ = Buffer(*within_, "positions", block_bytes(options_.memory_bytes));
  bucket_rows_ = std::min(area / bytes, kMostBucketRows);
  stats_.buckets = std::max<uint64_t>(ceil_div(options_.count, bucket_rows_), 1);
  if (stats_.buckets == 1) {
    area_ = Buffer(*within_, "rows", options_.count * bytes);
    return;
  }
  area_ = Buffer(*within_, "rows", area);
  buckets_.resize(stats_.buckets);
  buffer_bytes_ = std::min(align_down(area / stats_.buckets, kPageBytes), uint64_t{8} << 20);
  buckets_file_ = std::make_unique<TempFile>(io_, options_.scratch_folder);
}

void RowPermuter::add(const std::byte* rows, size_t n) {
  if (n > options_.num_rows - added_)
    throw Error(ErrorKind::argument,
                "rows beyond the " + std::to_string(options_.num_rows) + " that there are were added");
  const uint64_t slots = options_.slots, at_once = block_.size() / (slots * sizeof(int64_t));
  const auto* positions = block_.as<int64_t>();
  for (size_t begin = 0; begin < n;) {
    const uint64_t count = std::min<uint64_t>(at_once, n - begin);
    io_->read(positions_->id(), added_ * slots * sizeof(int64_t), block_.data(),
              count * slots * sizeof(int64_t));
    for (uint64_t i = 0; i < count; ++i)
      for (uint64_t s = 0; s < slots; ++s) {
        const int64_t position = positions[i * slots + s];
        if (position == kNowhere) break;
        if (static_cast<uint64_t>(position) >= options_.count) throw damaged();
        place(static_cast<uint64_t>(position), rows + (begin + i) * options_.row_bytes);
      }
    begin += count, added_ += count;
  }
}

void RowPermuter::place(uint64_t position, const std::byte* row) {
  if (buckets_.empty()) {
    std::memcpy(area_.data() + position * options_.row_bytes, row, options_.row_bytes);
    return;
  }
  const uint64_t bucket = position / bucket_rows_;
  const auto tag = static_cast<uint32_t>(position % bucket_rows_);
  append(bucket, reinterpret_cast<const std::byte*>(&tag), kTagBytes);
  append(bucket, row, options_.row_bytes);
}

void RowPermuter::append(size_t bucket, const std::byte* data, size_t bytes) {
  Bucket& into = buckets_[bucket];
  std::byte* buffer = area_.data() + bucket * buffer_bytes_;
  while (bytes > 0) {
    const size_t n = std::min(bytes, buffer_bytes_ - into.filled);
    std::memcpy(buffer + into.filled, data, n);
    into.filled += n, data += n, bytes -= n;
    if (into.filled == buffer_bytes_) flush(bucket);
  }
}

void RowPermuter::flush(size_t bucket) {
  Bucket& of = buckets_[bucket];
  if (of.filled == 0) return;
  io_->write(buckets_file_->id(), bucket * bucket_rows_ * record_bytes() + of.written,
             area_.data() + bucket * buffer_bytes_, of.filled);
  of.written += of.filled;
  of.filled = 0;
}

// Reads a bucket and puts its rows where they belong.
void RowPermuter::order(size_t bucket, size_t rows, std::byte* piece) {
  const uint64_t record = record_bytes(), bytes = options_.row_bytes;
  const uint64_t at_once = piece_bytes(options_.memory_bytes, bytes) / record;
  uint64_t at = bucket * bucket_rows_ * record;
  for (size_t left = rows; left > 0;) {
    const uint64_t n = std::min<uint64_t>(left, at_once);
    io_->read(buckets_file_->id(), at, piece, n * record);
    for (uint64_t i = 0; i < n; ++i) {
      uint32_t place = 0;
      std::memcpy(&place, piece + i * record, kTagBytes);
      if (place >= rows) throw damaged();
      std::memcpy(area_.data() + place * bytes, piece + i * record + kTagBytes, bytes);
    }
    at += n * record, left -= n;
  }
}

ArrayFile RowPermuter::finish(const std::string& path) {
  if (added_ != options_.num_rows)
    throw Error(ErrorKind::argument,
                std::to_string(added_) + " rows were added of " + std::to_string(options_.num_rows));
  for (size_t b = 0; b < buckets_.size(); ++b) flush(b);
  block_ = Buffer();
  positions_.reset();
  Buffer piece;
  if (!buckets_.empty())
    piece = Buffer(*within_, "piece", piece_bytes(options_.memory_bytes, options_.row_bytes));
  ArrayFileWriter out(io_, *within_, path, block_bytes(options_.memory_bytes), true);
  for (uint64_t b = 0; b < stats_.buckets; ++b) {
    const uint64_t rows = rows_of(b);
    if (!buckets_.empty()) order(b, rows, piece.data());
    out.append(area_.data(), rows * options_.row_bytes);
  }
  return out.finish();
}

}  // namespace outcrop
