// A mini-batch while it is sampled, in NeighborLoader's conventions: seeds first, then the nodes first met in
// each hop; within a hop ascending by node id, which lets rows be read and packed in one direction. Each node
// is expanded once, in the hop after it was met.
//
// A hop goes edge type by edge type, and over the nodes of its target type in the order of frontier(). Ids are global
// until the end: within a hop they rise, so a node type is a range of each hop. take() sorts nodes by node type and
// edges by edge type, and then everything counts from 0 within its type. With one type of each nothing moves.
//
// Protocol: begin(seeds); per hop and edge type: begin_relation(), and for each node in order: keep() its neighbours,
// end_row(); after all edge types finish_hop(). Afterwards, for induced subgraphs: begin_induced(), per node
// keep_inside(), end_row(); finish_induced(). take() ends it.
//
// Finding repeats takes much more memory than a batch has, but only while nodes are entered. It lies in a
// BatchScratch, which stays for the next batch, and which batches that wait for their lists need not have:
// one that goes on in another says enter() first.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sampling/relabel.h"
#include "sampling/topology.h"

namespace outcrop {

struct SampledNodes {  // of one node type
  std::vector<int64_t> ids, per_hop;
};

struct SampledEdges {                // of one edge type: a row per node of its target type that was expanded
  std::vector<int32_t> rowptr, col;  // col counts within the nodes of the source type
  std::vector<int64_t> per_hop;
  std::vector<int64_t>
      positions;  // of the edges within their type, in the order of col, where they were asked for
};

struct SampledBatch {
  std::vector<SampledNodes> nodes;  // per node type
  std::vector<SampledEdges> edges;  // per edge type
};

struct BatchScratch {
  Relabel relabel;                  // of all nodes met
  std::vector<uint32_t> new_slots;  // in it, of each node met in this hop
  std::vector<uint64_t> order, order_scratch;
};

class BatchBuilder {
 public:
  BatchBuilder(std::shared_ptr<const Relations> relations, uint64_t max_batch_bytes, bool with_positions)
      : relations_(std::move(relations)),
        num_nodes_(relations_->num_nodes()),
        max_batch_bytes_(max_batch_bytes),
        with_positions_(with_positions) {}
  // Seeds of one node type in any order, types rising. Throws Error(argument) for others, for seeds out of range
  // and for repeated ones.
  void begin(std::span<const int64_t> seeds, BatchScratch& scratch);
  // Goes on in `scratch`, which may have served another batch.
  void enter(BatchScratch& scratch);

  std::span<const int64_t> frontier() const {
    return std::span(n_id_).subspan(type_begin_[type_begin_.size() - 1 - relations_->num_types()]);
  }
  // Nodes of one type: [first, second) of frontier().
  std::pair<size_t, size_t> frontier_of(size_t type) const {
    const size_t* begins = type_begin_.data() + type_begin_.size() - 1 - relations_->num_types();
    return {begins[type] - begins[0], begins[type + 1] - begins[0]};
  }
  const std::vector<int64_t>& nodes() const { return n_id_; }
  const Relations& relations() const { return *relations_; }
  // From now on neighbours are sources of this edge type.
  void begin_relation(size_t relation) {
    const size_t source = (*relations_)[relation].source;
    sources_ = {relations_->first_node(source), static_cast<uint64_t>(relations_->num_nodes(source))};
  }

  // Appends neighbours of the current node, or those of them that `wanted` accepts. Throws Error(format) for
  // one that is no node of the source type.
  template <class Index, class Wanted>
  void keep_if(const Index* neighbours, int64_t n, Wanted&& wanted) {
    const Sources sources = sources_;
    for (int64_t i = 0; i < n; ++i) {
      const auto id = static_cast<uint64_t>(neighbours[i]);
      if (!sources.has(static_cast<int64_t>(id))) refuse_source(static_cast<int64_t>(id));
      if (wanted(id)) kept_.push_back(static_cast<int64_t>(id));
    }
  }
  // The same, and where they lie: neighbour i at position first + i.
  template <class Index, class Wanted>
  void keep_if_at(const Index* neighbours, int64_t n, int64_t first, Wanted&& wanted) {
    int64_t position = first;
    keep_if(neighbours, n, [&](uint64_t id) {
      const int64_t at = position++;
      if (!wanted(id)) return false;
      positions_.push_back(at);
      return true;
    });
  }
  template <class Index>
  void keep(const Index* neighbours, int64_t n) {
    keep_if(neighbours, n, [](uint64_t) { return true; });
  }
  // Where the neighbours kept next lie among all edges, in their order; where positions are asked for.
  void add_positions(std::span<const int64_t> positions);
  bool with_positions() const { return with_positions_; }
  void end_row();
  void reserve_kept(size_t neighbours) { kept_.reserve(neighbours); }  // of this hop
  void finish_hop();
  // Until the next hop nothing is kept: gives its memory back.
  void release_kept() { kept_ = {}; }

  void begin_induced();
  template <class Index>
  void keep_inside(const Index* neighbours, int64_t n, int64_t first);  // the first lies at position `first`
  void finish_induced();

  // For samplers that know a hop's edges before they draw: room for them, then insert_block per block of
  // nodes (ids of the neighbours, in place), then finish_known_hop.
  void reserve_hop(int64_t edges);
  template <class Index>
  void insert_block(const Index* indices, std::vector<int64_t>& positions);
  void end_row(int64_t drawn) { rowptr_.push_back(rowptr_.back() + static_cast<int32_t>(drawn)); }
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
  struct Sources {  // ids of a node type
    int64_t first = 0;
    uint64_t count = 0;
    bool has(int64_t id) const { return static_cast<uint64_t>(id - first) < count; }
  };
  [[noreturn]] void refuse_source(int64_t id) const;
  void insert(int64_t neighbour) {
    const auto next = static_cast<int32_t>(n_id_.size());
    const auto [slot, is_new] = scratch_->relabel.insert(static_cast<uint64_t>(neighbour), next);
    if (is_new) {
      n_id_.push_back(neighbour);
      scratch_->new_slots.push_back(static_cast<uint32_t>(slot));
    }
    col_.push_back(scratch_->relabel.local(slot));
  }
  void order_new_nodes();
  void end_nodes_of_hop();
  size_t bytes_by_type(size_t nodes, size_t edges) const;
  struct Rows {  // of a hop and edge type: `count` from row `first` on
    size_t hop, relation, first, count;
  };
  void clear();
  SampledBatch by_type() const;
  void add_rows(SampledEdges& edges, Rows rows, const std::vector<int64_t>& moved) const;

  std::shared_ptr<const Relations> relations_;
  int64_t num_nodes_;
  uint64_t max_batch_bytes_;
  bool with_positions_;
  Sources sources_;  // of the edge type whose lists come
  mutable uint64_t most_bytes_ = 0;
  std::vector<int64_t> n_id_;
  std::vector<int32_t> rowptr_, col_;  // rows hop by hop, then edge type by edge type; local ids of all types
  std::vector<int64_t> positions_;
  std::vector<int64_t> nodes_per_hop_, edges_per_hop_;
  std::vector<size_t> type_begin_;  // in n_id_, of each hop and node type, and the end
  size_t most_rows_ = 0;            // when the next hop is drawn
  BatchScratch* scratch_ = nullptr;
  size_t hop_nodes_ = 0, hop_edges_ = 0;  // nodes and edges before this hop
  std::vector<int64_t> kept_;             // neighbours of the hop's nodes, row by row
};

template <class Index>
void BatchBuilder::keep_inside(const Index* neighbours, int64_t n, int64_t first) {
  const Sources sources = sources_;
  constexpr int64_t kBlock = 64;  // whose memory accesses are overlapped
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    for (int64_t i = begin; i < end; ++i) {
      const auto id = static_cast<uint64_t>(neighbours[i]);
      if (!sources.has(static_cast<int64_t>(id))) refuse_source(static_cast<int64_t>(id));
      scratch_->relabel.prefetch(id);
    }
    for (int64_t i = begin; i < end; ++i)
      if (const int32_t local = scratch_->relabel.find(static_cast<uint64_t>(neighbours[i])); local >= 0) {
        col_.push_back(local);
        if (with_positions_) positions_.push_back(first + i);
      }
  }
}

template <class Index>
void BatchBuilder::insert_block(const Index* indices, std::vector<int64_t>& positions) {
  for (int64_t p : positions) __builtin_prefetch(&indices[p]);
  if (with_positions_) add_positions(positions);
  const Sources sources = sources_;
  for (auto& p : positions) {  // from here on the neighbour itself
    p = static_cast<int64_t>(indices[p]);
    if (!sources.has(p)) refuse_source(p);
    scratch_->relabel.prefetch(static_cast<uint64_t>(p));
  }
  for (int64_t neighbour : positions) insert(neighbour);
}

}  // namespace outcrop
