// Exponentials of many floats, for softmaxes. To be called from functions compiled for every instruction set.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "base/simd.h"

namespace outcrop {

// Sums that run beside each other: their number decides the result, not the machine.
constexpr size_t kSumLanes = 16;

// exp(x) for x <= 0 to two units in the last place, NaN for NaN, 0 below -87.
OUTCROP_INLINE float exp_of_negative(float x) {
  constexpr float kLeast = -87.0f, kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float y = x < kLeast ? kLeast : x;
  const float shifted = y * 1.44269504089f + kRound;
  const float n = shifted - kRound;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;  // y - n log 2, in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto exponent = std::bit_cast<uint32_t>(shifted) << 23;  // n in its lowest bits; the rest falls out
  const float value = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
  return x < kLeast ? 0.0f : value;
}

// The largest of `least` and k floats; NaN counts for nothing.
OUTCROP_INLINE float largest_of(const float* x, size_t k, float least) {
  // Compilers do not find the maximum of plain lanes.
  using Lanes = float __attribute__((vector_size(kSumLanes * sizeof(float))));
  Lanes lanes = Lanes{} + least, some;
  size_t j = 0;
  for (; j + kSumLanes <= k; j += kSumLanes) {
    std::memcpy(&some, x + j, sizeof some);
    lanes = lanes < some ? some : lanes;
  }
  for (size_t lane = 0; lane < kSumLanes; ++lane) least = least < lanes[lane] ? lanes[lane] : least;
  for (; j < k; ++j) least = least < x[j] ? x[j] : least;
  return least;
}

// x[j] = exp(x[j] - shift); their sum.
OUTCROP_INLINE float exponentials(float* x, size_t k, float shift) {
  float lanes[kSumLanes] = {};
  size_t j = 0;
  for (; j + kSumLanes <= k; j += kSumLanes)
    for (size_t lane = 0; lane < kSumLanes; ++lane) {
      x[j + lane] = exp_of_negative(x[j + lane] - shift);
      lanes[lane] += x[j + lane];
    }
  for (; j < k; ++j) {
    x[j] = exp_of_negative(x[j] - shift);
    lanes[0] += x[j];
  }
  return std::accumulate(lanes, lanes + kSumLanes, 0.0f);
}

}  // namespace outcrop
