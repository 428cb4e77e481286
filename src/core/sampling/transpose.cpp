#include "sampling/transpose.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace outcrop {
namespace {

void check_rowptr(std::span<const int32_t> rowptr, size_t edges) {
  const bool rises = !rowptr.empty() && rowptr.front() == 0 && std::is_sorted(rowptr.begin(), rowptr.end()) &&
                     static_cast<size_t>(rowptr.back()) == edges;
  if (!rises)
    throw Error(ErrorKind::argument,
                "rowptr does not rise from 0 to " + std::to_string(edges) + ", the number of edges");
}

// Leaves in rowptr[s + 2] how many edges source s has, as far as it has that place; the last source's are not needed.
void count(std::span<const int32_t> col, std::span<int32_t> rowptr) {
  const auto sources = static_cast<int64_t>(rowptr.size()) - 1;
  std::fill(rowptr.begin(), rowptr.end(), 0);
  for (const int32_t source : col) {
    if (source < 0 || source >= sources)
      throw Error(ErrorKind::argument, "an edge comes from source " + std::to_string(source) +
                                           ", there are " + std::to_string(sources));
    if (source + 2 <= sources) ++rowptr[static_cast<size_t>(source) + 2];
  }
}

}  // namespace

void transpose_csr(std::span<const int32_t> rowptr, std::span<const int32_t> col, const TransposedCsr& out) {
  check_rowptr(rowptr, col.size());
  if (out.rowptr.empty() || out.row.size() != col.size() || out.order.size() != col.size())
    throw Error(ErrorKind::argument,
                "the transpose has no room for " + std::to_string(col.size()) + " edges");
  count(col, out.rowptr);
  for (size_t i = 2; i < out.rowptr.size(); ++i) out.rowptr[i] += out.rowptr[i - 1];
  // rowptr[s + 1] is where the next edge of source s goes, and in the end where those of s + 1 begin.
  for (size_t target = 0; target + 1 < rowptr.size(); ++target) {
    for (auto edge = static_cast<size_t>(rowptr[target]); edge < static_cast<size_t>(rowptr[target + 1]);
         ++edge) {
      const auto place = static_cast<size_t>(out.rowptr[static_cast<size_t>(col[edge]) + 1]++);
      out.row[place] = static_cast<int32_t>(target);
      out.order[place] = static_cast<int64_t>(edge);
    }
  }
}

}  // namespace outcrop
