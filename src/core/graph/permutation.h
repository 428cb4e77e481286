// A keyed random bijection of [0, n) that needs no memory: a Feistel network over the next power of two,
// walked until the value falls inside (Black and Rogaway, CT-RSA 2002, "Ciphers with arbitrary finite
// domains", cycle walking).
#pragma once
#include <bit>
#include <cstdint>

#include "base/random.h"

namespace outcrop {

class Permutation {
 public:
  Permutation(uint64_t key, uint64_t n) : n_(n) {
    const unsigned bits = n > 1 ? std::bit_width(n - 1) : 1;
    high_bits_ = bits / 2;
    low_bits_ = bits - high_bits_;
    for (unsigned r = 0; r < kRounds; ++r) keys_[r] = mix64(key + mix64(r + 1));
  }
  uint64_t size() const { return n_; }
  uint64_t forward(uint64_t x) const {
    do x = encrypt(x);
    while (x >= n_);
    return x;
  }
  uint64_t inverse(uint64_t x) const {
    do x = decrypt(x);
    while (x >= n_);
    return x;
  }

 private:
  static constexpr unsigned kRounds = 6;  // even: both halves are changed equally often
  static uint64_t low_mask(unsigned bits) { return (uint64_t{1} << bits) - 1; }
  uint64_t round(unsigned r, uint64_t half) const { return mix64(half ^ keys_[r]) >> 17; }
  uint64_t encrypt(uint64_t x) const {
    uint64_t low = x & low_mask(low_bits_), high = x >> low_bits_;
    for (unsigned r = 0; r < kRounds; r += 2) {
      high ^= round(r, low) & low_mask(high_bits_);
      low ^= round(r + 1, high) & low_mask(low_bits_);
    }
    return high << low_bits_ | low;
  }
  uint64_t decrypt(uint64_t x) const {
    uint64_t low = x & low_mask(low_bits_), high = x >> low_bits_;
    for (unsigned r = kRounds; r > 0; r -= 2) {
      low ^= round(r - 1, high) & low_mask(low_bits_);
      high ^= round(r - 2, low) & low_mask(high_bits_);
    }
    return high << low_bits_ | low;
  }

  uint64_t n_, keys_[kRounds];
  unsigned high_bits_, low_bits_;
};

}  // namespace outcrop
