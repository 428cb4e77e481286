// The topology among the nodes of some resident partitions, numbered by their rank among the resident nodes.
#pragma once
#include <cstdint>
#include <span>

namespace outcrop {

// Partition p has the nodes [bounds[p], bounds[p + 1]); base[p] is the number of its first node, -1 where it
// is not resident.
struct Residents {
  std::span<const int64_t> bounds;  // ascending
  std::span<const int64_t> base;
};

// Appends the resident in-neighbours of consecutive nodes, a piece of their edges at a time.
// `indptr`: of n nodes, as in the whole graph; `sources`: edges [first_edge, first_edge + size) of the graph;
// `out`: edges so far in [0, used). Sets out_indptr[r + 1], r < n, for the nodes whose edges have been seen,
// and returns the new `used`. Throws Error(format) for sources that are no nodes.
template <class Index>
uint64_t induce(std::span<const int64_t> indptr, int64_t first_edge, std::span<const Index> sources,
                const Residents& residents, int64_t* out_indptr, std::span<uint32_t> out, uint64_t used);

extern template uint64_t induce(std::span<const int64_t>, int64_t, std::span<const uint32_t>,
                                const Residents&, int64_t*, std::span<uint32_t>, uint64_t);
extern template uint64_t induce(std::span<const int64_t>, int64_t, std::span<const int64_t>, const Residents&,
                                int64_t*, std::span<uint32_t>, uint64_t);

}  // namespace outcrop
