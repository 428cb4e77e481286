#include "embed/bucket_sort.h"

#include <string>
#include <utility>

namespace outcrop {
namespace {

Division division(uint64_t nodes, uint64_t partitions) {
  if (!partitions || partitions > nodes || partitions > BucketSorter::kMaxPartitions)
    throw Error(ErrorKind::argument, std::to_string(nodes) + " nodes cannot be divided into " +
                                         std::to_string(partitions) + " partitions: 1 to " +
                                         std::to_string(BucketSorter::kMaxPartitions) +
                                         " are possible, each with a node");
  if ((nodes - 1) / partitions >> 32)
    throw Error(ErrorKind::argument, std::to_string(nodes) + " nodes in " + std::to_string(partitions) +
                                         " partitions: a partition holds 2^32 at most, take more of them");
  return {nodes, partitions};
}

void check(const char* what, const int64_t* ids, size_t n, uint64_t limit) {
  for (size_t i = 0; i < n; ++i)
    if (static_cast<uint64_t>(ids[i]) >= limit)
      throw Error(ErrorKind::argument, std::string(what) + " " + std::to_string(ids[i]) + " of edge " +
                                           std::to_string(i) + " of the block is not in [0, " +
                                           std::to_string(limit) + ")");
}

}  // namespace

BucketSorter::BucketSorter(std::shared_ptr<BlockIo> io, Budget& budget, SortOptions options, uint64_t nodes,
                           uint64_t partitions, uint64_t relations)
    : division_(division(nodes, partitions)),
      relations_(relations),
      sorter_(std::move(io), budget, std::move(options)),
      counts_(partitions * partitions) {}

void BucketSorter::add(const int64_t* source, const int64_t* relation, const int64_t* target, size_t n) {
  check("source", source, n, division_.rows());
  check("target", target, n, division_.rows());
  if (relation) check("relation", relation, n, relations_);
  for (size_t i = 0; i < n; ++i) {
    const auto s = division_.place(static_cast<uint64_t>(source[i]));
    const auto t = division_.place(static_cast<uint64_t>(target[i]));
    const uint64_t bucket = s.partition * division_.parts() + t.partition;
    ++counts_[bucket];
    sorter_.push({static_cast<uint32_t>(bucket), static_cast<uint32_t>(s.local),
                  relation ? static_cast<uint32_t>(relation[i]) : 0, static_cast<uint32_t>(t.local)});
  }
}

void BucketSorter::finish(const std::function<void(const EdgeRecord*, size_t)>& sink) {
  sorter_.finish([&](const EdgeRecord* records, size_t n) { sink(records, n); });
}

}  // namespace outcrop
