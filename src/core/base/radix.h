// Stable LSD radix sort of 64-bit keys by a range of their bits.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace outcrop {

// Sorts keys by bits [low_bit, high_bit). Equals std::stable_sort on (key >> low_bit) & mask. `scratch` is
// resized.
inline void radix_sort(std::vector<uint64_t>& keys, std::vector<uint64_t>& scratch, unsigned low_bit,
                       unsigned high_bit) {
  constexpr unsigned kBits = 11;
  constexpr size_t kBuckets = size_t{1} << kBits;
  scratch.resize(keys.size());
  for (unsigned bit = low_bit; bit < high_bit; bit += kBits) {
    const unsigned width = std::min(kBits, high_bit - bit);
    const uint64_t mask = (uint64_t{1} << width) - 1;
    std::array<uint32_t, kBuckets> start{};
    for (uint64_t key : keys) ++start[key >> bit & mask];
    uint32_t sum = 0;
    for (auto& s : start) sum += std::exchange(s, sum);
    for (uint64_t key : keys) scratch[start[key >> bit & mask]++] = key;
    keys.swap(scratch);
  }
}

}  // namespace outcrop
