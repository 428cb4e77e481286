// Searching orders of partitions (core/embed/order_*).
#include <nanobind/stl/pair.h>

#include <utility>
#include <vector>

#include "bindings.h"
#include "embed/order_beam.h"
#include "embed/order_exact.h"

namespace outcrop {
namespace {

using Pairs = std::vector<std::pair<uint16_t, uint16_t>>;

Pairs to_pairs(const SwapSequence& sequence) {
  Pairs out;
  for (const Swap& swap : sequence.swaps) out.emplace_back(swap.slot, swap.partition);
  return out;
}

Pairs searched(unsigned partitions, unsigned slots, unsigned width, unsigned runs, uint64_t least,
               uint64_t seed) {
  SwapSequence found;
  {
    nb::gil_scoped_release release;
    found = beam_search(partitions, slots, width, runs, least, seed);
  }
  return to_pairs(found);
}

Pairs exact(unsigned slots, unsigned turns, unsigned orbits, bool fixed, uint64_t swaps,
            uint64_t nodes_per_try, unsigned tries, uint64_t seed) {
  SwapSequence found;
  {
    nb::gil_scoped_release release;
    found = exact_search({turns, orbits, fixed, slots, swaps, nodes_per_try, tries, seed});
  }
  return to_pairs(found);
}

}  // namespace

void bind_embed_orders(nb::module_& m) {
  m.attr("MAX_BEAM_PARTITIONS") = kMaxBeamPartitions;
  m.attr("MAX_BEAM_SLOTS") = kMaxBeamSlots;
  m.def("search_order", &searched, "partitions"_a, "slots"_a, "width"_a, "runs"_a, "least"_a, "seed"_a,
        "Swaps (slot, partition) that bring all pairs together: the fewest that `runs` beam searches find; "
        "they stop at `least`. The first `slots` partitions are resident at first.");
  m.def("exact_order", &exact, "slots"_a, "turns"_a, "orbits"_a, "fixed"_a, "swaps"_a, "nodes_per_try"_a,
        "tries"_a, "seed"_a,
        "Swaps (slot, partition) that bring each pair together once, the same again under each of `turns` "
        "rotations; with one turn `swaps` of them, as few of which as possible meet less. Empty where none "
        "are found.");
}

}  // namespace outcrop
