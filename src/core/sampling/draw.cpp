#include "sampling/draw.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace outcrop {
namespace {

constexpr int64_t kLinearSearch = 32;  // fanouts up to this look for repeats by scanning
constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;

}  // namespace

uint64_t hop_key(uint64_t seed, BatchKey key, size_t hop) {
  uint64_t k = mix64(seed);
  for (uint64_t part : {key.split, key.epoch, key.batch, static_cast<uint64_t>(hop)}) k = mix64(k ^ part);
  return k;
}

LaborNumbers::LaborNumbers(uint64_t seed, BatchKey key, size_t hop, uint64_t dependency, size_t relation)
    : dependency_(dependency), place_(key.batch % dependency) {
  const auto key_of = [&](uint64_t group) {
    return relation_key(hop_key(seed, {key.split, key.epoch, group}, hop), relation);
  };
  const uint64_t group = key.batch / dependency;
  phase_ = mix64(~key_of(0));
  for (uint64_t i = 0; i < 2; ++i) keys_[i] = key_of(group + i);
}

// `count` distinct places in [start, start + degree), degree > count: Floyd's algorithm (Bentley and Floyd,
// CACM 1987), which draws exactly `count` numbers.
void UniformDraw::distinct(std::vector<int64_t>& out, RandomStream& random, int64_t start, int64_t degree,
                           int64_t count) {
  const size_t first = out.size();
  if (count <= kLinearSearch) {
    for (int64_t j = degree - count; j < degree; ++j) {
      const auto t = start + static_cast<int64_t>(random.below(static_cast<uint64_t>(j) + 1));
      const auto begin = out.begin() + static_cast<ptrdiff_t>(first);
      out.push_back(std::find(begin, out.end(), t) == out.end() ? t : start + j);
    }
    return;
  }
  const size_t mask = std::bit_ceil(static_cast<size_t>(2 * count)) - 1;
  chosen_.assign(mask + 1, -1);
  auto add = [&](int64_t place) {  // false where it is there already
    size_t slot = static_cast<size_t>(mix64(static_cast<uint64_t>(place))) & mask;
    for (; chosen_[slot] != -1; slot = (slot + 1) & mask)
      if (chosen_[slot] == place) return false;
    chosen_[slot] = place;
    return true;
  };
  for (int64_t j = degree - count; j < degree; ++j) {
    const auto t = static_cast<int64_t>(random.below(static_cast<uint64_t>(j) + 1));
    const int64_t place = add(t) ? t : j;
    if (place == j) add(j);
    out.push_back(start + place);
  }
}

int64_t UniformDraw::places(std::vector<int64_t>& out, uint64_t key, int64_t node, int64_t start,
                            int64_t degree, int64_t fanout, bool replace) {
  if (degree == 0) return 0;
  if (replace) {
    RandomStream random(key, static_cast<uint64_t>(node));
    for (int64_t i = 0; i < fanout; ++i)
      out.push_back(start + static_cast<int64_t>(random.below(static_cast<uint64_t>(degree))));
    return fanout;
  }
  if (fanout == -1 || degree <= fanout) {
    for (int64_t i = 0; i < degree; ++i) out.push_back(start + i);
    return degree;
  }
  RandomStream random(key, static_cast<uint64_t>(node));
  distinct(out, random, start, degree, fanout);
  return fanout;
}

void Race::start(uint64_t key, int64_t node, int64_t degree, int64_t count) {
  key_ = mix64(key ^ mix64(static_cast<uint64_t>(node)));
  place_ = 0;
  all_ = count == -1 || degree <= count;
  count_ = all_ ? 0 : static_cast<size_t>(count);
  heap_.clear();
}

void Race::add(const float* weights, size_t n) {
  for (size_t i = 0; i < n; ++i, ++place_) {
    const double weight = weights[i];
    if (!(weight > 0)) continue;
    if (all_) {
      heap_.emplace_back(0.0, place_);
      continue;
    }
    const uint64_t random = mix64(key_ + static_cast<uint64_t>(place_) * kStep);
    const double u = static_cast<double>((random >> 11) + 1) * 0x1.0p-53;  // (0, 1]
    // -log(u) >= 1 - u: most places of a long list have lost before the logarithm is taken.
    const bool full = heap_.size() == count_;
    if (full && 1.0 - u > heap_.front().first * weight) continue;
    const std::pair<double, int64_t> entry{-std::log(u) / weight, place_};
    if (full) {
      if (!(entry < heap_.front())) continue;
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = entry;
    } else {
      heap_.push_back(entry);
    }
    std::push_heap(heap_.begin(), heap_.end());
  }
}

int64_t Race::finish(std::vector<int64_t>& out, int64_t start) {
  const size_t first = out.size();
  for (const auto& [value, place] : heap_) out.push_back(start + place);
  if (!all_) std::sort(out.begin() + static_cast<ptrdiff_t>(first), out.end());
  return static_cast<int64_t>(out.size() - first);
}

}  // namespace outcrop
