#include "graph/sampler.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "base/radix.h"

namespace outcrop {
namespace {

constexpr size_t kBlockNodes = 64;     // frontier nodes whose memory accesses are overlapped
constexpr int64_t kLinearSearch = 32;  // fanouts up to this look for repeats by scanning

uint64_t hop_key(uint64_t seed, BatchKey key, size_t hop) {
  uint64_t k = mix64(seed);
  for (uint64_t part : {key.split, key.epoch, key.batch, static_cast<uint64_t>(hop)}) k = mix64(k ^ part);
  return k;
}

}  // namespace

void count_in_neighbours(const Topology& topology, std::span<const int64_t> ids, int32_t* out) {
  constexpr size_t kAhead = 16;
  auto self_loops = [](const auto* begin, const auto* end, int64_t node) {
    const auto [low, high] = std::equal_range(begin, end, static_cast<std::decay_t<decltype(*begin)>>(node));
    return high - low;
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) __builtin_prefetch(&topology.indptr[ids[i + kAhead]]);
    const int64_t node = ids[i], begin = topology.indptr[node], end = topology.indptr[node + 1];
    if (begin < 0 || end < begin || end > topology.num_edges)
      throw Error(ErrorKind::format,
                  "the topology is damaged at node " + std::to_string(node) + "; run outcrop verify");
    const int64_t own = topology.indices32
                            ? self_loops(topology.indices32 + begin, topology.indices32 + end, node)
                            : self_loops(topology.indices64 + begin, topology.indices64 + end, node);
    out[i] = static_cast<int32_t>(std::min<int64_t>(end - begin - own, INT32_MAX));
  }
}

NeighborSampler::NeighborSampler(Topology topology, SamplerOptions options)
    : topology_(topology), options_(std::move(options)) {
  if (options_.fanouts.empty()) throw Error(ErrorKind::argument, "no fanouts given");
  for (int64_t f : options_.fanouts)
    if (f < -1 || f == 0 || (f == -1 && options_.replace))
      throw Error(ErrorKind::argument, "fanout " + std::to_string(f) + " is not possible here");
}

int64_t NeighborSampler::degree(int64_t node) const {
  const int64_t begin = topology_.indptr[node], end = topology_.indptr[node + 1];
  if (begin < 0 || end < begin || end > topology_.num_edges)
    throw Error(ErrorKind::format, "the topology is damaged: the neighbours of node " + std::to_string(node) +
                                       " are said to lie at " + std::to_string(begin) + ".." +
                                       std::to_string(end) + " of " + std::to_string(topology_.num_edges) +
                                       "; run outcrop verify");
  return end - begin;
}

int64_t NeighborSampler::count_edges(const SampledBatch& batch, size_t frontier_begin, int64_t fanout) const {
  constexpr size_t kAhead = 16;
  int64_t edges = 0;
  const size_t end = batch.n_id.size();
  for (size_t i = frontier_begin; i < end; ++i) {
    if (i + kAhead < end) __builtin_prefetch(&topology_.indptr[batch.n_id[i + kAhead]]);
    const int64_t d = degree(batch.n_id[i]);
    edges += fanout == -1 ? d : options_.replace ? (d ? fanout : 0) : std::min(d, fanout);
  }
  return edges;
}

void NeighborSampler::check_memory(const SampledBatch& batch, size_t more_edges) const {
  const size_t nodes = batch.n_id.size() + more_edges, edges = batch.col.size() + more_edges;
  // n_id + relabel table (new, and half as large, old, while it grows) + rowptr, then col, new slots and the
  // two sort buffers. The table that earlier batches left does not count: whether a batch fits must not
  // depend on its thread.
  const size_t bytes = nodes * 12 + Relabel::bytes_for(nodes) / 2 * 3 + edges * 4 + more_edges * 20;
  if (bytes > options_.max_batch_bytes)
    throw Error(ErrorKind::budget,
                "sampling one mini-batch with " + std::to_string(edges) + " edges needs " +
                    std::to_string(bytes) + " bytes, " + std::to_string(options_.max_batch_bytes) +
                    " are set aside for it; raise the memory budget, or lower batch size or fanouts");
}

// Fills positions_ with `count` distinct places in [start, start + degree), degree > count: Floyd's algorithm
// (Bentley and Floyd, CACM 1987), which draws exactly `count` numbers.
void NeighborSampler::draw_distinct(RandomStream& random, int64_t start, int64_t degree, int64_t count) {
  const size_t first = positions_.size();
  if (count <= kLinearSearch) {
    for (int64_t j = degree - count; j < degree; ++j) {
      const auto t = start + static_cast<int64_t>(random.below(static_cast<uint64_t>(j) + 1));
      const auto begin = positions_.begin() + static_cast<ptrdiff_t>(first);
      positions_.push_back(std::find(begin, positions_.end(), t) == positions_.end() ? t : start + j);
    }
    return;
  }
  const size_t mask = std::bit_ceil(static_cast<size_t>(2 * count)) - 1;
  chosen_.assign(mask + 1, -1);
  auto add = [&](int64_t place) {  // false where it is there already
    size_t slot = mix64(static_cast<uint64_t>(place)) & mask;
    for (; chosen_[slot] != -1; slot = (slot + 1) & mask)
      if (chosen_[slot] == place) return false;
    chosen_[slot] = place;
    return true;
  };
  for (int64_t j = degree - count; j < degree; ++j) {
    const auto t = static_cast<int64_t>(random.below(static_cast<uint64_t>(j) + 1));
    const int64_t place = add(t) ? t : j;
    if (place == j) add(j);
    positions_.push_back(start + place);
  }
}

int64_t NeighborSampler::draw_positions(int64_t node, int64_t fanout, uint64_t key) {
  const int64_t start = topology_.indptr[node], d = topology_.indptr[node + 1] - start;
  if (d == 0) return 0;
  if (options_.replace) {
    RandomStream random(key, static_cast<uint64_t>(node));
    for (int64_t i = 0; i < fanout; ++i)
      positions_.push_back(start + static_cast<int64_t>(random.below(static_cast<uint64_t>(d))));
    return fanout;
  }
  if (fanout == -1 || d <= fanout) {
    for (int64_t i = 0; i < d; ++i) positions_.push_back(start + i);
    return d;
  }
  RandomStream random(key, static_cast<uint64_t>(node));
  draw_distinct(random, start, d, fanout);
  return fanout;
}

// Renumbers the nodes met in this hop (local ids from `base`, in order of discovery) ascending by node id.
void NeighborSampler::order_new_nodes(SampledBatch& batch, size_t base, size_t edges_begin) {
  const size_t count = batch.n_id.size() - base;
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<uint64_t>(topology_.num_nodes)));
  const auto index_bits = static_cast<unsigned>(std::bit_width(count));
  order_.resize(count);
  if (bits + index_bits <= 64) {
    for (size_t i = 0; i < count; ++i)
      order_[i] = static_cast<uint64_t>(batch.n_id[base + i]) << index_bits | i;
    radix_sort(order_, order_scratch_, index_bits, index_bits + bits);
    for (auto& o : order_) o &= (uint64_t{1} << index_bits) - 1;
  } else {
    for (size_t i = 0; i < count; ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(),
              [&](uint64_t a, uint64_t b) { return batch.n_id[base + a] < batch.n_id[base + b]; });
  }
  order_scratch_.resize(count);  // discovery rank -> rank by id
  std::vector<uint64_t>& rank = order_scratch_;
  for (size_t i = 0; i < count; ++i) rank[order_[i]] = i;
  for (size_t i = 0; i < count; ++i) relabel_.local(new_slots_[i]) = static_cast<int32_t>(base + rank[i]);
  for (size_t e = edges_begin; e < batch.col.size(); ++e)
    if (const auto c = static_cast<size_t>(batch.col[e]); c >= base)
      batch.col[e] = static_cast<int32_t>(base + rank[c - base]);
  for (size_t i = 0; i < count; ++i) order_[i] = static_cast<uint64_t>(batch.n_id[base + order_[i]]);
  for (size_t i = 0; i < count; ++i) batch.n_id[base + i] = static_cast<int64_t>(order_[i]);
}

template <class Index>
void NeighborSampler::sample_hop(const Index* indices, SampledBatch& batch, size_t hop, uint64_t key) {
  const int64_t fanout = options_.fanouts[hop];
  const size_t frontier_begin = batch.rowptr.size() - 1, base = batch.n_id.size(),
               edges_begin = batch.col.size();
  const auto hop_edges = static_cast<size_t>(count_edges(batch, frontier_begin, fanout));
  check_memory(batch, hop_edges);
  if (edges_begin + hop_edges > INT32_MAX || base + hop_edges > INT32_MAX)
    throw Error(ErrorKind::argument,
                "a mini-batch of " + std::to_string(edges_begin + hop_edges) +
                    " edges is too large (2^31 is the limit); lower batch size or fanouts");
  batch.col.reserve(edges_begin + hop_edges);
  batch.n_id.reserve(base + hop_edges);
  relabel_.reserve(base + hop_edges);
  new_slots_.clear();
  for (size_t block = frontier_begin; block < base; block += kBlockNodes) {
    const size_t block_end = std::min(base, block + kBlockNodes);
    positions_.clear();
    for (size_t i = block; i < block_end; ++i) {
      const int64_t drawn = draw_positions(batch.n_id[i], fanout, key);
      batch.rowptr.push_back(batch.rowptr.back() + static_cast<int32_t>(drawn));
    }
    for (int64_t p : positions_) __builtin_prefetch(&indices[p]);
    for (auto& p : positions_) {  // from here on the neighbour itself
      p = static_cast<int64_t>(indices[p]);
      if (static_cast<uint64_t>(p) >= static_cast<uint64_t>(topology_.num_nodes))
        throw Error(ErrorKind::format, "the topology is damaged: neighbour " + std::to_string(p) +
                                           " in a graph of " + std::to_string(topology_.num_nodes) +
                                           " nodes; run outcrop verify");
      relabel_.prefetch(static_cast<uint64_t>(p));
    }
    for (int64_t neighbour : positions_) {
      const auto next = static_cast<int32_t>(batch.n_id.size());
      const auto [slot, is_new] = relabel_.insert(static_cast<uint64_t>(neighbour), next);
      if (is_new) {
        batch.n_id.push_back(neighbour);
        new_slots_.push_back(static_cast<uint32_t>(slot));
      }
      batch.col.push_back(relabel_.local(slot));
    }
  }
  order_new_nodes(batch, base, edges_begin);
  batch.nodes_per_hop.push_back(static_cast<int64_t>(batch.n_id.size() - base));
  batch.edges_per_hop.push_back(static_cast<int64_t>(hop_edges));
}

SampledBatch NeighborSampler::sample(std::span<const int64_t> seeds, BatchKey key) {
  SampledBatch batch;
  relabel_.clear();
  check_memory(batch, seeds.size());
  relabel_.reserve(seeds.size());
  for (int64_t seed : seeds) {
    if (seed < 0 || seed >= topology_.num_nodes)
      throw Error(ErrorKind::argument, "seed node " + std::to_string(seed) + " is not in 0.." +
                                           std::to_string(topology_.num_nodes - 1));
    if (!relabel_.insert(static_cast<uint64_t>(seed), static_cast<int32_t>(batch.n_id.size())).is_new)
      throw Error(ErrorKind::argument,
                  "seed node " + std::to_string(seed) + " stands twice in one mini-batch");
    batch.n_id.push_back(seed);
  }
  batch.rowptr.push_back(0);
  batch.nodes_per_hop.push_back(static_cast<int64_t>(seeds.size()));
  for (size_t hop = 0; hop < options_.fanouts.size(); ++hop) {
    const uint64_t k = hop_key(options_.seed, key, hop);
    if (topology_.indices32)
      sample_hop(topology_.indices32, batch, hop, k);
    else
      sample_hop(topology_.indices64, batch, hop, k);
  }
  return batch;
}

}  // namespace outcrop
