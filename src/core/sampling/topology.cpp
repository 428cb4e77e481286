#include "sampling/topology.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace outcrop {

ListRange checked_range(int64_t node, int64_t begin, int64_t end, int64_t first_edge, int64_t end_edge) {
  if (begin < first_edge || end < begin || end > end_edge)
    throw Error(ErrorKind::format,
                "the topology is damaged: the neighbours of node " + std::to_string(node) +
                    " are said to lie at " + std::to_string(begin) + ".." + std::to_string(end) +
                    (first_edge ? ", not within " + std::to_string(first_edge) + ".." : " of ") +
                    std::to_string(end_edge) + "; run outcrop verify");
  return {begin, end - begin};
}

void refuse_neighbor(int64_t neighbour, int64_t num_nodes) {
  throw Error(ErrorKind::format, "the topology is damaged: neighbour " + std::to_string(neighbour) +
                                     " in a graph of " + std::to_string(num_nodes) +
                                     " nodes; run outcrop verify");
}

void count_in_neighbors(const Topology& topology, std::span<const int64_t> ids, int32_t* out) {
  constexpr size_t kAhead = 16;
  with_indices(topology, [&](const auto* indices) {
    using Index = std::decay_t<decltype(*indices)>;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) __builtin_prefetch(&topology.indptr[ids[i + kAhead]]);
      const ListRange list = range_of(topology, ids[i], ids[i], 0, topology.num_edges);
      const Index* begin = indices + list.start;
      const auto [low, high] = std::equal_range(begin, begin + list.degree, static_cast<Index>(ids[i]));
      out[i] = static_cast<int32_t>(std::min<int64_t>(list.degree - (high - low), INT32_MAX));
    }
  });
}

}  // namespace outcrop
