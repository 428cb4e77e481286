// Node types and edge types of a graph, and which neighbour lists each edge type has.
//
// Nodes have one numbering: node type t owns the global ids [first_node(t), first_node(t + 1)). A neighbour list
// is that of an edge type and a node of its target type: edge type r owns the lists from first_list on, in the order
// of its targets, and the edges from first_edge on; both follow from those before it. One pair of arrays holds the
// lists of all edge types, with global ids of sources as values. Without types a list is a node.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace outcrop {

struct Relation {                 // an edge type
  size_t source = 0, target = 0;  // node types
  int64_t num_edges = 0;
  bool weighted = true;                                      // its edges have weights, where any have
  int64_t first_list = 0, first_edge = 0, first_weight = 0;  // filled in by Relations
};

class Relations {
 public:
  // Of each node type its first id, and behind the last the number of nodes; the edge types in order. Throws
  // Error(argument) for ids that fall, and for node types that are not there.
  Relations(std::vector<int64_t> first_nodes, std::vector<Relation> relations);
  // One node type and one edge type.
  static std::shared_ptr<const Relations> single(int64_t num_nodes, int64_t num_edges);

  size_t num_types() const { return first_nodes_.size() - 1; }
  size_t size() const { return relations_.size(); }
  bool is_single() const { return num_types() == 1 && size() == 1; }
  const Relation& operator[](size_t r) const { return relations_[r]; }
  int64_t first_node(size_t type) const { return first_nodes_[type]; }
  int64_t num_nodes() const { return first_nodes_.back(); }
  int64_t num_nodes(size_t type) const { return first_nodes_[type + 1] - first_nodes_[type]; }
  int64_t num_lists() const { return num_lists_; }
  int64_t num_edges() const { return num_edges_; }
  int64_t num_weights() const { return num_weights_; }
  // The list of edge type r and target `node` is node + list_shift(r).
  int64_t list_shift(size_t r) const { return relations_[r].first_list - first_nodes_[relations_[r].target]; }
  // The weight of the edge at position p, of edge type r, is at p + weight_shift(r).
  int64_t weight_shift(size_t r) const { return relations_[r].first_weight - relations_[r].first_edge; }

 private:
  std::vector<int64_t> first_nodes_;
  std::vector<Relation> relations_;
  int64_t num_lists_ = 0, num_edges_ = 0, num_weights_ = 0;
};

}  // namespace outcrop
