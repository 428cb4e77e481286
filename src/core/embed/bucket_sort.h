// Sorts edges into the buckets of their partitions, within a memory budget (embed/buckets.py).
//
// Bucket i * partitions + j holds the edges from partition i to j, with the numbers that their nodes have in
// these. Edges of a bucket keep the order in which they were added.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "embed/division.h"
#include "graph/external_sort.h"

namespace outcrop {

struct EdgeRecord {
  static constexpr unsigned kKeyWords = 1;
  uint32_t bucket, source, relation, target;
  uint64_t word(unsigned) const { return bucket; }
};

class BucketSorter {
 public:
  static constexpr uint64_t kMinMemoryBytes = ExternalSorter<EdgeRecord>::kMinMemoryBytes;
  static constexpr uint64_t kMaxPartitions = 1 << 16;

  BucketSorter(std::shared_ptr<BlockIo> io, Budget& budget, SortOptions options, uint64_t nodes,
               uint64_t partitions, uint64_t relations);
  // relation: nullptr = all 0. Throws Error(argument) for ids out of range; then none of them was added.
  void add(const int64_t* source, const int64_t* relation, const int64_t* target, size_t n);
  // Pieces in the order of buckets; frees everything.
  void finish(const std::function<void(const EdgeRecord*, size_t)>& sink);
  const std::vector<uint64_t>& counts() const { return counts_; }  // by bucket
  const SortStats& stats() const { return sorter_.stats(); }

 private:
  const Division division_;
  const uint64_t relations_;
  ExternalSorter<EdgeRecord> sorter_;
  std::vector<uint64_t> counts_;
};

}  // namespace outcrop
