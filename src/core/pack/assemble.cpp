#include "pack/assemble.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"

namespace outcrop {

namespace {

constexpr size_t kBlockBytes = 240 << 10;  // of packed rows: summed and moved while in the L2 cache

// A block of packed rows [first, last) in batch order, and how many cached rows come before its first row.
struct Block {
  size_t first, last, cached_before;
};

void check_rising(std::span<const int64_t> cached, size_t n) {
  int64_t before = -1;
  for (int64_t c : cached) {
    if (c <= before || static_cast<size_t>(c) >= n)
      throw Error(ErrorKind::format, "the address table of a mini-batch does not rise within it");
    before = c;
  }
}

std::vector<Block> cut(std::span<const int64_t> cached, size_t packed, size_t rows_per_block) {
  std::vector<Block> blocks;
  size_t k = 0;
  for (size_t first = 0; first < packed; first += rows_per_block) {
    while (k < cached.size() && static_cast<size_t>(cached[k]) <= first + k) ++k;
    blocks.push_back({first, std::min(packed, first + rows_per_block), k});
  }
  return blocks;
}

void move_block(std::byte* x, size_t row_bytes, std::span<const int64_t> cached, const Block& block) {
  size_t from = block.first + cached.size(), k = block.cached_before, to = block.first + k;
  for (size_t left = block.last - block.first; left && from != to;) {
    const size_t run = k < cached.size() ? std::min(left, static_cast<size_t>(cached[k]) - to) : left;
    std::memmove(x + to * row_bytes, x + from * row_bytes, run * row_bytes);
    from += run;
    to += run;
    left -= run;
    while (k < cached.size() && static_cast<size_t>(cached[k]) == to) ++k, ++to;
  }
}

}  // namespace

uint32_t expand_rows(WorkerPool& workers, std::byte* x, size_t n, size_t row_bytes,
                     std::span<const int64_t> cached, bool sum) {
  check_rising(cached, n);
  const size_t packed = n - cached.size();
  const size_t rows_per_block = std::max<size_t>(kBlockBytes / std::max<size_t>(row_bytes, 1), 1);
  const std::vector<Block> blocks = cut(cached, packed, rows_per_block);
  std::vector<uint32_t> sums(blocks.size());
  std::vector<std::atomic<bool>> done(blocks.size());
  // Tasks start in order, so the blocks that one waits for are under way or done: nobody waits in a circle.
  workers.run(blocks.size(), [&](size_t b, unsigned) {
    const Block& block = blocks[b];
    const std::byte* source = x + (block.first + cached.size()) * row_bytes;
    if (sum) sums[b] = crc32c(source, (block.last - block.first) * row_bytes);
    // Packed row j is read from row j + cached.size(), and this block writes rows [write_begin, write_end).
    const size_t write_begin = block.first + block.cached_before;
    const size_t write_end =
        block.last + (b + 1 < blocks.size() ? blocks[b + 1].cached_before : cached.size());
    for (size_t other = b; other-- > 0;) {
      if (blocks[other].last + cached.size() <= write_begin) break;
      if (blocks[other].first + cached.size() < write_end)
        while (!done[other].load(std::memory_order_acquire)) std::this_thread::yield();
    }
    move_block(x, row_bytes, cached, block);
    done[b].store(true, std::memory_order_release);
  });
  uint32_t crc = 0;
  for (size_t b = 0; sum && b < blocks.size(); ++b)
    crc = crc32c_combine(crc, sums[b], (blocks[b].last - blocks[b].first) * row_bytes);
  return crc;
}

void fill_rows(std::byte* x, size_t n, size_t row_bytes, std::span<const int32_t> positions,
               std::span<const int32_t> rows, const std::byte* table, size_t table_rows, size_t stride) {
  constexpr size_t kAhead = 8;
  if (positions.size() != rows.size())
    throw Error(ErrorKind::argument, "positions and rows differ in length");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) {
      const auto ahead = static_cast<size_t>(rows[i + kAhead]);
      if (ahead < table_rows) __builtin_prefetch(table + ahead * stride);
    }
    const auto at = static_cast<size_t>(positions[i]), row = static_cast<size_t>(rows[i]);
    if (positions[i] < 0 || at >= n || rows[i] < 0 || row >= table_rows)
      throw Error(ErrorKind::format, "the address table of a mini-batch points at row " +
                                         std::to_string(rows[i]) + " of a cache of " +
                                         std::to_string(table_rows));
    std::memcpy(x + at * row_bytes, table + row * stride, row_bytes);
  }
}

}  // namespace outcrop
