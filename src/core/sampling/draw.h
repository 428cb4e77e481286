// What is drawn for one node: pure functions of (key, node, degree, weights), so that the same comes out
// wherever the neighbour lists lie and in whatever company the node is.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/random.h"

namespace outcrop {

enum class SamplerKind { neighbor, labor, shadow, weighted };

struct BatchKey {
  uint64_t split = 0, epoch = 0, batch = 0;
};

uint64_t hop_key(uint64_t seed, BatchKey key, size_t hop);
// Of one edge type in a hop; the first draws as a graph without types does.
inline uint64_t relation_key(uint64_t hop_key, size_t relation) {
  return relation ? mix64(hop_key ^ mix64(relation)) : hop_key;
}

// Uniform: which places of a list of `degree` neighbours. Not thread-safe (scratch memory).
class UniformDraw {
 public:
  // How many places() appends.
  static int64_t count(int64_t degree, int64_t fanout, bool replace) {
    return fanout == -1 ? degree : replace ? (degree ? fanout : 0) : std::min(degree, fanout);
  }
  // Appends the drawn places, each plus `start`, and returns how many. fanout -1: all.
  int64_t places(std::vector<int64_t>& out, uint64_t key, int64_t node, int64_t start, int64_t degree,
                 int64_t fanout, bool replace);

 private:
  void distinct(std::vector<int64_t>& out, RandomStream& random, int64_t start, int64_t degree,
                int64_t count);
  std::vector<int64_t> chosen_;  // hash set of distinct() for large fanouts
};

// LABOR-0 (Balin and Catalyurek 2023): one random number r_t per node t, batch and hop, shared by all targets
// s; the edge (t, s) is kept iff r_t <= fanout / degree(s).
inline bool labor_takes_all(int64_t degree, int64_t fanout) { return fanout == -1 || degree <= fanout; }
// Keeps iff labor_number < labor_bound; exact to 2^-64. degree > fanout >= 1.
inline uint64_t labor_bound(int64_t degree, int64_t fanout) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(fanout) << 64) /
                               static_cast<uint64_t>(degree));
}
inline uint64_t labor_number(uint64_t key, uint64_t node) { return mix64(key ^ node); }

// The numbers r_t of one batch, hop and edge type. With a dependency of k, a node's number stays for k batches in a row,
// and of all nodes a k-th gets a new one with each batch (when follows from the node): each batch is drawn as
// LABOR-0 draws it, but it wants most of what the batch before it wanted. 1: batches are independent.
// (Dependent mini-batches: Balin, LaSalle, Catalyurek, "Cooperative minibatching in graph neural networks";
// theirs interpolate between normal variates.)
class LaborNumbers {
 public:
  LaborNumbers(uint64_t seed, BatchKey key, size_t hop, uint64_t dependency, size_t relation);
  uint64_t operator()(uint64_t node) const {
    if (dependency_ == 1) return labor_number(keys_[0], node);
    return labor_number(keys_[place_ + mix64(phase_ ^ node) % dependency_ >= dependency_], node);
  }

 private:
  uint64_t dependency_, place_, phase_;
  std::array<uint64_t, 2> keys_;
};

// Weighted without replacement (Efraimidis and Spirakis 2006): place j gets an exponential variate of rate
// w_j, the `count` smallest win. That is drawing one after the other in proportion to the weights that are
// left. Weights may come in pieces. Places of weight zero never win.
class Race {
 public:
  void start(uint64_t key, int64_t node, int64_t degree, int64_t count);  // count -1: all
  void add(const float* weights, size_t n);                               // of the next n places
  // Appends the winners, each plus `start`, ascending; returns how many.
  int64_t finish(std::vector<int64_t>& out, int64_t start);

 private:
  uint64_t key_ = 0;
  int64_t place_ = 0;
  size_t count_ = 0;
  bool all_ = false;
  std::vector<std::pair<double, int64_t>> heap_;  // the worst winner on top
};

}  // namespace outcrop
