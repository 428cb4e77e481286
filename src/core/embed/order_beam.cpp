#include "embed/order_beam.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "embed/order_random.h"

namespace outcrop {
namespace {

using Set = uint64_t;  // of partitions
constexpr unsigned kTriesPerKept = 8;

Set one(unsigned partition) { return Set{1} << partition; }
unsigned count(Set s) { return static_cast<unsigned>(std::popcount(s)); }
unsigned take(Set& s) {
  const auto first = static_cast<unsigned>(std::countr_zero(s));
  s &= s - 1;
  return first;
}

struct Node {
  std::array<Set, kMaxBeamPartitions> lacks;  // by partition: those that it has not met
  // Of three slots two stay, and their two buckets hide two swaps: by partition, with whom it stayed once,
  // twice.
  std::array<Set, kMaxBeamPartitions> stayed_once{}, stayed_twice{};
  std::array<uint8_t, kMaxBeamSlots> held;  // by slot
  unsigned last_slot = kMaxBeamSlots;       // just filled
  unsigned left = 0, waste = 0;             // pairs not met; pairs that loads could have met
  unsigned bare = 0;                        // swaps that may have nothing to hide them
  uint32_t step = 0;                        // the last swap, in Search::steps_
};

struct Step {
  uint32_t before = 0;
  Swap swap;
};

struct Move {
  double cost;
  uint32_t parent;
  Swap swap;
};

class Search {
 public:
  Search(unsigned partitions, unsigned slots, unsigned width, uint64_t seed)
      : p_(partitions), c_(slots), width_(width), random_(seed) {
    for (auto& key : keys_) key = random_.next();
  }

  // False if it would take `limit` swaps or more.
  bool run(size_t limit, std::vector<Swap>& swaps) {
    nodes_.assign(1, first());
    steps_.assign(1, {});
    for (size_t length = 0; nodes_[0].left; ++length) {
      if (length + 1 >= limit) return false;
      advance();
      const auto done = std::find_if(nodes_.begin(), nodes_.end(), [](const Node& n) { return !n.left; });
      if (done != nodes_.end()) std::swap(*done, nodes_[0]);
    }
    swaps.clear();
    for (uint32_t at = nodes_[0].step; at; at = steps_[at].before) swaps.push_back(steps_[at].swap);
    std::reverse(swaps.begin(), swaps.end());
    return true;
  }

 private:
  Node first() const {
    Node n;
    n.lacks.fill(0);
    const Set all = p_ == 64 ? ~Set{0} : one(p_) - 1;
    for (unsigned i = 0; i < p_; ++i) n.lacks[i] = all & ~(i < c_ ? one(c_) - 1 : one(i));
    for (unsigned s = 0; s < c_; ++s) n.held[s] = static_cast<uint8_t>(s);
    n.left = p_ * (p_ - 1) / 2 - c_ * (c_ - 1) / 2;
    return n;
  }

  Set resident(const Node& n) const {
    Set s = 0;
    for (unsigned slot = 0; slot < c_; ++slot) s |= one(n.held[slot]);
    return s;
  }

  template <class F>
  void each_move(const Node& n, F visit) const {
    const Set there = resident(n);
    for (unsigned slot = 0; slot < c_; ++slot) {
      if (slot == n.last_slot) continue;
      const Set stay = there & ~one(n.held[slot]);
      for (unsigned load = 0; load < p_; ++load)
        if (!(there & one(load)))
          visit(Swap{static_cast<uint16_t>(slot), static_cast<uint16_t>(load)}, count(n.lacks[load] & stay));
    }
  }

  Node after(const Node& n, Swap swap) const {
    Node next = n;
    if (c_ == 3) stay(next, next.held[(swap.slot + 1) % 3], next.held[(swap.slot + 2) % 3]);
    next.held[swap.slot] = static_cast<uint8_t>(swap.partition);
    next.last_slot = swap.slot;
    Set met = next.lacks[swap.partition] & resident(next);
    next.left -= count(met);
    next.waste += c_ - 1 - count(met);
    next.lacks[swap.partition] &= ~met;
    while (met) next.lacks[take(met)] &= ~one(swap.partition);
    return next;
  }

  static void stay(Node& n, unsigned a, unsigned b) {
    if (n.stayed_twice[a] & one(b)) {
      ++n.bare;
    } else if (n.stayed_once[a] & one(b)) {
      n.stayed_twice[a] |= one(b), n.stayed_twice[b] |= one(a);
    } else {
      n.stayed_once[a] |= one(b), n.stayed_once[b] |= one(a);
    }
  }

  void advance() {
    std::vector<Move> moves;
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      unsigned most = 0;
      each_move(nodes_[i], [&](Swap, unsigned meets) { most = std::max(most, meets); });
      each_move(nodes_[i], [&](Swap swap, unsigned meets) {
        const bool worth =
            meets == most || (meets && meets + 1 == most && (c_ > 3 || random_.below(16) == 0));
        if (worth) moves.push_back({nodes_[i].waste - 2.0 * meets + 0.9 * random_.unit(), i, swap});
      });
    }
    keep_best(moves, size_t{width_} * kTriesPerKept, [](const Move& m) { return m.cost; });

    std::vector<std::pair<double, Node>> made;
    std::unordered_set<uint64_t> seen;
    for (const Move& move : moves) {
      Node n = after(nodes_[move.parent], move.swap);
      if (!seen.insert(fingerprint(n)).second) continue;
      n.step = static_cast<uint32_t>(steps_.size());
      steps_.push_back({nodes_[move.parent].step, move.swap});
      made.emplace_back(outlook(n), n);
    }
    keep_best(made, width_, [](const auto& m) { return m.first; });
    nodes_.clear();
    for (auto& [cost, node] : made) nodes_.push_back(node);
  }

  template <class T, class Cost>
  static void keep_best(std::vector<T>& all, size_t most, Cost cost) {
    if (all.size() <= most) return;
    std::nth_element(all.begin(), all.begin() + static_cast<int64_t>(most), all.end(),
                     [&](const T& a, const T& b) { return cost(a) < cost(b); });
    all.resize(most);
  }

  // Less is better. The weights were found by trying.
  double outlook(const Node& n) {
    constexpr double kTooFew = 5, kApart = 20, kNotFull = 5, kSpread = 2, kChoice = 0.3, kChance = 3,
                     kBare = 5;
    const Set there = resident(n);
    Set active = 0;
    unsigned too_few = 0;
    double concentration = 0;
    for (unsigned i = 0; i < p_; ++i) {
      const unsigned lacks = count(n.lacks[i]);
      if (lacks) active |= one(i);
      concentration += lacks * (lacks - 1.0) / 2;
      if (lacks && lacks < c_ - 1 && !(there & one(i))) too_few += c_ - 1 - lacks;
    }
    unsigned apart = 0;
    Set rest = active & ~reached(n, there & active);
    for (; rest; ++apart) rest &= ~reached(n, rest & -rest);
    unsigned most = 0, choices = 0;
    each_move(n, [&](Swap, unsigned meets) {
      if (meets > most) most = meets, choices = 0;
      choices += meets == most;
    });
    const unsigned missing = n.left ? std::min(c_ - 1, n.left) - std::min(most, n.left) : 0;
    return 10.0 * n.waste + kBare * n.bare + kTooFew * too_few + kApart * apart + kNotFull * missing -
           kSpread * concentration / p_ - kChoice * std::min(choices, 4u) + kChance * random_.unit();
  }

  Set reached(const Node& n, Set from) const {
    Set seen = 0;
    while (from) {
      seen |= from;
      Set next = 0;
      for (Set s = from; s;) next |= n.lacks[take(s)];
      from = next & ~seen;
    }
    return seen;
  }

  uint64_t fingerprint(const Node& n) const {
    uint64_t hash = 0;
    for (unsigned i = 0; i < p_; ++i) hash += (2 * n.lacks[i] + 1) * keys_[i];
    for (unsigned slot = 0; slot < c_; ++slot)
      hash += keys_[64 + n.held[slot]] * (slot == n.last_slot ? 3 : 1);
    return hash;
  }

  const unsigned p_, c_, width_;
  Random random_;
  std::array<uint64_t, 128> keys_;
  std::vector<Node> nodes_;
  std::vector<Step> steps_;  // [0] is none
};

}  // namespace

SwapSequence beam_search(unsigned partitions, unsigned slots, unsigned width, unsigned runs, uint64_t least,
                         uint64_t seed) {
  if (slots < 2 || slots > std::min(kMaxBeamSlots, partitions) || partitions > kMaxBeamPartitions || !width ||
      !runs)
    throw Error(ErrorKind::argument, "a beam of " + std::to_string(width) + " cannot search an order of " +
                                         std::to_string(partitions) + " partitions in " +
                                         std::to_string(slots) + " slots");
  Search search(partitions, slots, width, seed);
  SwapSequence best{partitions, slots, {}};
  size_t limit = SIZE_MAX;
  for (unsigned run = 0; run < runs && limit > least; ++run)
    if (search.run(limit, best.swaps)) limit = best.swaps.size();
  return best;
}

}  // namespace outcrop
