// Finds orders of partitions in a buffer (embed/orders/best.py) by beam search.
//
// State by state the most promising orders so far are kept, `width` of them. Less promising is, in this
// sequence, one that has wasted more (a load that meets fewer than slots - 1 new partitions wastes the
// difference), or that will: partitions that lack too few others to be loaded without waste, groups that have
// nothing left in common with what is resident, a next load that cannot be full. Of equal ones, orders are
// better that leave few partitions with much to do rather than many with little.
#pragma once
#include <cstdint>

#include "embed/order_sequence.h"

namespace outcrop {

constexpr unsigned kMaxBeamPartitions = 64, kMaxBeamSlots = 16;

// An order that covers all pairs and never evicts what was just loaded; the shortest of `runs` searches,
// which stop early at `least` swaps. partitions <= kMaxBeamPartitions, slots <= kMaxBeamSlots. The same for
// the same arguments.
SwapSequence beam_search(unsigned partitions, unsigned slots, unsigned width, unsigned runs, uint64_t least,
                         uint64_t seed);

}  // namespace outcrop
