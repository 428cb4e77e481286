// Topologies that lie, how they are sampled, and what holds of a batch: for the targets of samplers.
#pragma once
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "sampling/sampler.h"

namespace lying {

using namespace outcrop;

// Mostly a topology as it should be, with some values anywhere.
inline std::vector<int64_t> offsets(FuzzedDataProvider& in, int64_t lists, int64_t edges) {
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

inline void check(const SampledBatch& batch, const Relations& relations, size_t hops) {
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

// A topology of several types whose offsets, neighbours and weights may be anything, and what is asked of it.
struct Request {
  explicit Request(FuzzedDataProvider& in);
  Topology topology() const;

  std::shared_ptr<const Relations> relations;
  std::vector<int64_t> indptr, broad, seeds;
  std::vector<uint32_t> narrow;
  std::vector<float> weights;
  bool wide = false;
  SamplerOptions options;
  size_t hops = 1;
};

inline Request::Request(FuzzedDataProvider& in) {
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
  relations = std::make_shared<const Relations>(first, listed);
  const int64_t edges = relations->num_edges(), nodes = relations->num_nodes();
  indptr = offsets(in, relations->num_lists(), edges);
  wide = in.ConsumeBool();
  narrow = neighbours<uint32_t>(in, wide ? 0 : edges, std::max<int64_t>(nodes, 1));
  broad = neighbours<int64_t>(in, wide ? edges : 0, std::max<int64_t>(nodes, 1));
  if (in.ConsumeBool())
    for (int64_t i = 0; i < relations->num_weights(); ++i)
      weights.push_back(in.ConsumeFloatingPoint<float>());
  options.kind = static_cast<SamplerKind>(in.ConsumeIntegralInRange(0, 3));
  hops = in.ConsumeIntegralInRange<size_t>(1, 3);
  options.fanouts.assign(listed.size(), std::vector<int64_t>(hops));
  for (auto& of : options.fanouts)
    for (int64_t& fanout : of) fanout = in.ConsumeIntegralInRange<int64_t>(-1, 6);
  options.replace = in.ConsumeBool();
  options.positions = in.ConsumeBool();
  options.dependency = in.ConsumeIntegralInRange<uint64_t>(1, 4);
  options.max_batch_bytes = in.ConsumeBool() ? UINT64_MAX : in.ConsumeIntegralInRange<uint64_t>(0, 20000);
  for (size_t left = in.ConsumeIntegralInRange<size_t>(0, 8); left; --left)
    seeds.push_back(in.ConsumeBool() ? in.ConsumeIntegralInRange<int64_t>(0, std::max<int64_t>(nodes - 1, 0))
                                     : in.ConsumeIntegral<int64_t>());
}

inline Topology Request::topology() const {
  Topology made;
  made.indptr = indptr.data();
  made.indices32 = wide ? nullptr : narrow.data();
  made.indices64 = wide ? broad.data() : nullptr;
  made.num_nodes = relations->num_nodes();
  made.num_edges = relations->num_edges();
  made.weights = weights.empty() ? nullptr : weights.data();
  made.relations = relations;
  return made;
}

}  // namespace lying
