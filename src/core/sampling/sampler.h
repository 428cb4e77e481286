// Sampling of one mini-batch from a topology in memory (or mapped). Samplers:
//   neighbor  GraphSAGE's uniform draw of `fanout` neighbours per node (DiskGNN section 2)
//   labor     LABOR-0: random numbers of the neighbours shared by the whole batch (draw.h)
//   weighted  without replacement in proportion to edge weights (draw.h)
//   shadow    ShaDow: the nodes that `neighbor` reaches, and all edges among them
//
// What is drawn for a node depends on (seed, split, epoch, batch, hop, edge type, node) and nothing else: not on
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
  std::vector<std::vector<int64_t>> fanouts;  // per edge type, per hop; -1 = all neighbours, 0 = none
  bool replace = false;
  uint64_t seed = 0;
  uint64_t max_batch_bytes = UINT64_MAX;  // memory one batch may use while it is sampled
  uint64_t dependency = 1;                // of labor: batches that a node's random number stays for (draw.h)
  bool positions = false;                 // of edges are kept, and those drawn from one list rise
  size_t hops() const { return fanouts.front().size(); }
};

// Throws Error(argument) for what no sampler can do.
void check_options(const SamplerOptions& options, const Relations& relations, bool has_weights);

// What a hop draws of one edge type: lists [first, end) of all that it draws of, in order. List `first` is that of
// node `node` of the frontier; a list's number is its node's id plus `shift`.
struct HopPart {
  size_t relation = 0, first = 0, end = 0, node = 0;
  int64_t shift = 0;
  int64_t fanout = 0;
  uint64_t key = 0;
  bool weighted = false;  // in proportion to weights, which lie `weight_shift` behind the edges
  int64_t weight_shift = 0;
  int64_t first_edge = 0, end_edge = 0;  // where the edges of the edge type lie
};

// The parts of hop `hop` that have lists, edge type by edge type. List numbers rise.
std::vector<HopPart> parts_of_hop(const BatchBuilder& batch, const SamplerOptions& options, BatchKey key,
                                  size_t hop);

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
  void draw_hop(const Index* indices);
  template <class Index>
  void draw_part(const Index* indices, const HopPart& part);
  template <class Index>
  void uniform_part(const Index* indices, const HopPart& part);
  template <class Index>
  void labor_part(const Index* indices, const HopPart& part);
  template <class Index>
  void weighted_part(const Index* indices, const HopPart& part);
  template <class Index>
  void induce(const Index* indices);
  template <class Index, class Fn>
  void for_each_list(const Index* indices, std::span<const int64_t> nodes, const HopPart& part, Fn&& fn);
  std::span<const int64_t> nodes_of(const HopPart& part) const {
    return batch_.frontier().subspan(part.node, part.end - part.first);
  }
  int64_t count_edges(const HopPart& part) const;

  Topology topology_;
  SamplerOptions options_;
  BatchScratch scratch_;
  BatchBuilder batch_;
  BatchKey key_;
  size_t hops_ = 0;  // drawn
  UniformDraw draw_;
  Race race_;
  bool all_lists_ = false;          // this part keeps whole lists, however long
  std::vector<HopPart> parts_;      // of this hop
  std::vector<int64_t> positions_;  // of one block of frontier nodes, into indices
};

}  // namespace outcrop
