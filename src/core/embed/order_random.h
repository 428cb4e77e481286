// The random numbers of the searches for orders: SplitMix64 (Steele, Lea, Flood 2014).
#pragma once
#include <cstdint>
#include <utility>

#include "base/random.h"

namespace outcrop {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() { return mix64(std::exchange(state_, state_ + 0x9E3779B97F4A7C15u)); }
  unsigned below(uint64_t n) { return static_cast<unsigned>(((next() >> 32) * n) >> 32); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

}  // namespace outcrop
