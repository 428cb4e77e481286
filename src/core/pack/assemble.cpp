#include "pack/assemble.h"

#include <cstring>
#include <string>

#include "base/error.h"

namespace outcrop {

void expand_rows(std::byte* x, size_t n, size_t row_bytes, std::span<const int64_t> cached) {
  if (cached.size() > n) throw Error(ErrorKind::format, "a mini-batch has more cached rows than rows");
  size_t from = cached.size(), to = 0;  // packed rows start after as many rows as are cached
  for (size_t k = 0; k <= cached.size() && from != to; ++k) {
    // A run of packed rows up to the next cached position.
    const size_t end = k < cached.size() ? static_cast<size_t>(cached[k]) : n;
    if (end < to || end > n)
      throw Error(ErrorKind::format, "the address table of a mini-batch does not rise within it");
    std::memmove(x + to * row_bytes, x + from * row_bytes, (end - to) * row_bytes);
    from += end - to;
    to = end + 1;  // skips the cached row itself
    if (k < cached.size() && from == to) break;
  }
}

void fill_rows(std::byte* x, size_t n, size_t row_bytes, std::span<const int32_t> positions,
               std::span<const int32_t> rows, const std::byte* table, size_t table_rows, size_t stride) {
  constexpr size_t kAhead = 8;
  if (positions.size() != rows.size())
    throw Error(ErrorKind::argument, "positions and rows differ in length");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) __builtin_prefetch(table + static_cast<size_t>(rows[i + kAhead]) * stride);
    const auto at = static_cast<size_t>(positions[i]), row = static_cast<size_t>(rows[i]);
    if (positions[i] < 0 || at >= n || rows[i] < 0 || row >= table_rows)
      throw Error(ErrorKind::format, "the address table of a mini-batch points at row " +
                                         std::to_string(rows[i]) + " of a cache of " +
                                         std::to_string(table_rows));
    std::memcpy(x + at * row_bytes, table + row * stride, row_bytes);
  }
}

}  // namespace outcrop
