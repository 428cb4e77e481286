#include "embed/order_exact.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "embed/order_random.h"

namespace outcrop {
namespace {

class Search {
 public:
  explicit Search(const ExactOptions& o)
      : o_(o), p_(o.turns * o.orbits + o.fixed), c_(o.slots), random_(o.seed), kind_(size_t{p_} * p_, kNone) {
    for (unsigned a = 0; a < p_; ++a)
      for (unsigned b = 0; b < p_; ++b)
        if (a != b && kind_[a * p_ + b] == kNone) {
          for (unsigned k = 0; k < o.turns; ++k) {
            const unsigned x = rotated(a, k), y = rotated(b, k);
            kind_[x * p_ + y] = kind_[y * p_ + x] = kinds_;
          }
          ++kinds_;
        }
    if (o.turns > 1) {
      possible_ = kinds_ % (c_ - 1) == 0;
    } else {
      const uint64_t first = uint64_t{c_} * (c_ - 1) / 2;
      const uint64_t met = first + o.swaps * (c_ - 1);  // unless loads waste
      possible_ = met >= kinds_;
      waste_ = possible_ ? static_cast<unsigned>(met - kinds_) : 0;
    }
  }

  SwapSequence run() {
    for (unsigned i = 0; possible_ && i < o_.tries; ++i) {
      begin();
      in_turn_ = o_.orbits == 1 && o_.turns > 1 && i % 2 == 0;
      if (dive(c_, kinds_ - met_count_, waste_)) return whole();
    }
    return {p_, c_, {}};
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  unsigned rotated(unsigned partition, unsigned by) const {
    if (o_.fixed && partition == p_ - 1) return partition;
    return partition / o_.turns * o_.turns + (partition % o_.turns + by) % o_.turns;
  }
  uint32_t kind(unsigned a, unsigned b) const { return kind_[a * p_ + b]; }

  void begin() {
    nodes_ = 0;
    path_.clear();
    met_.assign(kinds_, false);
    met_count_ = 0;
    lacks_.assign(p_, p_ - 1);
    std::vector<unsigned> all(p_);
    std::iota(all.begin(), all.end(), 0u);
    for (unsigned s = 0; s < c_; ++s) std::swap(all[s], all[s + random_.below(p_ - s)]);
    held_.assign(all.begin(), all.begin() + c_);
    first_ = held_;
    if (o_.turns == 1)
      for (unsigned s = 0; s < c_; ++s)
        for (unsigned t = 0; t < s; ++t) meet(held_[s], held_[t]);
  }

  void meet(unsigned a, unsigned b) { met_[kind(a, b)] = true, ++met_count_, --lacks_[a], --lacks_[b]; }
  void part(unsigned a, unsigned b) { met_[kind(a, b)] = false, --met_count_, ++lacks_[a], ++lacks_[b]; }

  struct Choice {
    double cost;
    unsigned slot, load, meets;
  };

  std::vector<Choice> choices(unsigned last, uint64_t left, unsigned waste) {
    std::vector<Choice> found;
    for (unsigned load = 0; load < p_; ++load) {
      if (std::find(held_.begin(), held_.end(), load) != held_.end()) continue;
      unsigned all = 0;
      for (unsigned s = 0; s < c_; ++s) all += !met_[kind(load, held_[s])];
      if (all + waste + 1 < c_) continue;
      for (unsigned slot = 0; slot < c_; ++slot) {
        if (in_turn_ ? slot != path_.size() % c_ : slot == last) continue;
        const unsigned meets = all - !met_[kind(load, held_[slot])];
        const bool at_end = meets == left;  // nothing is left to meet
        if (!meets || (meets + waste + 1 < c_ && !at_end)) continue;
        if (o_.turns > 1 && repeats(slot, load)) continue;
        const double far = in_turn_ && last < c_ ? 0.5 * kind(load, held_[last]) : 0;
        found.push_back({random_.unit() + far - 16.0 * meets, slot, load, meets});
      }
    }
    std::sort(found.begin(), found.end(), [](const Choice& a, const Choice& b) { return a.cost < b.cost; });
    return found;
  }

  // Whether two of the pairs that a load meets are of one kind.
  bool repeats(unsigned slot, unsigned load) const {
    for (unsigned s = 0; s < c_; ++s)
      for (unsigned t = 0; t < s; ++t)
        if (s != slot && t != slot && kind(load, held_[s]) == kind(load, held_[t])) return true;
    return false;
  }

  bool dive(unsigned last, uint64_t left, unsigned waste) {
    if (!left) return o_.turns == 1 || turn_of_end() != 0;
    if (++nodes_ > o_.nodes_per_try) return false;
    for (const Choice& choice : choices(last, left, waste)) {
      const unsigned out = held_[choice.slot];
      std::vector<unsigned> met;
      for (unsigned s = 0; s < c_; ++s)
        if (s != choice.slot && !met_[kind(choice.load, held_[s])]) met.push_back(held_[s]);
      for (unsigned other : met) meet(choice.load, other);
      held_[choice.slot] = choice.load;
      path_.push_back({static_cast<uint16_t>(choice.slot), static_cast<uint16_t>(choice.load)});
      const unsigned wasted = std::min(c_ - 1 - choice.meets, waste);
      if (hopeful(waste - wasted) && dive(choice.slot, left - choice.meets, waste - wasted)) return true;
      path_.pop_back();
      held_[choice.slot] = out;
      for (unsigned other : met) part(choice.load, other);
      if (nodes_ > o_.nodes_per_try) return false;
    }
    return false;
  }

  // Partitions that are not there and lack fewer than slots - 1 others waste the difference when they are
  // loaded.
  bool hopeful(unsigned waste) const {
    if (o_.turns > 1) return true;
    unsigned will = 0;
    for (unsigned i = 0; i < p_; ++i)
      if (lacks_[i] && lacks_[i] < c_ - 1 && std::find(held_.begin(), held_.end(), i) == held_.end())
        will += c_ - 1 - lacks_[i];
    return will <= waste && (waste > c_ || reaches_all());
  }

  // Whether what has pairs left to meet hangs together with what is there.
  bool reaches_all() const {
    std::vector<char> seen(p_, false);
    std::vector<unsigned> queue;
    for (unsigned i : held_)
      if (lacks_[i]) queue.push_back(i), seen[i] = true;
    for (size_t at = 0; at < queue.size(); ++at)
      for (unsigned i = 0; i < p_; ++i)
        if (!seen[i] && lacks_[i] && i != queue[at] && !met_[kind(queue[at], i)])
          queue.push_back(i), seen[i] = true;
    for (unsigned i = 0; i < p_; ++i)
      if (lacks_[i] && !seen[i]) return false;
    return true;
  }

  // The rotation, with no factor in common with `turns`, that takes what was there first to what is there
  // now; 0: none.
  unsigned turn_of_end() const {
    auto now = held_;
    std::sort(now.begin(), now.end());
    for (unsigned k = 1; k < o_.turns; ++k) {
      if (std::gcd(k, o_.turns) != 1) continue;
      if (c_ > 2 && rotated(first_[path_.front().slot], k) == path_.back().partition)
        continue;  // leaves at once
      auto then = first_;
      for (unsigned& i : then) i = rotated(i, k);
      std::sort(then.begin(), then.end());
      if (then == now) return k;
    }
    return 0;
  }

  // The block turn after turn, in slots that the first `slots` partitions fill: partitions get new numbers
  // for that.
  SwapSequence whole() const {
    std::vector<unsigned> number(p_, kNone);
    unsigned next = 0;
    for (unsigned i : first_) number[i] = next++;
    for (unsigned& n : number)
      if (n == kNone) n = next++;
    SwapSequence order{p_, c_, {}};
    const unsigned turn = o_.turns > 1 ? turn_of_end() : 0;
    std::vector<unsigned> slots = first_;
    for (unsigned k = 0; k < o_.turns; ++k) {
      std::vector<unsigned> block = first_;
      for (const Swap& swap : path_) {
        const unsigned out = rotated(block[swap.slot], k * turn), in = rotated(swap.partition, k * turn);
        block[swap.slot] = swap.partition;
        const auto slot = std::find(slots.begin(), slots.end(), out) - slots.begin();
        slots[static_cast<size_t>(slot)] = in;
        order.swaps.push_back({static_cast<uint16_t>(slot), static_cast<uint16_t>(number[in])});
      }
    }
    if (o_.turns > 1) order.swaps.pop_back();  // it leads back to the first state
    return order;
  }

  const ExactOptions o_;
  const unsigned p_, c_;
  Random random_;
  std::vector<uint32_t> kind_;  // p x p: pairs that are rotations of each other are of one kind
  uint32_t kinds_ = 0;
  bool possible_ = false;
  uint64_t nodes_ = 0;
  unsigned waste_ = 0;
  std::vector<unsigned> held_, first_;
  std::vector<char> met_;  // by kind
  uint64_t met_count_ = 0;
  std::vector<unsigned> lacks_;  // by partition; exact with one turn
  std::vector<Swap> path_;
  // On one circle: the oldest leaves, and steps round the circle are tried from short to long. That finds
  // most of them.
  bool in_turn_ = false;
};

}  // namespace

SwapSequence exact_search(const ExactOptions& options) {
  const uint64_t partitions = uint64_t{options.turns} * options.orbits + options.fixed;
  if (options.turns % 2 == 0 || options.slots < 2 || options.slots > partitions || partitions > 1u << 10)
    throw Error(ErrorKind::argument, "an order of " + std::to_string(partitions) + " partitions in " +
                                         std::to_string(options.slots) + " slots with " +
                                         std::to_string(options.turns) + " turns cannot be searched");
  return Search(options).run();
}

}  // namespace outcrop
