// A sketch of which batches want which nodes: the search for a layout counts on it instead of on all samples.
//
// Nodes are chosen by a hash of their id, all their wants are kept; so for any segment size the sketch counts
// the rows that a layout stores without bias, times 2^halvings. Linear in what it holds.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/budget.h"
#include "base/buffer.h"
#include "base/parallel.h"

namespace outcrop {

class LayoutSketch {
 public:
  // capacity: wants that can be held, 16 bytes each, under "layout". One in 2^halvings nodes is kept.
  LayoutSketch(Budget& budget, int64_t capacity, unsigned halvings, uint64_t seed);
  // out gets the ids that the sketch keeps; returns how many. `out` has room for all.
  template <class Id>
  int64_t thin(std::span<const Id> ids, int64_t* out) const;
  // Batch `batch` wants `ids`. Batches come in ascending order. Throws Error(budget) when it is full,
  // Error(argument) for more than 2^24 batches or ids above 2^40.
  void add(int64_t batch, std::span<const int64_t> ids);
  // Throws Error(format) where a batch wants a node twice.
  void finish(WorkerPool& workers);
  // h[c] = how many (node, segment) pairs there are with c wants, for segments of `segment` batches;
  // h has min(segment, batches) + 1 entries, wants above that cannot be.
  std::vector<int64_t> histogram(int64_t segment) const;
  int64_t size() const { return size_; }

 private:
  struct Want {
    static constexpr unsigned kKeyWords = 1;
    uint64_t key;  // node << 24 | batch
    uint64_t word(unsigned) const { return key; }
  };
  Buffer wants_, scratch_;
  Want* sorted_ = nullptr;
  int64_t capacity_, size_ = 0, batches_ = 0;
  uint64_t mask_, seed_;
};

}  // namespace outcrop
