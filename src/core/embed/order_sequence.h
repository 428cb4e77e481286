// Orders of partitions in a buffer as sequences of swaps, for the searches that find them
// (embed/orders/best.py).
#pragma once
#include <cstdint>
#include <vector>

namespace outcrop {

struct Swap {
  uint16_t slot = 0, partition = 0;  // which slot of the buffer takes which partition
};

// The first `slots` partitions are there at the beginning.
struct SwapSequence {
  unsigned partitions = 0, slots = 0;
  std::vector<Swap> swaps;
};

}  // namespace outcrop
