// Keyed, counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as easy
// as 1, 2, 3"). A stream is a pure function of its key, so results do not depend on threads, machine or
// order.
#pragma once
#include <array>
#include <cstdint>

namespace outcrop {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// splitmix64 finaliser: mixes key parts into one word.
inline uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Stream of 32-bit words for (key, id): counter = (block, 0, id low, id high).
class RandomStream {
 public:
  RandomStream(uint64_t key, uint64_t id)
      : key_{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
        id_{static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32)} {}

  uint32_t next32() {
    if (used_ == 4) {
      words_ = philox4x32({block_++, 0, id_[0], id_[1]}, key_);
      used_ = 0;
    }
    return words_[used_++];
  }
  uint64_t next64() {
    const uint64_t high = next32();
    return high << 32 | next32();
  }
  // Exactly uniform in [0, n), n >= 1 (Lemire 2019, multiply and reject).
  uint64_t below(uint64_t n) {
    if (n <= UINT32_MAX) {
      const auto bound = static_cast<uint32_t>(n);
      uint64_t m = uint64_t{next32()} * bound;
      if (static_cast<uint32_t>(m) < bound) {
        const uint32_t threshold = (0u - bound) % bound;
        while (static_cast<uint32_t>(m) < threshold) m = uint64_t{next32()} * bound;
      }
      return m >> 32;
    }
    uint64_t limit = UINT64_MAX - UINT64_MAX % n, x;
    do x = next64();
    while (x >= limit);
    return x % n;
  }
  // Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next64() >> 11) * 0x1.0p-53; }

 private:
  std::array<uint32_t, 2> key_, id_;
  std::array<uint32_t, 4> words_{};
  uint32_t block_ = 0;
  unsigned used_ = 4;
};

}  // namespace outcrop
