// From packed rows to the rows of a batch, in place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/parallel.h"

namespace outcrop {

// The packed rows of a batch were read to the end of `x` (n rows of row_bytes). Moves each to its place, so
// that row i of x is a packed row unless i is in `cached` (ascending local positions), whose rows are left to
// be filled. In place and forwards: the j-th packed row lies at n - packed + j, never before its place.
// Blocks of rows are moved in parallel; a block waits for the earlier ones that are still to be read from
// where it writes. With `sum` returns the CRC-32C of the packed rows as they were read, computed while they
// are in the cache; else 0.
uint32_t expand_rows(WorkerPool& workers, std::byte* x, size_t n, size_t row_bytes,
                     std::span<const int64_t> cached, bool sum);

// x[positions[i]] = table[rows[i]] for rows of row_bytes; the table's rows lie `stride` bytes apart. Checks
// ranges.
void fill_rows(std::byte* x, size_t n, size_t row_bytes, std::span<const int32_t> positions,
               std::span<const int32_t> rows, const std::byte* table, size_t table_rows, size_t stride);

}  // namespace outcrop
