// Rows of features in few bits: how values become codes, and codes values.
//
// A code is a whole number from 0 to 255 (8 bits) or 15 (4 bits). Its value is scale * code + offset, computed in double
// and rounded to float once. The product is exact in double (a code has 8 bits, a scale 24), so fused and separate
// operations give the same bits on every processor.
//
// A row on disk: where scales are of rows, 4 bytes scale and 4 bytes offset, float, little-endian; then the codes, a byte
// each, or two of 4 bits in a byte, the first in its low half. A half that is left over is 0.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/parallel.h"

namespace outcrop {

struct QuantisedShape {
  size_t columns = 0;
  unsigned bits = 8;    // of a code: 8 or 4
  bool by_row = false;  // each row has its scale and offset; else each column

  unsigned most() const { return (1U << bits) - 1; }  // the largest code
  size_t head_bytes() const { return by_row ? 2 * sizeof(float) : 0; }
  size_t row_bytes() const { return head_bytes() + (bits == 8 ? columns : (columns + 1) / 2); }
};

// Scales and offsets of columns, [columns] each; both null where rows have their own.
struct ColumnScales {
  const float* scale = nullptr;
  const float* offset = nullptr;
};

struct Scale {
  float scale, offset;
};

// The scale of values from `least` to `most`, both finite: 0 where they are equal, so that every code is that value; else
// the float nearest to (most - least) / largest code, or the one above where that is subnormal, or the one below where
// the largest code would be infinite.
Scale scale_of(float least, float most, unsigned largest_code);

// least[j] = min(least[j], values[:, j].min()), and likewise `most`. values: [n][columns].
void widen_ranges(const float* values, size_t n, size_t columns, float* least, float* most);

// Writes n rows to `out`; values: [n][columns], finite. Rounds to the nearest code, ties to even.
void quantise_rows(const QuantisedShape& shape, const float* values, size_t n, const ColumnScales& columns,
                   std::byte* out);

// Writes the values of n rows to `out`, [n][columns]. Returns the first row whose own scale and offset give a value that is
// not finite, as files have them that were changed by hand; n where there is none, or rows have no scale of their own.
size_t dequantise_rows(WorkerPool& workers, const QuantisedShape& shape, const std::byte* rows, size_t n,
                       const ColumnScales& columns, float* out);

}  // namespace outcrop
