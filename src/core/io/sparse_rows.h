// Rows of features that are mostly zeros: which values a row stores, and how the row comes back, bit for bit.
//
// Values are bits of 1, 2, 4 or 8 bytes, whatever type they are of; all that is not 0 in every bit is stored, so -0.0 and
// NaN come back as they were. A row on disk has a fixed width: the number of its stored values, then as many columns as
// any row stores at the most (ascending; those left over are 0), then as many values (likewise), or none where all
// stored values have the same bits, which are kept once beside the rows. The number and the columns are unsigned, of the
// fewest bytes (1, 2 or 4) that hold the number of columns; everything is little-endian and nothing is aligned.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/parallel.h"

namespace outcrop {

struct SparseShape {
  size_t columns = 0;              // below 2^32
  size_t stored = 0;               // values of a row at the most, from 1 to columns
  unsigned value_bytes = 4;        // 1, 2, 4 or 8
  std::optional<uint64_t> common;  // the bits of every stored value; none: rows have their values

  unsigned column_bytes() const { return columns < 1U << 8 ? 1 : columns < 1U << 16 ? 2 : 4; }
  size_t row_bytes() const {
    return column_bytes() * (1 + stored) + (common.has_value() ? 0 : value_bytes * stored);
  }
};

struct StoredValues {
  size_t most = 0;              // of a row
  uint64_t least = UINT64_MAX;  // bits of one, as unsigned numbers; above `largest`: there is none
  uint64_t largest = 0;
};

// Counts the values of n rows that would be stored; values: [n][columns].
StoredValues count_stored(const std::byte* values, size_t n, size_t columns, unsigned value_bytes);

// Writes n rows to `out`, [n][row_bytes]; values: [n][columns]. Returns the first row that `shape` has no room for: it
// stores more values, or others than the common one; n where there is none.
size_t pack_sparse_rows(const SparseShape& shape, const std::byte* values, size_t n, std::byte* out);

// Writes the values of n rows to `out`, [n][columns]. Returns the first row that no import writes, as files have them that
// were changed by hand: it stores more values than there can be, or its columns do not rise or are none; n where
// there is none. Such a row comes back as zeros.
size_t unpack_sparse_rows(WorkerPool& workers, const SparseShape& shape, const std::byte* rows, size_t n,
                          std::byte* out);

}  // namespace outcrop
