#include "graph/relations.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace outcrop {

Relations::Relations(std::vector<int64_t> first_nodes, std::vector<Relation> relations)
    : first_nodes_(std::move(first_nodes)), relations_(std::move(relations)) {
  if (first_nodes_.size() < 2 || relations_.empty())
    throw Error(ErrorKind::argument, "a graph has at least one node type and one edge type");
  if (first_nodes_[0] != 0) throw Error(ErrorKind::argument, "the ids of the first node type begin at 0");
  for (size_t t = 0; t < num_types(); ++t)
    if (num_nodes(t) < 0)
      throw Error(ErrorKind::argument, "node type " + std::to_string(t) + " begins at " +
                                           std::to_string(first_nodes_[t]) + " and ends at " +
                                           std::to_string(first_nodes_[t + 1]));
  for (size_t r = 0; r < size(); ++r) {
    Relation& relation = relations_[r];
    if (relation.source >= num_types() || relation.target >= num_types())
      throw Error(ErrorKind::argument, "edge type " + std::to_string(r) + " leads from node type " +
                                           std::to_string(relation.source) + " to " +
                                           std::to_string(relation.target) + ", there are " +
                                           std::to_string(num_types()));
    if (relation.num_edges < 0)
      throw Error(ErrorKind::argument,
                  "edge type " + std::to_string(r) + " has " + std::to_string(relation.num_edges) + " edges");
    relation.first_list = num_lists_;
    relation.first_edge = num_edges_;
    relation.first_weight = num_weights_;
    num_lists_ += num_nodes(relation.target);
    num_edges_ += relation.num_edges;
    if (relation.weighted) num_weights_ += relation.num_edges;
  }
}

std::shared_ptr<const Relations> Relations::single(int64_t num_nodes, int64_t num_edges) {
  return std::make_shared<Relations>(std::vector<int64_t>{0, num_nodes},
                                     std::vector<Relation>{{0, 0, num_edges}});
}

}  // namespace outcrop
