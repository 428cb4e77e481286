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

namespace {

// Calls fn(i, list of ids[i], where in it the edges from ids[i] itself begin and end).
template <class Fn>
void for_each_list(const Topology& topology, std::span<const int64_t> ids, Fn&& fn) {
  constexpr size_t kAhead = 16;
  with_indices(topology, [&](const auto* indices) {
    using Index = std::decay_t<decltype(*indices)>;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) __builtin_prefetch(&topology.indptr[ids[i + kAhead]]);
      const ListRange list = range_of(topology, ids[i], ids[i], 0, topology.num_edges);
      const Index* begin = indices + list.start;
      const auto [low, high] = std::equal_range(begin, begin + list.degree, static_cast<Index>(ids[i]));
      fn(i, list, low - begin, high - begin);
    }
  });
}

}  // namespace

void count_in_neighbors(const Topology& topology, std::span<const int64_t> ids, int32_t* out) {
  for_each_list(topology, ids, [&](size_t i, ListRange list, int64_t low, int64_t high) {
    out[i] = static_cast<int32_t>(std::min<int64_t>(list.degree - (high - low), INT32_MAX));
  });
}

void sum_in_weights(const Topology& topology, std::span<const int64_t> ids, double* out) {
  for_each_list(topology, ids, [&](size_t i, ListRange list, int64_t low, int64_t high) {
    const float* weights = topology.weights + list.start;
    double sum = 0.0;
    for (int64_t at = 0; at < low; ++at) sum += weights[at];
    for (int64_t at = high; at < list.degree; ++at) sum += weights[at];
    out[2 * i] = sum;
    out[2 * i + 1] = high > low ? weights[high - 1] : 1.0;
  });
}

}  // namespace outcrop
