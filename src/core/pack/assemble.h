// From packed rows to the rows of a batch, in place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace outcrop {

// The packed rows of a batch were read to the end of `x` (n rows of row_bytes). Moves each to its place, so
// that row i of x is a packed row unless i is in `cached` (ascending local positions), whose rows are left to
// be filled. Works forwards: the j-th packed row lies at n - packed + j, never before its place.
void expand_rows(std::byte* x, size_t n, size_t row_bytes, std::span<const int64_t> cached);

// x[positions[i]] = table[rows[i]] for rows of row_bytes; the table's rows lie `stride` bytes apart. Checks
// ranges.
void fill_rows(std::byte* x, size_t n, size_t row_bytes, std::span<const int32_t> positions,
               std::span<const int32_t> rows, const std::byte* table, size_t table_rows, size_t stride);

}  // namespace outcrop
