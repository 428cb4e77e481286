#include "embed/product.h"

#include <cstring>

#include "base/simd.h"

namespace outcrop {
namespace {

using Lanes = float __attribute__((vector_size(kLaneFloats * sizeof(float))));

template <int kRows, int kColumns>
OUTCROP_INLINE void tile(const float* a, size_t row, size_t step, const float* b, size_t width, size_t terms,
                         float* out, bool add) {
  Lanes sums[kRows][kColumns];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c)
      if (add) {
        std::memcpy(&sums[r][c], out + r * width + c * kLaneFloats, sizeof(Lanes));
      } else {
        sums[r][c] = Lanes{};
      }
  for (size_t t = 0; t < terms; ++t) {
    Lanes right[kColumns];
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) std::memcpy(&right[c], b + t * width + c * kLaneFloats, sizeof(Lanes));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * row + t * step];
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) sums[r][c] += x * right[c];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c)
      std::memcpy(out + r * width + c * kLaneFloats, &sums[r][c], sizeof(Lanes));
}

// Columns stay, rows go by: a part of the right matrix is read from the nearest cache by all of them.
template <int kColumns>
OUTCROP_INLINE void columns(const LeftMatrix& left, const RightMatrix& right, size_t terms,
                            const ProductMatrix& out, bool add, size_t column) {
  constexpr int kRows = 6;
  const float* b = right.data + column * kLaneFloats;
  float* to = out.data + column * kLaneFloats;
  size_t i = 0;
  for (; i + kRows <= left.rows; i += kRows)
    tile<kRows, kColumns>(left.data + i * left.row, left.row, left.step, b, right.width, terms,
                          to + i * out.width, add);
  for (; i + 2 <= left.rows; i += 2)
    tile<2, kColumns>(left.data + i * left.row, left.row, left.step, b, right.width, terms,
                      to + i * out.width, add);
  for (; i < left.rows; ++i)
    tile<1, kColumns>(left.data + i * left.row, left.row, left.step, b, right.width, terms,
                      to + i * out.width, add);
}

template <int kMost>
OUTCROP_INLINE void product(const LeftMatrix& left, const RightMatrix& right, size_t terms,
                            const ProductMatrix& out, bool add) {
  const size_t all = right.width / kLaneFloats, parts = (all + kMost - 1) / kMost;
  for (size_t part = 0; part < parts; ++part) {  // as many lanes each, or one more
    const size_t first = all * part / parts, count = all * (part + 1) / parts - first;
    if (count == 1) columns<1>(left, right, terms, out, add, first);
    if constexpr (kMost > 1) {
      if (count == 2) columns<2>(left, right, terms, out, add, first);
      if (count == 3) columns<3>(left, right, terms, out, add, first);
      if (count == 4) columns<4>(left, right, terms, out, add, first);
    }
  }
}

using Multiply = void(const LeftMatrix&, const RightMatrix&, size_t, const ProductMatrix&, bool);

// 6 rows of 4 x 16 floats are 24 of 32 registers of AVX-512, 6 rows of 16 are 12 of 16 of AVX2.
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("arch=x86-64-v4"))) void multiply_v4(const LeftMatrix& left, const RightMatrix& right,
                                                           size_t terms, const ProductMatrix& out, bool add) {
  product<4>(left, right, terms, out, add);
}

__attribute__((target("arch=x86-64-v3"))) void multiply_v3(const LeftMatrix& left, const RightMatrix& right,
                                                           size_t terms, const ProductMatrix& out, bool add) {
  product<1>(left, right, terms, out, add);
}
#endif

void multiply_any(const LeftMatrix& left, const RightMatrix& right, size_t terms, const ProductMatrix& out,
                  bool add) {
  product<1>(left, right, terms, out, add);
}

Multiply* best() {
#if defined(__x86_64__) && defined(__GNUC__)
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return multiply_v4;
  if (v3) return multiply_v3;
#endif
  return multiply_any;
}

}  // namespace

void multiply(const LeftMatrix& left, const RightMatrix& right, size_t terms, const ProductMatrix& out,
              bool add) {
  static Multiply* const chosen = best();
  chosen(left, right, terms, out, add);
}

}  // namespace outcrop
