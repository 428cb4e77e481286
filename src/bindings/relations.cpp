#include "graph/relations.h"

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "bindings.h"

namespace outcrop {

void bind_relations(nb::module_& m) {
  nb::class_<Relations>(m, "Relations", "Node types and edge types of a graph, and where their lists lie.")
      .def(
          "__init__",
          [](Relations* self, std::vector<int64_t> first_nodes,
             const std::vector<std::tuple<size_t, size_t, int64_t, bool>>& edge_types) {
            std::vector<Relation> relations;
            for (const auto& [source, target, num_edges, weighted] : edge_types)
              relations.push_back({source, target, num_edges, weighted});
            new (self) Relations(std::move(first_nodes), std::move(relations));
          },
          "first_nodes"_a, "edge_types"_a,
          "Args:\n"
          "    first_nodes: First id of each node type, and the number of nodes.\n"
          "    edge_types: (source type, target type, edges, whether they have weights) of each edge type.")
      .def_prop_ro("num_lists", &Relations::num_lists, "Neighbor lists of all edge types.")
      .def_prop_ro("num_edges", &Relations::num_edges)
      .def_prop_ro("num_weights", &Relations::num_weights, "Edges of the edge types that have weights.")
      .def_prop_ro(
          "first_lists",
          [](const Relations& r) {
            std::vector<int64_t> out;
            for (size_t i = 0; i < r.size(); ++i) out.push_back(r[i].first_list);
            return out;
          },
          "Of each edge type the list of the first node of its target type.");
}

}  // namespace outcrop
