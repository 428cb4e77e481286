// A mini-batch while it is sampled, in NeighborLoader's conventions: seeds first, then the nodes first met in
// each hop; within a hop ascending by node id, which lets rows be read and packed in one direction. Each node
// is expanded once, in the hop after it was met.
//
// Protocol: begin(seeds); per hop, for each node of frontier() in order: keep() its neighbours, end_row();
// then finish_hop(). Afterwards, for induced subgraphs: begin_induced(), per node keep_inside(), end_row();
// finish_induced(). take() ends it.
//
// Finding repeats takes much more memory than a batch has, but only while nodes are entered. It lies in a
// BatchScratch, which stays for the next batch, and which batches that wait for their lists need not have:
// one that goes on in another says enter() first.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/relabel.h"
#include "sampling/topology.h"

namespace outcrop {

struct SampledBatch {
  std::vector<int64_t> n_id;
  std::vector<int32_t> rowptr, col;
  std::vector<int64_t> nodes_per_hop, edges_per_hop;
};

struct BatchScratch {
  Relabel relabel;                  // of all nodes met
  std::vector<uint32_t> new_slots;  // in it, of each node met in this hop
  std::vector<uint64_t> order, order_scratch;
};

class BatchBuilder {
 public:
  BatchBuilder(int64_t num_nodes, uint64_t max_batch_bytes)
      : num_nodes_(num_nodes), max_batch_bytes_(max_batch_bytes) {}
  // Throws Error(argument) for seeds out of range or repeated.
  void begin(std::span<const int64_t> seeds, BatchScratch& scratch);
  // Goes on in `scratch`, which may have served another batch.
  void enter(BatchScratch& scratch);

  std::span<const int64_t> frontier() const {
    return std::span(batch_.n_id).subspan(batch_.rowptr.size() - 1);
  }
  const std::vector<int64_t>& nodes() const { return batch_.n_id; }

  // Appends neighbours of the current node, or those of them that `wanted` accepts. Throws Error(format) for
  // one that is no node.
  template <class Index, class Wanted>
  void keep_if(const Index* neighbours, int64_t n, Wanted&& wanted) {
    for (int64_t i = 0; i < n; ++i) {
      const auto id = static_cast<uint64_t>(neighbours[i]);
      if (id >= static_cast<uint64_t>(num_nodes_)) refuse_neighbor(static_cast<int64_t>(id), num_nodes_);
      if (wanted(id)) kept_.push_back(static_cast<int64_t>(id));
    }
  }
  template <class Index>
  void keep(const Index* neighbours, int64_t n) {
    keep_if(neighbours, n, [](uint64_t) { return true; });
  }
  void end_row();
  void reserve_kept(size_t neighbours) { kept_.reserve(neighbours); }  // of this hop
  void finish_hop();
  // Until the next hop nothing is kept: gives its memory back.
  void release_kept() { kept_ = {}; }

  void begin_induced();
  template <class Index>
  void keep_inside(const Index* neighbours, int64_t n);
  void finish_induced();

  // For samplers that know a hop's edges before they draw: room for them, then insert_block per block of
  // nodes (ids of the neighbours, in place), then finish_known_hop.
  void reserve_hop(int64_t edges);
  template <class Index>
  void insert_block(const Index* indices, std::vector<int64_t>& positions);
  void end_row(int64_t drawn) { batch_.rowptr.push_back(batch_.rowptr.back() + static_cast<int32_t>(drawn)); }
  void finish_known_hop();

  // Throws Error(budget) where `more_edges` edges, besides those there are, and `extra_bytes` exceed the
  // memory of one batch.
  void check_memory(size_t more_edges, size_t extra_bytes = 0) const;
  void check_kept(size_t more = 0, size_t extra_bytes = 0) const {
    check_memory(kept_.size() + more, (kept_.size() + more) * sizeof(int64_t) + extra_bytes);
  }
  size_t kept() const { return kept_.size(); }
  uint64_t most_bytes() const { return most_bytes_; }  // that check_memory met so far
  SampledBatch take();

 private:
  void insert(int64_t neighbour) {
    const auto next = static_cast<int32_t>(batch_.n_id.size());
    const auto [slot, is_new] = scratch_->relabel.insert(static_cast<uint64_t>(neighbour), next);
    if (is_new) {
      batch_.n_id.push_back(neighbour);
      scratch_->new_slots.push_back(static_cast<uint32_t>(slot));
    }
    batch_.col.push_back(scratch_->relabel.local(slot));
  }
  void order_new_nodes();

  int64_t num_nodes_;
  uint64_t max_batch_bytes_;
  mutable uint64_t most_bytes_ = 0;
  SampledBatch batch_;
  BatchScratch* scratch_ = nullptr;
  size_t hop_nodes_ = 0, hop_edges_ = 0;  // nodes and edges before this hop
  std::vector<int64_t> kept_;             // neighbours of the hop's nodes, row by row
};

template <class Index>
void BatchBuilder::keep_inside(const Index* neighbours, int64_t n) {
  constexpr int64_t kBlock = 64;  // whose memory accesses are overlapped
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t i = begin; i < end; ++i) {
      const auto id = static_cast<uint64_t>(neighbours[i]);
      if (id >= static_cast<uint64_t>(num_nodes_)) refuse_neighbor(static_cast<int64_t>(id), num_nodes_);
      scratch_->relabel.prefetch(id);
    }
    for (int64_t i = begin; i < end; ++i)
      if (const int32_t local = scratch_->relabel.find(static_cast<uint64_t>(neighbours[i])); local >= 0)
        batch_.col.push_back(local);
  }
}

template <class Index>
void BatchBuilder::insert_block(const Index* indices, std::vector<int64_t>& positions) {
  for (int64_t p : positions) __builtin_prefetch(&indices[p]);
  for (auto& p : positions) {  // from here on the neighbour itself
    p = static_cast<int64_t>(indices[p]);
    if (static_cast<uint64_t>(p) >= static_cast<uint64_t>(num_nodes_)) refuse_neighbor(p, num_nodes_);
    scratch_->relabel.prefetch(static_cast<uint64_t>(p));
  }
  for (int64_t neighbour : positions) insert(neighbour);
}

}  // namespace outcrop
