// Samplers on topologies that lie: offsets that fall or leave the file, neighbours out of range, weights that are none,
// several edge types. Either an Error, or a batch whose parts belong together.
#include <fuzzer/FuzzedDataProvider.h>

#include "base/error.h"
#include "check.h"
#include "sampling/sampler.h"

using namespace outcrop;

namespace {

// Mostly a topology as it should be, with some values anywhere.
std::vector<int64_t> offsets(FuzzedDataProvider& in, int64_t lists, int64_t edges) {
  std::vector<int64_t> made(1, 0);
  for (int64_t i = 0; i < lists; ++i)
    made.push_back(std::min(edges, made.back() + in.ConsumeIntegralInRange<int64_t>(0, 5)));
  made.back() = edges;
  for (int lies = in.ConsumeIntegralInRange(0, 3); lies; --lies)
    made[in.ConsumeIntegralInRange<size_t>(0, made.size() - 1)] = in.ConsumeIntegral<int64_t>();
  return made;
}

template <class Index>
std::vector<Index> neighbours(FuzzedDataProvider& in, int64_t edges, int64_t nodes) {
  std::vector<Index> made;
  for (int64_t i = 0; i < edges; ++i)
    made.push_back(static_cast<Index>(in.ConsumeIntegralInRange<int64_t>(0, nodes - 1)));
  for (int lies = edges ? in.ConsumeIntegralInRange(0, 3) : 0; lies; --lies)
    made[in.ConsumeIntegralInRange<size_t>(0, made.size() - 1)] = in.ConsumeIntegral<Index>();
  return made;
}

void check(const SampledBatch& batch, const Relations& relations, size_t hops) {
  for (size_t t = 0; t < batch.nodes.size(); ++t) {
    const auto& [ids, per_hop] = batch.nodes[t];
    holds(per_hop.size() == hops + 1 && sum(per_hop) == static_cast<int64_t>(ids.size()));
    for (const int64_t id : ids) holds(id >= 0 && id < relations.num_nodes(t));
    holds(distinct(ids));
  }
  for (size_t r = 0; r < batch.edges.size(); ++r) {
    const SampledEdges& edges = batch.edges[r];
    holds(!edges.rowptr.empty() && edges.rowptr.front() == 0 && rises(edges.rowptr));
    holds(edges.rowptr.back() == static_cast<int64_t>(edges.col.size()) &&
          sum(edges.per_hop) == edges.rowptr.back());
    for (const int32_t c : edges.col)
      holds(c >= 0 && static_cast<size_t>(c) < batch.nodes[relations[r].source].ids.size());
    for (const int64_t p : edges.positions) holds(p >= 0 && p < relations[r].num_edges);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  try {
    std::vector<int64_t> first(1, 0);
    for (size_t types = in.ConsumeIntegralInRange<size_t>(1, 3); types; --types)
      first.push_back(first.back() + in.ConsumeIntegralInRange<int64_t>(0, 20));
    std::vector<Relation> listed(in.ConsumeIntegralInRange<size_t>(1, 3));
    for (Relation& one : listed) {
      one.source = in.ConsumeIntegralInRange<size_t>(0, first.size() - 2);
      one.target = in.ConsumeIntegralInRange<size_t>(0, first.size() - 2);
      one.num_edges = in.ConsumeIntegralInRange<int64_t>(0, 40);
      one.weighted = in.ConsumeBool();
    }
    const auto relations = std::make_shared<const Relations>(first, listed);
    const int64_t edges = relations->num_edges(), nodes = relations->num_nodes();
    const auto indptr = offsets(in, relations->num_lists(), edges);
    const bool wide = in.ConsumeBool();
    const auto narrow = neighbours<uint32_t>(in, wide ? 0 : edges, std::max<int64_t>(nodes, 1));
    const auto broad = neighbours<int64_t>(in, wide ? edges : 0, std::max<int64_t>(nodes, 1));
    std::vector<float> weights;
    if (in.ConsumeBool())
      for (int64_t i = 0; i < relations->num_weights(); ++i)
        weights.push_back(in.ConsumeFloatingPoint<float>());
    SamplerOptions options;
    options.kind = static_cast<SamplerKind>(in.ConsumeIntegralInRange(0, 3));
    const size_t hops = in.ConsumeIntegralInRange<size_t>(1, 3);
    options.fanouts.assign(listed.size(), std::vector<int64_t>(hops));
    for (auto& of : options.fanouts)
      for (int64_t& fanout : of) fanout = in.ConsumeIntegralInRange<int64_t>(-1, 6);
    options.replace = in.ConsumeBool();
    options.positions = in.ConsumeBool();
    options.dependency = in.ConsumeIntegralInRange<uint64_t>(1, 4);
    options.max_batch_bytes = in.ConsumeBool() ? UINT64_MAX : in.ConsumeIntegralInRange<uint64_t>(0, 20000);
    std::vector<int64_t> seeds;
    for (size_t left = in.ConsumeIntegralInRange<size_t>(0, 8); left; --left)
      seeds.push_back(in.ConsumeBool()
                          ? in.ConsumeIntegralInRange<int64_t>(0, std::max<int64_t>(nodes - 1, 0))
                          : in.ConsumeIntegral<int64_t>());
    Topology topology;
    topology.indptr = indptr.data();
    topology.indices32 = wide ? nullptr : narrow.data();
    topology.indices64 = wide ? broad.data() : nullptr;
    topology.num_nodes = nodes;
    topology.num_edges = edges;
    topology.weights = weights.empty() ? nullptr : weights.data();
    topology.relations = relations;
    NeighborSampler sampler(topology, options);
    for (uint64_t batch = 0; batch < 2; ++batch)
      check(sampler.sample(seeds, {0, 1, batch}), *relations, hops);
  } catch (const Error&) {
  }
  return 0;
}
