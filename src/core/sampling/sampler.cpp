#include "sampling/sampler.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace outcrop {
namespace {

constexpr size_t kBlockNodes = 64;   // frontier nodes whose memory accesses are overlapped
constexpr int64_t kLongList = 4096;  // neighbours, before which memory is checked

}  // namespace

void check_options(const SamplerOptions& options, bool has_weights) {
  if (options.fanouts.empty()) throw Error(ErrorKind::argument, "no fanouts given");
  for (int64_t f : options.fanouts)
    if (f < -1 || f == 0 || (f == -1 && options.replace))
      throw Error(ErrorKind::argument, "fanout " + std::to_string(f) + " is not possible here");
  const bool may_replace = options.kind == SamplerKind::neighbor || options.kind == SamplerKind::shadow;
  if (options.replace && !may_replace)
    throw Error(ErrorKind::argument, "labor and weighted sampling are without replacement");
  if (options.dependency < 1 || (options.dependency > 1 && options.kind != SamplerKind::labor))
    throw Error(ErrorKind::argument, "a batch dependency of " + std::to_string(options.dependency) +
                                         " is not possible here: it is 1, or more with labor");
  if (options.kind == SamplerKind::weighted && !has_weights)
    throw Error(ErrorKind::argument, "weighted sampling needs edge weights");
}

NeighborSampler::NeighborSampler(Topology topology, SamplerOptions options)
    : topology_(topology),
      options_(std::move(options)),
      batch_(topology.num_nodes, options_.max_batch_bytes) {
  check_options(options_, topology_.weights);
}

int64_t NeighborSampler::count_edges(int64_t fanout) const {
  constexpr size_t kAhead = 16;
  int64_t edges = 0;
  const std::span<const int64_t> nodes = batch_.frontier();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kAhead < nodes.size()) __builtin_prefetch(&topology_.indptr[nodes[i + kAhead]]);
    edges += UniformDraw::count(range_of(topology_, nodes[i]).degree, fanout, options_.replace);
  }
  return edges;
}

template <class Index>
void NeighborSampler::uniform_hop(const Index* indices, int64_t fanout, uint64_t key) {
  batch_.reserve_hop(count_edges(fanout));
  const std::span<const int64_t> nodes = batch_.frontier();  // room was reserved: it stays where it is
  for (size_t block = 0; block < nodes.size(); block += kBlockNodes) {
    positions_.clear();
    for (size_t i = block; i < std::min(nodes.size(), block + kBlockNodes); ++i) {
      const int64_t start = topology_.indptr[nodes[i]], degree = topology_.indptr[nodes[i] + 1] - start;
      batch_.end_row(draw_.places(positions_, key, nodes[i], start, degree, fanout, options_.replace));
    }
    batch_.insert_block(indices, positions_);
  }
  batch_.finish_known_hop();
}

// Calls fn(node, range) for each node, whose list was fetched ahead; checks the batch's memory on the way.
template <class Index, class Fn>
void NeighborSampler::for_each_list(const Index* indices, std::span<const int64_t> nodes, Fn&& fn) {
  const auto most_kept = [&](int64_t degree) { return all_lists_ ? static_cast<size_t>(degree) : 0; };
  constexpr size_t kFar = 32, kNear = 12;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i + kFar < nodes.size()) __builtin_prefetch(&topology_.indptr[nodes[i + kFar]]);
    if (i + kNear < nodes.size()) {
      const int64_t start = range_of(topology_, nodes[i + kNear]).start;
      __builtin_prefetch(&indices[start]);
      if (options_.kind == SamplerKind::weighted) __builtin_prefetch(&topology_.weights[start]);
    }
    const ListRange list = range_of(topology_, nodes[i]);
    if (i % kBlockNodes == 0 || list.degree > kLongList) batch_.check_kept(most_kept(list.degree));
    fn(nodes[i], list);
  }
}

template <class Index>
void NeighborSampler::labor_hop(const Index* indices, int64_t fanout) {
  const LaborNumbers number(options_.seed, key_, hops_, options_.dependency);
  for_each_list(indices, batch_.frontier(), [&](int64_t, ListRange list) {
    const Index* neighbours = indices + list.start;
    if (labor_takes_all(list.degree, fanout)) {
      batch_.keep(neighbours, list.degree);
    } else {
      const uint64_t bound = labor_bound(list.degree, fanout);
      batch_.keep_if(neighbours, list.degree, [&](uint64_t id) { return number(id) < bound; });
    }
    batch_.end_row();
  });
  batch_.finish_hop();
}

template <class Index>
void NeighborSampler::weighted_hop(const Index* indices, int64_t fanout, uint64_t key) {
  for_each_list(indices, batch_.frontier(), [&](int64_t node, ListRange list) {
    positions_.clear();
    race_.start(key, node, list.degree, fanout);
    race_.add(topology_.weights + list.start, static_cast<size_t>(list.degree));
    race_.finish(positions_, list.start);
    for (int64_t p : positions_) batch_.keep(indices + p, 1);
    batch_.end_row();
  });
  batch_.finish_hop();
}

template <class Index>
void NeighborSampler::induce(const Index* indices) {
  batch_.begin_induced();
  for_each_list(indices, batch_.nodes(), [&](int64_t, ListRange list) {
    batch_.keep_inside(indices + list.start, list.degree);
    batch_.end_row();
  });
  batch_.finish_induced();
}

template <class Index>
void NeighborSampler::draw_hop(const Index* indices, int64_t fanout, uint64_t key) {
  all_lists_ = fanout == -1;
  if (options_.kind == SamplerKind::labor)
    labor_hop(indices, fanout);
  else if (options_.kind == SamplerKind::weighted)
    weighted_hop(indices, fanout, key);
  else
    uniform_hop(indices, fanout, key);
  all_lists_ = false;
}

void NeighborSampler::begin(std::span<const int64_t> seeds, BatchKey key) {
  batch_.begin(seeds, scratch_);
  key_ = key;
  hops_ = 0;
}

std::span<const int64_t> NeighborSampler::hop() {
  if (hops_ == options_.fanouts.size()) throw Error(ErrorKind::argument, "all hops of the batch were drawn");
  const uint64_t key = hop_key(options_.seed, key_, hops_);
  with_indices(topology_, [&](const auto* indices) { draw_hop(indices, options_.fanouts[hops_], key); });
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
  while (hops_ < options_.fanouts.size()) hop();
  return finish();
}

}  // namespace outcrop
