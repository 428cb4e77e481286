// Products of small matrices of floats in tiles of registers. Each element of a product is the sum of its terms in
// their order, whatever the tile: instruction sets with fused multiply-add give the same bits.
#pragma once
#include <cstddef>

namespace outcrop {

constexpr size_t kLaneFloats = 16;
constexpr size_t padded(size_t floats) { return (floats + kLaneFloats - 1) / kLaneFloats * kLaneFloats; }

// Element (i, t) is data[i * row + t * step].
struct LeftMatrix {
  const float* data = nullptr;
  size_t row = 0, step = 1, rows = 0;
};

// Rows of `width` floats, a multiple of kLaneFloats, one after the other.
struct RightMatrix {
  const float* data = nullptr;
  size_t width = 0;
};

struct ProductMatrix {
  float* data = nullptr;
  size_t width = 0;  // that of the right one
};

// out = left right, or out += left right; `terms` are the columns of left and rows of right.
void multiply(const LeftMatrix& left, const RightMatrix& right, size_t terms, const ProductMatrix& out,
              bool add);

}  // namespace outcrop
