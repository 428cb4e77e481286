#include "sampling/induce.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace outcrop {

template <class Index>
uint64_t induce(std::span<const int64_t> indptr, int64_t first_edge, std::span<const Index> sources,
                const Residents& residents, int64_t* out_indptr, std::span<uint32_t> out, uint64_t used) {
  const auto bounds = residents.bounds;
  const int64_t last_edge = first_edge + static_cast<int64_t>(sources.size());
  size_t partition = 0;  // of the source before: neighbours are ascending, so it is often the next one's too
  size_t row =
      0;  // nodes without edges that end where a later piece begins were finished by the piece before
  if (first_edge > indptr.front())
    row =
        static_cast<size_t>(std::upper_bound(indptr.begin(), indptr.end(), first_edge) - indptr.begin()) - 1;
  for (; row + 1 < indptr.size() && indptr[row] <= last_edge; ++row) {
    const int64_t begin = std::max(indptr[row], first_edge), end = std::min(indptr[row + 1], last_edge);
    for (int64_t e = begin; e < end; ++e) {
      const auto source = static_cast<int64_t>(sources[static_cast<size_t>(e - first_edge)]);
      if (source < 0 || source >= bounds.back())
        throw Error(ErrorKind::format, "edge " + std::to_string(e) + " of the graph comes from node " +
                                           std::to_string(source) + ", there are " +
                                           std::to_string(bounds.back()) + "; run outcrop verify");
      if (source < bounds[partition] || source >= bounds[partition + 1])
        partition =
            static_cast<size_t>(std::upper_bound(bounds.begin(), bounds.end(), source) - bounds.begin()) - 1;
      if (residents.base[partition] < 0) continue;
      if (used >= out.size())
        throw Error(ErrorKind::format, "the graph has more edges than its indptr says; run outcrop verify");
      out[used++] = static_cast<uint32_t>(residents.base[partition] + source - bounds[partition]);
    }
    out_indptr[row + 1] = static_cast<int64_t>(used);
  }
  return used;
}

template uint64_t induce(std::span<const int64_t>, int64_t, std::span<const uint32_t>, const Residents&,
                         int64_t*, std::span<uint32_t>, uint64_t);
template uint64_t induce(std::span<const int64_t>, int64_t, std::span<const int64_t>, const Residents&,
                         int64_t*, std::span<uint32_t>, uint64_t);

}  // namespace outcrop
