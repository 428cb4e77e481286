// Uniform neighbour sampling of one mini-batch (GraphSAGE; DiskGNN section 2), in NeighborLoader's
// conventions: seeds first, then the nodes first met in each hop; within a hop ascending by node id, which
// lets rows be read and packed in one direction. Each node is expanded once, in the hop after it was met.
//
// What is drawn for a node depends on (seed, split, epoch, batch, hop, node) and nothing else: not on
// threads, not on the other nodes, not on where the topology lives.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"
#include "graph/relabel.h"

namespace outcrop {

// CSC topology: in-neighbours of v are indices[indptr[v]..indptr[v + 1]). Indices are 32 or 64 bits wide.
struct Topology {
  const int64_t* indptr = nullptr;
  const uint32_t* indices32 = nullptr;
  const int64_t* indices64 = nullptr;
  int64_t num_nodes = 0;
  int64_t num_edges = 0;
};

// out[i] = in-neighbours of ids[i] other than itself. Neighbours of a node must be ascending.
void count_in_neighbours(const Topology& topology, std::span<const int64_t> ids, int32_t* out);

struct BatchKey {
  uint64_t split = 0, epoch = 0, batch = 0;
};

struct SampledBatch {
  std::vector<int64_t> n_id;
  std::vector<int32_t> rowptr, col;
  std::vector<int64_t> nodes_per_hop, edges_per_hop;
};

struct SamplerOptions {
  std::vector<int64_t> fanouts;  // per hop; -1 = all neighbours
  bool replace = false;
  uint64_t seed = 0;
  uint64_t max_batch_bytes = UINT64_MAX;  // memory one batch may use while it is sampled
};

// Sampling of one batch at a time; keeps its scratch memory. One per thread.
class NeighborSampler {
 public:
  NeighborSampler(Topology topology, SamplerOptions options);
  // Throws Error(argument) for seeds out of range or repeated, Error(format) for a damaged topology,
  // Error(budget) where the batch would need more than max_batch_bytes.
  SampledBatch sample(std::span<const int64_t> seeds, BatchKey key);

 private:
  template <class Index>
  void sample_hop(const Index* indices, SampledBatch& batch, size_t hop, uint64_t key);
  int64_t draw_positions(int64_t node, int64_t fanout, uint64_t key);
  void draw_distinct(RandomStream& random, int64_t start, int64_t degree, int64_t count);
  int64_t count_edges(const SampledBatch& batch, size_t frontier_begin, int64_t fanout) const;
  int64_t degree(int64_t node) const;
  void order_new_nodes(SampledBatch& batch, size_t base, size_t edges_begin);
  void check_memory(const SampledBatch& batch, size_t more_edges) const;

  Topology topology_;
  SamplerOptions options_;
  Relabel relabel_;
  std::vector<int64_t> positions_;   // of one block of frontier nodes, into indices
  std::vector<int64_t> chosen_;      // hash set of draw_distinct for large fanouts
  std::vector<uint32_t> new_slots_;  // relabel slot of each node met in this hop
  std::vector<uint64_t> order_, order_scratch_;
};

}  // namespace outcrop
