// Synthetic graphs with labels and features, produced node by node: any block of nodes can be made on its
// own, so the result does not depend on blocks, threads, machine or memory, and nothing needs sorting
// afterwards.
//
// Every node has a rank (a keyed permutation of the ids), so hot nodes are spread over the id range. The
// in-degrees are the expected ones, rounded so that they add up to exactly num_edges; the sources of a node
// are drawn without repetition and without itself.
//   sbm:  degree-corrected stochastic block model (Karrer and Newman 2011). Degrees follow a power law in the
//   rank,
//         classes are planted (rank modulo classes), a source is of the node's own class with probability
//         homophily (and by chance), and is drawn in proportion to its degree.
//   rmat: R-MAT (Chakrabarti, Zhan, Faloutsos 2004): in-degrees as expected under the quadrant probabilities,
//         sources from their conditional distribution given the target.
// Features are class means plus noise, made of integers only, so that they are the same on every machine.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/parallel.h"
#include "base/random.h"
#include "graph/permutation.h"

namespace outcrop {

struct GraphModel {
  bool rmat = false;
  int64_t num_nodes = 0, num_edges = 0;
  int64_t num_classes = 1;
  int64_t feature_dim = 0;
  double homophily = 0.6;               // sbm
  double skew = 0.6;                    // sbm: degree ~ rank^-skew
  double a = 0.57, b = 0.19, c = 0.19;  // rmat
  double signal = 1.0;                  // length of a class mean in units of the noise per dimension
  uint64_t seed = 0;
};

enum class FeatureType { float32, float16, bfloat16, int8 };
inline constexpr size_t feature_bytes(FeatureType type) {
  return type == FeatureType::float32 ? 4 : type == FeatureType::int8 ? 1 : 2;
}

// Groups of ranks that share one expected degree; totals are exact.
class DegreeTable {
 public:
  struct Group {
    uint64_t nodes = 0, total = 0, edges_before = 0;
  };
  // weights[g]: expected degree of each node of group g, up to a common factor; capped at max_degree.
  DegreeTable(const std::vector<uint64_t>& nodes, const std::vector<double>& weights, uint64_t num_edges,
              uint64_t max_degree);
  const Group& group(size_t g) const { return groups_[g]; }
  size_t size() const { return groups_.size(); }
  // Degree of node i of group g; the degrees of a group add up to its total.
  uint64_t degree(size_t g, uint64_t i) const;
  // Group that holds edge number e when edges are laid out group after group.
  size_t group_of_edge(uint64_t e) const;

 private:
  std::vector<Group> groups_;
  std::vector<uint16_t> guide_;  // first group to look at, by the high part of the edge number
  uint64_t num_edges_ = 0;
};

class GraphGenerator {
 public:
  static constexpr uint64_t kMaxDegree = 1 << 20;

  // Throws Error(argument) for impossible models. Tables are held under `budget`.
  GraphGenerator(Budget& budget, const GraphModel& model);

  const GraphModel& model() const { return model_; }

  // Each fills its output for nodes [first, first + n).
  void degrees(int64_t first, int64_t n, int64_t* out, WorkerPool& pool) const;
  void labels(int64_t first, int64_t n, int64_t* out, WorkerPool& pool) const;
  // offsets: int64 [n + 1] running sums of the degrees, offsets[0] = 0. out: uint32 or int64 [offsets[n]].
  template <class Index>
  void sources(int64_t first, int64_t n, const int64_t* offsets, Index* out, WorkerPool& pool) const;
  // out: [n, feature_dim] of `type`.
  void features(int64_t first, int64_t n, FeatureType type, void* out, WorkerPool& pool) const;

 private:
  uint64_t degree_of_rank(uint64_t rank) const;
  uint64_t draw_rank(uint64_t target_rank, RandomStream& random) const;
  uint64_t draw_by_degree(RandomStream& random) const;
  template <class Index>
  void sources_of(uint64_t node, Index* out, uint64_t degree) const;

  GraphModel model_;
  Permutation id_of_rank_;
  std::vector<uint64_t> first_rank_;  // sbm: of each group
  std::unique_ptr<DegreeTable> degree_table_;
  unsigned scale_ = 0;                   // rmat: bits of a rank
  std::array<uint16_t, 2> one_given_{};  // rmat: P(source bit = 1 | target bit), in 1/65536
  Buffer class_means_;                   // int32 [classes, dim]
};

}  // namespace outcrop
