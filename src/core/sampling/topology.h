// The topology in compressed sparse columns: the neighbours of list l are indices[indptr[l]..indptr[l + 1]). Without
// types a list is a node v and has its in-neighbours; with types there is one per edge type and target (relations.h).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "graph/relations.h"

namespace outcrop {

// In memory, or mapped. Indices are 32 or 64 bits wide, ascending within a node.
struct Topology {
  const int64_t* indptr = nullptr;
  const uint32_t* indices32 = nullptr;
  const int64_t* indices64 = nullptr;
  int64_t num_nodes = 0;
  int64_t num_edges = 0;
  const float* weights = nullptr;  // one per edge, where they are asked for
  std::shared_ptr<const Relations> relations;
};

struct ListRange {
  int64_t start = 0, degree = 0;
};

// Calls fn with the indices of the topology in their width.
template <class Fn>
auto with_indices(const Topology& t, Fn&& fn) {
  return t.indices32 ? fn(t.indices32) : fn(t.indices64);
}

// Where neighbours of `node` lie, from what indptr says; edges of its edge type lie in [first_edge, end_edge).
// Throws Error(format) where that cannot be.
ListRange checked_range(int64_t node, int64_t begin, int64_t end, int64_t first_edge, int64_t end_edge);
[[noreturn]] void refuse_neighbor(int64_t neighbour, int64_t num_nodes);

// Where list `list` lies, one of `node`, of an edge type whose edges lie in [first_edge, end_edge).
inline ListRange range_of(const Topology& t, int64_t list, int64_t node, int64_t first_edge,
                          int64_t end_edge) {
  const int64_t begin = t.indptr[list], end = t.indptr[list + 1];
  if (begin < first_edge || end < begin || end > end_edge)
    checked_range(node, begin, end, first_edge, end_edge);
  return {begin, end - begin};
}

// out[i] = in-neighbours of ids[i] other than itself. Neighbours of a node must be ascending; without types.
void count_in_neighbors(const Topology& topology, std::span<const int64_t> ids, int32_t* out);

// out[2 i] = sum of the weights of edges to ids[i] from other nodes, in the order of the list; out[2 i + 1] = weight of
// its edge from itself, of several the last; 1 where there is none. Likewise without types.
void sum_in_weights(const Topology& topology, std::span<const int64_t> ids, double* out);

}  // namespace outcrop
