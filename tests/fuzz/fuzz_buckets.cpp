// Edges into buckets with any ids, nodes, partitions and relations: either an Error(argument), after which none of them
// was added, or every edge in its bucket, in the order in which it came, also where buckets do not fit in memory.
#include <fuzzer/FuzzedDataProvider.h>

#include <random>

#include "base/error.h"
#include "check.h"
#include "embed/bucket_sort.h"
#include "files.h"

using namespace outcrop;

namespace {

struct Edges {
  std::vector<int64_t> source, relation, target;
  bool right = true;
};

Edges edges_of(FuzzedDataProvider& in, uint64_t nodes, uint64_t relations) {
  Edges made;
  // Thousands come from a seed: what is fuzzed would not be long enough to have any spilled.
  const size_t many = in.ConsumeProbability<float>() < 0.1f ? in.ConsumeIntegralInRange<size_t>(0, 9000) : 0;
  std::mt19937_64 random(in.ConsumeIntegral<uint8_t>());
  for (size_t i = 0; i < many; ++i) {
    made.source.push_back(static_cast<int64_t>(random() % nodes));
    made.relation.push_back(static_cast<int64_t>(random() % relations));
    made.target.push_back(static_cast<int64_t>(random() % nodes));
  }
  for (size_t left = in.ConsumeIntegralInRange<size_t>(0, 40); left; --left) {
    const auto add = [&](std::vector<int64_t>& ids, uint64_t limit) {
      const bool lies = in.ConsumeProbability<float>() < 0.005f;
      ids.push_back(lies ? in.ConsumeIntegral<int64_t>()
                         : in.ConsumeIntegralInRange<int64_t>(0, static_cast<int64_t>(limit) - 1));
      made.right &= static_cast<uint64_t>(ids.back()) < limit;
    };
    add(made.source, nodes), add(made.relation, relations), add(made.target, nodes);
  }
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static WorkerPool workers(1);
  FuzzedDataProvider in(data, size);
  const bool large = in.ConsumeBool();
  const uint64_t nodes =
      large ? in.ConsumeIntegral<uint64_t>() >> 1 : in.ConsumeIntegralInRange<uint64_t>(0, 300);
  const uint64_t partitions = in.ConsumeIntegralInRange<uint64_t>(0, 40);
  const uint64_t relations = in.ConsumeIntegralInRange<uint64_t>(1, 9);
  const auto budget = Budget::create(UINT64_MAX);
  try {
    BucketSorter sorter(engine(), *budget, {folder(), BucketSorter::kMinMemoryBytes, &workers}, nodes,
                        partitions, relations);
    holds(partitions && partitions <= nodes);
    const Division division(nodes, partitions);
    std::vector<EdgeRecord> wanted;
    for (int blocks = in.ConsumeIntegralInRange(1, 3); blocks; --blocks) {
      const Edges block = edges_of(in, nodes, relations);
      const bool named = in.ConsumeBool();
      bool right = block.right;
      if (!named) {  // nobody looks at the relations
        right = std::all_of(block.source.begin(), block.source.end(),
                            [&](int64_t id) { return static_cast<uint64_t>(id) < nodes; }) &&
                std::all_of(block.target.begin(), block.target.end(),
                            [&](int64_t id) { return static_cast<uint64_t>(id) < nodes; });
      }
      try {
        sorter.add(block.source.data(), named ? block.relation.data() : nullptr, block.target.data(),
                   block.source.size());
        holds(right);
      } catch (const Error& error) {
        holds(!right && error.kind() == ErrorKind::argument);
        continue;
      }
      for (size_t i = 0; i < block.source.size(); ++i) {
        const auto from = division.place(static_cast<uint64_t>(block.source[i]));
        const auto to = division.place(static_cast<uint64_t>(block.target[i]));
        wanted.push_back({static_cast<uint32_t>(from.partition * partitions + to.partition),
                          static_cast<uint32_t>(from.local),
                          named ? static_cast<uint32_t>(block.relation[i]) : 0,
                          static_cast<uint32_t>(to.local)});
        holds(wanted.back().source == from.local && wanted.back().target == to.local);
      }
    }
    std::vector<uint64_t> counts(partitions * partitions);
    for (const EdgeRecord& one : wanted) ++counts[one.bucket];
    holds(counts == sorter.counts());
    std::stable_sort(wanted.begin(), wanted.end(),
                     [](const EdgeRecord& a, const EdgeRecord& b) { return a.bucket < b.bucket; });
    size_t at = 0;
    sorter.finish([&](const EdgeRecord* records, size_t n) {
      for (size_t i = 0; i < n; ++i, ++at) {
        holds(at < wanted.size());
        const EdgeRecord &found = records[i], &asked = wanted[at];
        holds(found.bucket == asked.bucket && found.source == asked.source &&
              found.relation == asked.relation && found.target == asked.target);
      }
    });
    holds(at == wanted.size());
  } catch (const Error& error) {
    holds(error.kind() == ErrorKind::argument);
  }
  holds(budget->now_bytes() == 0);
  return 0;
}
