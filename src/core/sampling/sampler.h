// Sampling of one mini-batch from a topology in memory (or mapped). Samplers:
//   neighbor  GraphSAGE's uniform draw of `fanout` neighbours per node (DiskGNN section 2)
//   labor     LABOR-0: random numbers of the neighbours shared by the whole batch (draw.h)
//   weighted  without replacement in proportion to edge weights (draw.h)
//   shadow    ShaDow: the nodes that `neighbor` reaches, and all edges among them
//
// What is drawn for a node depends on (seed, split, epoch, batch, hop, node) and nothing else: not on
// threads, not on the other nodes, not on where the topology lies (graph/wave.h reads it by pages).
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sampling/batch_builder.h"
#include "sampling/draw.h"
#include "sampling/topology.h"

namespace outcrop {

struct SamplerOptions {
  SamplerKind kind = SamplerKind::neighbor;
  std::vector<int64_t> fanouts;  // per hop; -1 = all neighbours
  bool replace = false;
  uint64_t seed = 0;
  uint64_t max_batch_bytes = UINT64_MAX;  // memory one batch may use while it is sampled
  uint64_t dependency = 1;                // of labor: batches that a node's random number stays for (draw.h)
};

// Throws Error(argument) for what no sampler can do.
void check_options(const SamplerOptions& options, bool has_weights);

// Keeps its scratch memory. One per thread.
class NeighborSampler {
 public:
  NeighborSampler(Topology topology, SamplerOptions options);
  // Throws Error(argument) for seeds out of range or repeated, Error(format) for a damaged topology,
  // Error(budget) where the batch would need more than max_batch_bytes.
  SampledBatch sample(std::span<const int64_t> seeds, BatchKey key);
  // The same in steps, so that rows can be fetched as soon as a hop is drawn: begin, hop as often as there
  // are fanouts, finish. The nodes that a hop gives are those first met in it, ascending; they stay until the
  // next call.
  void begin(std::span<const int64_t> seeds, BatchKey key);
  std::span<const int64_t> hop();
  SampledBatch finish();
  uint64_t most_batch_bytes() const { return batch_.most_bytes(); }  // that a batch has needed so far

 private:
  template <class Index>
  void draw_hop(const Index* indices, int64_t fanout, uint64_t key);
  template <class Index>
  void uniform_hop(const Index* indices, int64_t fanout, uint64_t key);
  template <class Index>
  void labor_hop(const Index* indices, int64_t fanout);
  template <class Index>
  void weighted_hop(const Index* indices, int64_t fanout, uint64_t key);
  template <class Index>
  void induce(const Index* indices);
  template <class Index, class Fn>
  void for_each_list(const Index* indices, std::span<const int64_t> nodes, Fn&& fn);
  int64_t count_edges(int64_t fanout) const;

  Topology topology_;
  SamplerOptions options_;
  BatchScratch scratch_;
  BatchBuilder batch_;
  BatchKey key_;
  size_t hops_ = 0;  // drawn
  UniformDraw draw_;
  Race race_;
  bool all_lists_ = false;          // this hop keeps whole lists, however long
  std::vector<int64_t> positions_;  // of one block of frontier nodes, into indices
};

}  // namespace outcrop
