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
  batch_ = {};
  scratch_ = &scratch;
  Relabel& relabel = scratch.relabel;
  kept_.clear();
  hop_edges_ = 0;
  relabel.clear();
  check_memory(seeds.size());
  relabel.reserve(seeds.size());
  for (int64_t seed : seeds) {
    if (seed < 0 || seed >= num_nodes_)
      throw Error(ErrorKind::argument,
                  "seed node " + std::to_string(seed) + " is not in 0.." + std::to_string(num_nodes_ - 1));
    if (!relabel.insert(static_cast<uint64_t>(seed), static_cast<int32_t>(batch_.n_id.size())).is_new)
      throw Error(ErrorKind::argument,
                  "seed node " + std::to_string(seed) + " stands twice in one mini-batch");
    batch_.n_id.push_back(seed);
  }
  batch_.rowptr.push_back(0);
  batch_.nodes_per_hop.push_back(static_cast<int64_t>(seeds.size()));
}

void BatchBuilder::enter(BatchScratch& scratch) {
  scratch_ = &scratch;
  scratch.relabel.clear();
  scratch.relabel.reserve(batch_.n_id.size());
  for (size_t i = 0; i < batch_.n_id.size(); ++i)
    scratch.relabel.insert(static_cast<uint64_t>(batch_.n_id[i]), static_cast<int32_t>(i));
}

void BatchBuilder::check_memory(size_t more_edges, size_t extra_bytes) const {
  const size_t nodes = batch_.n_id.size() + more_edges, edges = batch_.col.size() + more_edges;
  // n_id + relabel table (new, and half as large, old, while it grows) + rowptr, then col, new slots and the
  // two sort buffers. The table that earlier batches left does not count: whether a batch fits must not
  // depend on its thread.
  const size_t bytes =
      nodes * 12 + Relabel::bytes_for(nodes) / 2 * 3 + edges * 4 + more_edges * 20 + extra_bytes;
  most_bytes_ = std::max<uint64_t>(most_bytes_, bytes);
  if (bytes > max_batch_bytes_)
    throw Error(ErrorKind::budget,
                "sampling one mini-batch with " + std::to_string(edges) + " edges needs " +
                    least_bytes(bytes) + ", " + exact_bytes(max_batch_bytes_) +
                    " are set aside for it; raise the memory budget, or lower batch size or fanouts");
}

void BatchBuilder::reserve_hop(int64_t edges) {
  const auto more = static_cast<size_t>(edges);
  hop_nodes_ = batch_.n_id.size();
  hop_edges_ = batch_.col.size();
  check_memory(more);
  if (hop_edges_ + more > INT32_MAX || hop_nodes_ + more > INT32_MAX) refuse_size(hop_edges_ + more);
  batch_.col.reserve(hop_edges_ + more);
  batch_.n_id.reserve(hop_nodes_ + more);
  scratch_->relabel.reserve(hop_nodes_ + more);
  scratch_->new_slots.clear();
}

void BatchBuilder::finish_known_hop() {
  order_new_nodes();
  batch_.nodes_per_hop.push_back(static_cast<int64_t>(batch_.n_id.size() - hop_nodes_));
  batch_.edges_per_hop.push_back(static_cast<int64_t>(batch_.col.size() - hop_edges_));
}

void BatchBuilder::end_row() {
  const size_t edges = batch_.col.size() + kept_.size();
  if (edges > INT32_MAX) refuse_size(edges);
  batch_.rowptr.push_back(static_cast<int32_t>(edges));
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

void BatchBuilder::begin_induced() {
  batch_.col.clear();
  batch_.rowptr.assign(1, 0);
  kept_.clear();
}

void BatchBuilder::finish_induced() {
  std::fill(batch_.edges_per_hop.begin(), batch_.edges_per_hop.end(), 0);
  batch_.edges_per_hop[0] = static_cast<int64_t>(batch_.col.size());
}

SampledBatch BatchBuilder::take() { return std::exchange(batch_, {}); }

// Renumbers the nodes met in this hop (local ids from hop_nodes_, in order of discovery) ascending by node
// id.
void BatchBuilder::order_new_nodes() {
  auto& [relabel, new_slots, order, order_scratch] = *scratch_;
  const size_t base = hop_nodes_, count = batch_.n_id.size() - base;
  const auto bits = static_cast<unsigned>(std::bit_width(static_cast<uint64_t>(num_nodes_)));
  const auto index_bits = static_cast<unsigned>(std::bit_width(count));
  order.resize(count);
  if (bits + index_bits <= 64) {
    for (size_t i = 0; i < count; ++i)
      order[i] = static_cast<uint64_t>(batch_.n_id[base + i]) << index_bits | i;
    radix_sort(order, order_scratch, index_bits, index_bits + bits);
    for (auto& o : order) o &= (uint64_t{1} << index_bits) - 1;
  } else {
    for (size_t i = 0; i < count; ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](uint64_t a, uint64_t b) { return batch_.n_id[base + a] < batch_.n_id[base + b]; });
  }
  order_scratch.resize(count);  // discovery rank -> rank by id
  std::vector<uint64_t>& rank = order_scratch;
  for (size_t i = 0; i < count; ++i) rank[order[i]] = i;
  for (size_t i = 0; i < count; ++i) relabel.local(new_slots[i]) = static_cast<int32_t>(base + rank[i]);
  for (size_t e = hop_edges_; e < batch_.col.size(); ++e)
    if (const auto c = static_cast<size_t>(batch_.col[e]); c >= base)
      batch_.col[e] = static_cast<int32_t>(base + rank[c - base]);
  for (size_t i = 0; i < count; ++i) order[i] = static_cast<uint64_t>(batch_.n_id[base + order[i]]);
  for (size_t i = 0; i < count; ++i) batch_.n_id[base + i] = static_cast<int64_t>(order[i]);
}

}  // namespace outcrop
