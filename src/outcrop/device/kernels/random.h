// Keyed, counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as easy
// as 1, 2, 3"). A stream is a pure function of its key, so results depend neither on threads nor on the machine, and
// are the same on a GPU: core and kernels use this header (core by base/random.h).
#pragma once
#include "kernels/portable.h"

namespace outcrop::kernels {

struct PhiloxBlock {
  uint32 words[4];
};

OUTCROP_DEVICE PhiloxBlock philox4x32(PhiloxBlock counter, uint32 key0, uint32 key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64 a = uint64{0xD2511F53u} * counter.words[0], b = uint64{0xCD9E8D57u} * counter.words[2];
    counter = {{static_cast<uint32>(b >> 32) ^ counter.words[1] ^ key0, static_cast<uint32>(b),
                static_cast<uint32>(a >> 32) ^ counter.words[3] ^ key1, static_cast<uint32>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// splitmix64 finaliser: mixes key parts into one word.
OUTCROP_DEVICE uint64 mix64(uint64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Stream of 32-bit words for (key, id): counter = (block, 0, id low, id high).
class RandomStream {
 public:
  OUTCROP_DEVICE RandomStream(uint64 key, uint64 id)
      : key_{static_cast<uint32>(key), static_cast<uint32>(key >> 32)},
        id_{static_cast<uint32>(id), static_cast<uint32>(id >> 32)} {}

  OUTCROP_DEVICE uint32 next32() {
    if (used_ == 4) {
      block_ = philox4x32({{next_++, 0, id_[0], id_[1]}}, key_[0], key_[1]);
      used_ = 0;
    }
    return block_.words[used_++];
  }
  OUTCROP_DEVICE uint64 next64() {
    const uint64 high = next32();
    return high << 32 | next32();
  }
  // Exactly uniform in [0, n), n >= 1 (Lemire 2019, multiply and reject).
  OUTCROP_DEVICE uint64 below(uint64 n) {
    if (n <= 0xFFFFFFFFu) {
      const auto bound = static_cast<uint32>(n);
      uint64 m = uint64{next32()} * bound;
      if (static_cast<uint32>(m) < bound) {
        const uint32 threshold = (0u - bound) % bound;
        while (static_cast<uint32>(m) < threshold) m = uint64{next32()} * bound;
      }
      return m >> 32;
    }
    const uint64 limit = ~uint64{0} - ~uint64{0} % n;
    uint64 x;
    do x = next64();
    while (x >= limit);
    return x % n;
  }
  // Uniform in [0, 1), 53 bits.
  OUTCROP_DEVICE double uniform() { return static_cast<double>(next64() >> 11) * 0x1.0p-53; }

 private:
  uint32 key_[2], id_[2];
  PhiloxBlock block_{};
  uint32 next_ = 0, used_ = 4;
};

}  // namespace outcrop::kernels
