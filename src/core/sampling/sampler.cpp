#include "sampling/sampler.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "base/error.h"

namespace outcrop {
namespace {

constexpr size_t kBlockNodes = 64;   // frontier nodes whose memory accesses are overlapped
constexpr int64_t kLongList = 4096;  // neighbours, before which memory is checked

void sort_last(std::vector<int64_t>& values, int64_t count) { std::sort(values.end() - count, values.end()); }

void check_fanouts(const SamplerOptions& options, const Relations& relations) {
  const auto& fanouts = options.fanouts;
  if (fanouts.empty() || fanouts.front().empty()) throw Error(ErrorKind::argument, "no fanouts given");
  if (fanouts.size() != relations.size())
    throw Error(ErrorKind::argument, "fanouts of " + std::to_string(fanouts.size()) +
                                         " edge types are given, there are " +
                                         std::to_string(relations.size()));
  for (const auto& hops : fanouts) {
    if (hops.size() != options.hops())
      throw Error(ErrorKind::argument, "an edge type has fanouts for " + std::to_string(hops.size()) +
                                           " hops, the first for " + std::to_string(options.hops()));
    for (int64_t f : hops)
      if (f < -1 || (f == 0 && relations.is_single()) || (f == -1 && options.replace))
        throw Error(ErrorKind::argument, "fanout " + std::to_string(f) + " is not possible here");
  }
}

}  // namespace

void check_options(const SamplerOptions& options, const Relations& relations, bool has_weights) {
  check_fanouts(options, relations);
  const bool may_replace = options.kind == SamplerKind::neighbor || options.kind == SamplerKind::shadow;
  if (options.replace && !may_replace)
    throw Error(ErrorKind::argument, "labor and weighted sampling are without replacement");
  if (options.dependency < 1 || (options.dependency > 1 && options.kind != SamplerKind::labor))
    throw Error(ErrorKind::argument, "a batch dependency of " + std::to_string(options.dependency) +
                                         " is not possible here: it is 1, or more with labor");
  if (options.kind == SamplerKind::weighted && !has_weights)
    throw Error(ErrorKind::argument, "weighted sampling needs edge weights");
  if (options.kind == SamplerKind::shadow && !relations.is_single())
    throw Error(
        ErrorKind::argument,
        "shadow samples graphs of one node type and one edge type: choose neighbor, labor or weighted");
}

std::vector<HopPart> parts_of_hop(const BatchBuilder& batch, const SamplerOptions& options, BatchKey key,
                                  size_t hop) {
  const Relations& relations = batch.relations();
  const uint64_t hop_wide = hop_key(options.seed, key, hop);
  std::vector<HopPart> parts;
  size_t lists = 0;
  for (size_t r = 0; r < relations.size(); ++r) {
    const auto [begin, end] = batch.frontier_of(relations[r].target);
    if (begin == end) continue;
    const size_t first = lists;
    lists += end - begin;
    parts.push_back(
        {r, first, lists, begin, relations.list_shift(r), options.fanouts[r][hop], relation_key(hop_wide, r),
         options.kind == SamplerKind::weighted && relations[r].weighted, relations.weight_shift(r),
         relations[r].first_edge, relations[r].first_edge + relations[r].num_edges});
  }
  return parts;
}

NeighborSampler::NeighborSampler(Topology topology, SamplerOptions options)
    : topology_(topology),
      options_(std::move(options)),
      batch_(topology.relations, options_.max_batch_bytes, options_.positions) {
  check_options(options_, *topology_.relations, topology_.weights);
}

int64_t NeighborSampler::count_edges(const HopPart& part) const {
  constexpr size_t kAhead = 16;
  if (part.fanout == 0) return 0;
  int64_t edges = 0;
  const std::span<const int64_t> nodes = nodes_of(part);
  const int64_t* indptr = topology_.indptr;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) __builtin_prefetch(&indptr[nodes[i + kAhead] + part.shift]);
    const ListRange list =
        range_of(topology_, nodes[i] + part.shift, nodes[i], part.first_edge, part.end_edge);
    edges += UniformDraw::count(list.degree, part.fanout, options_.replace);
  }
  return edges;
}

template <class Index>
void NeighborSampler::uniform_part(const Index* indices, const HopPart& part) {
  const std::span<const int64_t> nodes = nodes_of(part);  // room was reserved: it stays where it is
  const auto [shift, fanout, key] = std::tuple(part.shift, part.fanout, part.key);
  const int64_t* indptr = topology_.indptr;
  const bool replace = options_.replace, sorted = options_.positions;
  for (size_t block = 0; block < nodes.size(); block += kBlockNodes) {
    positions_.clear();
    for (size_t i = block; i < std::min(nodes.size(), block + kBlockNodes); ++i) {
      const int64_t list = nodes[i] + shift;
      const int64_t start = indptr[list], degree = indptr[list + 1] - start;
      const int64_t drawn = draw_.places(positions_, key, nodes[i], start, degree, fanout, replace);
      if (sorted) sort_last(positions_, drawn);
      batch_.end_row(drawn);
    }
    batch_.insert_block(indices, positions_);
  }
}

// Calls fn(node, range) for each node, whose list was fetched ahead; checks the batch's memory on the way.
template <class Index, class Fn>
void NeighborSampler::for_each_list(const Index* indices, std::span<const int64_t> nodes, const HopPart& part,
                                    Fn&& fn) {
  const auto most_kept = [&](int64_t degree) { return all_lists_ ? static_cast<size_t>(degree) : 0; };
  const int64_t shift = part.shift;
  const int64_t first_edge = part.first_edge, end_edge = part.end_edge;
  const auto range = [&](size_t i) {
    return range_of(topology_, nodes[i] + shift, nodes[i], first_edge, end_edge);
  };
  constexpr size_t kFar = 32, kNear = 12;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kFar < nodes.size()) __builtin_prefetch(&topology_.indptr[nodes[i + kFar] + shift]);
    if (i + kNear < nodes.size()) {
      const int64_t start = range(i + kNear).start;
      __builtin_prefetch(&indices[start]);
      if (part.weighted) __builtin_prefetch(&topology_.weights[start + part.weight_shift]);
    }
    const ListRange list = range(i);
    if (i % kBlockNodes == 0 || list.degree > kLongList) batch_.check_kept(most_kept(list.degree));
    fn(nodes[i], list);
  }
}

template <class Index>
void NeighborSampler::labor_part(const Index* indices, const HopPart& part) {
  const LaborNumbers number(options_.seed, key_, hops_, options_.dependency, part.relation);
  const int64_t fanout = part.fanout;
  for_each_list(indices, nodes_of(part), part, [&](int64_t, ListRange list) {
    const Index* neighbours = indices + list.start;
    const auto keep = [&](auto&& wanted) {
      if (options_.positions)
        batch_.keep_if_at(neighbours, list.degree, list.start, wanted);
      else
        batch_.keep_if(neighbours, list.degree, wanted);
    };
    if (labor_takes_all(list.degree, fanout)) {
      keep([](uint64_t) { return true; });
    } else {
      const uint64_t bound = labor_bound(list.degree, fanout);
      keep([&](uint64_t id) { return number(id) < bound; });
    }
    batch_.end_row();
  });
}

// In proportion to weights; uniform where the edge type has none.
template <class Index>
void NeighborSampler::weighted_part(const Index* indices, const HopPart& part) {
  for_each_list(indices, nodes_of(part), part, [&](int64_t node, ListRange list) {
    positions_.clear();
    if (part.weighted) {
      race_.start(part.key, node, list.degree, part.fanout);
      race_.add(topology_.weights + list.start + part.weight_shift, static_cast<size_t>(list.degree));
      race_.finish(positions_, list.start);
    } else {
      draw_.places(positions_, part.key, node, list.start, list.degree, part.fanout, false);
      if (options_.positions) sort_last(positions_, static_cast<int64_t>(positions_.size()));
    }
    for (int64_t p : positions_) batch_.keep(indices + p, 1);
    if (options_.positions) batch_.add_positions(positions_);
    batch_.end_row();
  });
}

template <class Index>
void NeighborSampler::induce(const Index* indices) {
  batch_.begin_induced();
  HopPart all;
  all.end_edge = topology_.num_edges;
  for_each_list(indices, batch_.nodes(), all, [&](int64_t, ListRange list) {
    batch_.keep_inside(indices + list.start, list.degree, list.start);
    batch_.end_row();
  });
  batch_.finish_induced();
}

template <class Index>
void NeighborSampler::draw_part(const Index* indices, const HopPart& part) {
  batch_.begin_relation(part.relation);
  all_lists_ = part.fanout == -1;
  if (part.fanout == 0)
    for (size_t i = part.first; i < part.end; ++i) batch_.end_row();
  else if (options_.kind == SamplerKind::labor)
    labor_part(indices, part);
  else if (options_.kind == SamplerKind::weighted)
    weighted_part(indices, part);
  else
    uniform_part(indices, part);
  all_lists_ = false;
}

template <class Index>
void NeighborSampler::draw_hop(const Index* indices) {
  const bool uniform = options_.kind == SamplerKind::neighbor || options_.kind == SamplerKind::shadow;
  parts_ = parts_of_hop(batch_, options_, key_, hops_);
  if (uniform) {
    int64_t edges = 0;
    for (const HopPart& part : parts_) edges += count_edges(part);
    batch_.reserve_hop(edges);
  }
  for (const HopPart& part : parts_) draw_part(indices, part);
  if (uniform)
    batch_.finish_known_hop();
  else
    batch_.finish_hop();
}

void NeighborSampler::begin(std::span<const int64_t> seeds, BatchKey key) {
  batch_.begin(seeds, scratch_);
  key_ = key;
  hops_ = 0;
}

std::span<const int64_t> NeighborSampler::hop() {
  if (hops_ == options_.hops()) throw Error(ErrorKind::argument, "all hops of the batch were drawn");
  with_indices(topology_, [&](const auto* indices) { draw_hop(indices); });
  ++hops_;
  return batch_.frontier();
}

SampledBatch NeighborSampler::finish() {
  if (options_.kind == SamplerKind::shadow)
    with_indices(topology_, [&](const auto* indices) { induce(indices); });
  return batch_.take();
}

SampledBatch NeighborSampler::sample(std::span<const int64_t> seeds, BatchKey key) {
  begin(seeds, key);
  while (hops_ < options_.hops()) hop();
  return finish();
}

}  // namespace outcrop
