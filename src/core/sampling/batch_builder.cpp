#include "sampling/batch_builder.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/radix.h"
#include "base/text.h"

namespace outcrop {
namespace {

[[noreturn]] void refuse_size(size_t edges) {
  throw Error(ErrorKind::argument,
              "a mini-batch of " + std::to_string(edges) +
                  " edges is too large (2^31 is the limit); lower batch size or fanouts");
}

}  // namespace

void BatchBuilder::begin(std::span<const int64_t> seeds, BatchScratch& scratch) {
  clear();
  begin_relation(0);
  scratch_ = &scratch;
  Relabel& relabel = scratch.relabel;
  kept_.clear();
  hop_edges_ = 0;
  relabel.clear();
  check_memory(seeds.size());
  relabel.reserve(seeds.size());
  size_t type = 0;
  for (int64_t seed : seeds) {
    if (seed < 0 || seed >= num_nodes_)
      throw Error(ErrorKind::argument,
                  "seed node " + std::to_string(seed) + " is not in 0.." + std::to_string(num_nodes_ - 1));
    if (!relabel.insert(static_cast<uint64_t>(seed), static_cast<int32_t>(n_id_.size())).is_new)
      throw Error(ErrorKind::argument,
                  "seed node " + std::to_string(seed) + " stands twice in one mini-batch");
    n_id_.push_back(seed);
    while (seed >= relations_->first_node(type + 1)) ++type;
    if (seed < relations_->first_node(type))
      throw Error(ErrorKind::argument, "seed node " + std::to_string(seed) +
                                           " stands behind one of a later node type: seeds go by node type");
  }
  rowptr_.push_back(0);
  hop_nodes_ = 0;
  end_nodes_of_hop();
}

// Where the node types of the nodes from hop_nodes_ on begin.
void BatchBuilder::end_nodes_of_hop() {
  if (type_begin_.empty()) type_begin_.push_back(0);
  const auto begin = n_id_.begin() + static_cast<ptrdiff_t>(hop_nodes_);
  for (size_t t = 1; t < relations_->num_types(); ++t) {
    const int64_t first = relations_->first_node(t);
    const auto at = std::partition_point(begin, n_id_.end(), [first](int64_t id) { return id < first; });
    type_begin_.push_back(static_cast<size_t>(at - n_id_.begin()));
  }
  type_begin_.push_back(n_id_.size());
  nodes_per_hop_.push_back(static_cast<int64_t>(n_id_.size() - hop_nodes_));
  most_rows_ = rowptr_.size();
  for (size_t r = 0; r < relations_->size(); ++r) {
    const auto [first, end] = frontier_of((*relations_)[r].target);
    most_rows_ += end - first;
  }
}

void BatchBuilder::refuse_source(int64_t id) const {
  if (relations_->is_single()) refuse_neighbor(id, num_nodes_);
  throw Error(ErrorKind::format, "the topology is damaged: neighbour " + std::to_string(id) +
                                     " where the sources are " + std::to_string(sources_.first) + ".." +
                                     std::to_string(sources_.first + static_cast<int64_t>(sources_.count)) +
                                     "; run outcrop verify");
}

void BatchBuilder::enter(BatchScratch& scratch) {
  scratch_ = &scratch;
  scratch.relabel.clear();
  scratch.relabel.reserve(n_id_.size());
  for (size_t i = 0; i < n_id_.size(); ++i)
    scratch.relabel.insert(static_cast<uint64_t>(n_id_[i]), static_cast<int32_t>(i));
}

// What several types add: rows beyond one per node, and all of it once more, in order of types.
size_t BatchBuilder::bytes_by_type(size_t nodes, size_t edges) const {
  return most_rows_ * 8 + nodes * 8 + edges * (with_positions_ ? 12 : 4);
}

void BatchBuilder::check_memory(size_t more_edges, size_t extra_bytes) const {
  const size_t nodes = n_id_.size() + more_edges, edges = col_.size() + more_edges;
  // n_id + relabel table (new, and half as large, old, while it grows) + rowptr, then col, new slots and the
  // two sort buffers. The table that earlier batches left does not count: whether a batch fits must not
  // depend on its thread.
  const size_t bytes = nodes * 12 + Relabel::bytes_for(nodes) / 2 * 3 + edges * 4 + more_edges * 20 +
                       extra_bytes + (with_positions_ ? edges * sizeof(int64_t) : 0) +
                       (relations_->is_single() ? 0 : bytes_by_type(nodes, edges));
  most_bytes_ = std::max<uint64_t>(most_bytes_, bytes);
  if (bytes > max_batch_bytes_)
    throw Error(ErrorKind::budget,
                "sampling one mini-batch with " + std::to_string(edges) + " edges needs " +
                    least_bytes(bytes) + ", " + exact_bytes(max_batch_bytes_) +
                    " are set aside for it; raise the memory budget, or lower batch size or fanouts");
}

void BatchBuilder::reserve_hop(int64_t edges) {
  const auto more = static_cast<size_t>(edges);
  hop_nodes_ = n_id_.size();
  hop_edges_ = col_.size();
  check_memory(more);
  if (hop_edges_ + more > INT32_MAX || hop_nodes_ + more > INT32_MAX) refuse_size(hop_edges_ + more);
  col_.reserve(hop_edges_ + more);
  if (with_positions_) positions_.reserve(hop_edges_ + more);
  n_id_.reserve(hop_nodes_ + more);
  scratch_->relabel.reserve(hop_nodes_ + more);
  scratch_->new_slots.clear();
}

void BatchBuilder::finish_known_hop() {
  order_new_nodes();
  end_nodes_of_hop();
  edges_per_hop_.push_back(static_cast<int64_t>(col_.size() - hop_edges_));
}

void BatchBuilder::end_row() {
  const size_t edges = col_.size() + kept_.size();
  if (edges > INT32_MAX) refuse_size(edges);
  rowptr_.push_back(static_cast<int32_t>(edges));
}

void BatchBuilder::finish_hop() {
  constexpr size_t kAhead = 32;
  check_kept();
  reserve_hop(static_cast<int64_t>(kept_.size()));
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (i + kAhead < kept_.size()) scratch_->relabel.prefetch(static_cast<uint64_t>(kept_[i + kAhead]));
    insert(kept_[i]);
  }
  kept_.clear();
  finish_known_hop();
}

void BatchBuilder::add_positions(std::span<const int64_t> positions) {
  positions_.insert(positions_.end(), positions.begin(), positions.end());
}

void BatchBuilder::begin_induced() {
  col_.clear();
  positions_.clear();
  rowptr_.assign(1, 0);
  kept_.clear();
}

void BatchBuilder::finish_induced() {
  std::fill(edges_per_hop_.begin(), edges_per_hop_.end(), 0);
  edges_per_hop_[0] = static_cast<int64_t>(col_.size());
}

SampledBatch BatchBuilder::take() {
  SampledBatch batch;
  if (relations_->is_single()) {
    batch.nodes.push_back({std::move(n_id_), std::move(nodes_per_hop_)});
    batch.edges.push_back(
        {std::move(rowptr_), std::move(col_), std::move(edges_per_hop_), std::move(positions_)});
  } else {
    batch = by_type();
  }
  clear();
  return batch;
}

void BatchBuilder::clear() {
  n_id_ = {}, rowptr_ = {}, col_ = {}, positions_ = {};
  nodes_per_hop_ = {}, edges_per_hop_ = {}, type_begin_ = {};
}

SampledBatch BatchBuilder::by_type() const {
  const size_t types = relations_->num_types(), hops = edges_per_hop_.size();
  SampledBatch out;
  out.nodes.resize(types);
  out.edges.resize(relations_->size());
  std::vector<int64_t> moved;  // of each hop and node type: by how much its local ids fall
  for (size_t h = 0; h <= hops; ++h)
    for (size_t t = 0; t < types; ++t) {
      const size_t begin = type_begin_[h * types + t], end = type_begin_[h * types + t + 1];
      SampledNodes& nodes = out.nodes[t];
      moved.push_back(static_cast<int64_t>(begin - nodes.ids.size()));
      nodes.ids.reserve(nodes.ids.size() + end - begin);
      for (size_t i = begin; i < end; ++i) nodes.ids.push_back(n_id_[i] - relations_->first_node(t));
      nodes.per_hop.push_back(static_cast<int64_t>(end - begin));
    }
  size_t row = 0;
  for (size_t h = 0; h < hops; ++h)
    for (size_t r = 0; r < relations_->size(); ++r) {
      const auto rows = static_cast<size_t>(out.nodes[(*relations_)[r].target].per_hop[h]);
      add_rows(out.edges[r], {h, r, row, rows}, moved);
      row += rows;
    }
  return out;
}

// Appends the rows of one hop and edge type.
void BatchBuilder::add_rows(SampledEdges& edges, Rows rows, const std::vector<int64_t>& moved) const {
  const size_t types = relations_->num_types();
  const Relation& relation = (*relations_)[rows.relation];
  const auto begin = static_cast<size_t>(rowptr_[rows.first]);
  const auto end = static_cast<size_t>(rowptr_[rows.first + rows.count]);
  if (edges.rowptr.empty()) edges.rowptr.push_back(0);
  const int32_t by = edges.rowptr.back() - rowptr_[rows.first];
  edges.rowptr.reserve(edges.rowptr.size() + rows.count);
  for (size_t i = 1; i <= rows.count; ++i) edges.rowptr.push_back(rowptr_[rows.first + i] + by);
  edges.per_hop.push_back(static_cast<int64_t>(end - begin));
  edges.col.reserve(edges.col.size() + end - begin);
  for (size_t e = begin; e < end; ++e) {
    const auto local = static_cast<size_t>(col_[e]);
    size_t hop = rows.hop + 1;  // in which the source was met, at the latest
    while (local < type_begin_[hop * types]) --hop;
    edges.col.push_back(static_cast<int32_t>(col_[e] - moved[hop * types + relation.source]));
  }
  if (!with_positions_) return;
  edges.positions.reserve(edges.positions.size() + end - begin);
  for (size_t e = begin; e < end; ++e) {
    const int64_t position = positions_[e] - relation.first_edge;
    if (position < 0 || position >= relation.num_edges)
      throw Error(ErrorKind::format, "the topology is damaged: a list of edge type " +
                                         std::to_string(rows.relation) + " has edge " +
                                         std::to_string(positions_[e]) + " of another; run outcrop verify");
    edges.positions.push_back(position);
  }
}

// Renumbers the nodes met in this hop (local ids from hop_nodes_, in order of discovery) ascending by node
// id.
void BatchBuilder::order_new_nodes() {
  auto& [relabel, new_slots, order, order_scratch] = *scratch_;
  const size_t base = hop_nodes_, count = n_id_.size() - base;
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<uint64_t>(num_nodes_)));
  const auto index_bits = static_cast<unsigned>(std::bit_width(count));
  order.resize(count);
  if (bits + index_bits <= 64) {
    for (size_t i = 0; i < count; ++i) order[i] = static_cast<uint64_t>(n_id_[base + i]) << index_bits | i;
    radix_sort(order, order_scratch, index_bits, index_bits + bits);
    for (auto& o : order) o &= (uint64_t{1} << index_bits) - 1;
  } else {
    for (size_t i = 0; i < count; ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](uint64_t a, uint64_t b) { return n_id_[base + a] < n_id_[base + b]; });
  }
  order_scratch.resize(count);  // discovery rank -> rank by id
  std::vector<uint64_t>& rank = order_scratch;
  for (size_t i = 0; i < count; ++i) rank[order[i]] = i;
  for (size_t i = 0; i < count; ++i) relabel.local(new_slots[i]) = static_cast<int32_t>(base + rank[i]);
  for (size_t e = hop_edges_; e < col_.size(); ++e)
    if (const auto c = static_cast<size_t>(col_[e]); c >= base)
      col_[e] = static_cast<int32_t>(base + rank[c - base]);
  for (size_t i = 0; i < count; ++i) order[i] = static_cast<uint64_t>(n_id_[base + order[i]]);
  for (size_t i = 0; i < count; ++i) n_id_[base + i] = static_cast<int64_t>(order[i]);
}

}  // namespace outcrop
