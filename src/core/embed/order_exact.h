// Finds orders of partitions in a buffer without any waste (embed/orders/best.py), by depth-first search.
//
// Partitions are grouped into orbits of `turns` under a rotation: partition o * turns + i goes to o * turns +
// (i + k) % turns; one more may stay where it is. A block is a sequence of swaps after which the buffer holds
// what it held at first, rotated; repeating it `turns` times, rotated further each time, is an order. Each
// load of the block meets slots - 1 partitions, all pairs met differ by more than a rotation, and all kinds
// of pairs are met: so each pair is, exactly once. `turns` must be odd, so that no rotation of a pair is the
// pair itself.
//
// With one turn there is nothing to repeat: the block is the order. Loads may then waste (meet fewer than
// slots - 1 partitions that they have not met) as much as the length leaves room for.
#pragma once
#include <cstdint>

#include "embed/order_sequence.h"

namespace outcrop {

struct ExactOptions {
  unsigned turns = 1;
  unsigned orbits = 0;  // partitions = turns * orbits + (fixed ? 1 : 0)
  bool fixed = false;
  unsigned slots = 0;
  uint64_t swaps = 0;          // of the whole order; turns > 1: ignored, it follows
  uint64_t nodes_per_try = 0;  // of the search, then it begins anew with other choices
  unsigned tries = 0;
  uint64_t seed = 0;
};

// The whole order; no swaps where none was found. The same for the same arguments.
SwapSequence exact_search(const ExactOptions& options);

}  // namespace outcrop
