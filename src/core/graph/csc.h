// Builds the compressed sparse columns of a graph from a stream of edges, in bounded memory.
//
// Edges (source, target) are sorted by (target, source) externally and written as they leave the sort:
// `indptr` int64 [N + 1] and `indices` uint32 (N <= 2^32) or int64 [E], the sources of the edges that point
// at each node, ascending. No array of N or E elements is ever held.
//
// A graph with node types and edge types has a list for each edge type and target (relations.h). Edges are added by
// edge type, with ids that count within the types of their ends, and are sorted by (list, global id of the source), so
// that one sort makes one `indptr` [lists + 1] and one `indices` of all edge types.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/budget.h"
#include "base/parallel.h"
#include "graph/array_file.h"
#include "graph/external_sort.h"
#include "graph/relations.h"
#include "io/block_io.h"

namespace outcrop {

struct PackedEdge {  // both ids below 2^32
  static constexpr unsigned kKeyWords = 1;
  static constexpr bool kWeighted = false, kNumbered = false;
  uint64_t key = 0;
  static PackedEdge make(uint64_t src, uint64_t dst, float, uint64_t) { return {dst << 32 | src}; }
  float weight_of() const { return 1; }
  uint64_t number_of() const { return 0; }
  uint64_t src() const { return key & 0xffffffffu; }
  uint64_t dst() const { return key >> 32; }
  uint64_t word(unsigned) const { return key; }
};

struct WideEdge {
  static constexpr unsigned kKeyWords = 2;
  static constexpr bool kWeighted = false, kNumbered = false;
  uint64_t source = 0, target = 0;
  static WideEdge make(uint64_t src, uint64_t dst, float, uint64_t) { return {src, dst}; }
  float weight_of() const { return 1; }
  uint64_t number_of() const { return 0; }
  uint64_t src() const { return source; }
  uint64_t dst() const { return target; }
  uint64_t word(unsigned i) const { return i ? target : source; }
};

// The same with a weight as payload. Of an edge listed more than once the first weight stays (the sort is
// stable).
template <class Edge>
struct Weighted : Edge {
  static constexpr bool kWeighted = true;
  float weight = 0;
  uint32_t zero = 0;  // no byte is left unset
  static Weighted make(uint64_t src, uint64_t dst, float weight, uint64_t number) {
    return {Edge::make(src, dst, weight, number), weight, 0};
  }
  float weight_of() const { return weight; }
};

// The same with the edge's number in its source, by which its row is found (permute.h). Of an edge listed more than
// once, where one of them is kept, that is the first.
template <class Edge>
struct Numbered : Edge {
  static constexpr bool kNumbered = true;
  uint64_t number = 0;
  static Numbered make(uint64_t src, uint64_t dst, float weight, uint64_t number) {
    return {Edge::make(src, dst, weight, number), number};
  }
  uint64_t number_of() const { return number; }
};

struct CscOptions {
  std::string scratch_folder;
  int64_t num_nodes = -1;             // -1: the largest id + 1, told at the end
  uint64_t memory_bytes = 256 << 20;  // sort and write buffers together
  bool keep_duplicates = false;
  bool keep_self_loops = true;
  bool reverse = false;   // store the reverse of every edge too (a self-loop once)
  bool wide = false;      // 64-bit indices even where 32 bits would do
  bool weighted = false;  // edges have weights, float32 [E], in the order of the indices
  // Edge types whose edges' numbers are written, one entry for each edge type; none: of no edge type. A number is the
  // edge's place among those that were added to the type; a reverse has that of the edge.
  std::vector<bool> numbered;
  bool keep_numbered_duplicates = true;  // of these edge types
  // Node types and edge types, whose numbers of edges do not count; none: the lists are the nodes. With them num_nodes,
  // reverse and weighted are not asked: edge types say who has weights, and a reverse is an edge type of its own.
  std::shared_ptr<const Relations> relations;
};

struct CscRelation {  // what became of an edge type
  uint64_t num_edges = 0, duplicates_dropped = 0, self_loops_dropped = 0, max_in_degree = 0;
};

struct CscResult {
  int64_t num_nodes = 0, num_lists = 0;
  uint64_t num_edges = 0, duplicates_dropped = 0, self_loops_dropped = 0;
  uint64_t max_in_degree = 0, nodes_without_in_edges = 0;
  bool wide = false;
  std::vector<CscRelation> relations;  // one where there are no types
  ArrayFile indptr, indices, weights;
  ArrayFile numbers;  // int64, of the numbered edge types, one after the other, in the order of the indices
  SortStats sort;
};

class CscBuilder {
 public:
  static constexpr uint64_t kMinMemoryBytes = 256 << 10;

  CscBuilder(std::shared_ptr<BlockIo> io, std::shared_ptr<Budget> budget, CscOptions options,
             WorkerPool* workers = nullptr);
  ~CscBuilder();
  // Adds n edges src[i] -> dst[i] of one edge type, with weights where they are asked for. Throws Error(argument) for
  // an id outside [0, num_nodes) of its type, or a weight that is negative or no finite number.
  void add(const int64_t* src, const int64_t* dst, size_t n, const float* weights = nullptr,
           size_t edge_type = 0);
  uint64_t edges_added() const;
  // Writes the files. With num_nodes -1 there are at least min_nodes nodes.
  CscResult finish(const std::string& indptr_path, const std::string& indices_path, int64_t min_nodes = 0,
                   const std::string& weights_path = "", const std::string& numbers_path = "");

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace outcrop
