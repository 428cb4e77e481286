// The edges of a mini-batch by their sources: the transpose of its CSR matrix, by counting.
//
// Edges of one source keep the order in which they stood, so what is summed over them has the bits of a stable sort
// by source, whoever sorted.
#pragma once
#include <cstdint>
#include <span>

namespace outcrop {

struct TransposedCsr {
  std::span<int32_t> rowptr;  // [sources + 1]
  std::span<int32_t> row;     // [edges]: the target of each edge
  std::span<int64_t> order;   // [edges]: where the edge stood
};

// Equals scipy.sparse.csr_array((order, col, rowptr)).tocsc(). Throws Error(argument) where rowptr does not rise from 0
// to the number of edges, or col is no source; the spans are then undefined.
void transpose_csr(std::span<const int32_t> rowptr, std::span<const int32_t> col, const TransposedCsr& out);

}  // namespace outcrop
