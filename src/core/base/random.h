// Keyed, counter-based random numbers, by the header that kernels use too (kernels/random.h): a stream is the
// same on CPU and GPU.
#pragma once
#include <array>
#include <cstdint>

#include "kernels/random.h"

namespace outcrop {

using kernels::RandomStream;

inline uint64_t mix64(uint64_t x) { return kernels::mix64(x); }

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  const auto [words] =
      kernels::philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  return {words[0], words[1], words[2], words[3]};
}

}  // namespace outcrop
