#include "cache/hot_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "io/rows.h"

namespace outcrop {

namespace {

// Of ids whose places are -1.
Misses misses_of(const std::vector<int64_t>& places, const int64_t* ids) {
  Misses misses;
  const auto count = static_cast<size_t>(std::count(places.begin(), places.end(), -1));
  misses.ids.reserve(count), misses.positions.reserve(count);
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i] < 0) misses.ids.push_back(ids[i]), misses.positions.push_back(static_cast<int32_t>(i));
  if (!std::is_sorted(misses.ids.begin(), misses.ids.end())) {
    std::stable_sort(misses.positions.begin(), misses.positions.end(),
                     [&](int32_t a, int32_t b) { return ids[a] < ids[b]; });
    for (size_t i = 0; i < count; ++i) misses.ids[i] = ids[misses.positions[i]];
  }
  return misses;
}

}  // namespace

Hits find_hot_rows(const HotIndex& index, const int64_t* ids, size_t n, Misses& misses) {
  check_ids(ids, n, static_cast<uint64_t>(index.num_nodes()));
  std::vector<int64_t> places(n);
  Hits hits;
  for (size_t i = 0; i < n; ++i) {
    places[i] = index.row_of(ids[i]);
    if (places[i] < 0) continue;
    hits.positions.push_back(static_cast<int32_t>(i));
    hits.rows.push_back(static_cast<int32_t>(places[i]));
  }
  misses = misses_of(places, ids);
  return hits;
}

Misses take_hot_rows(WorkerPool& workers, const HotIndex& index, const std::byte* cached, uint64_t row_bytes,
                     const int64_t* ids, size_t n, std::byte* out, uint64_t out_stride) {
  check_ids(ids, n, static_cast<uint64_t>(index.num_nodes()));
  constexpr size_t kBlock = 4096;
  std::vector<int64_t> places(n);
  workers.run((n + kBlock - 1) / kBlock, [&](size_t block, unsigned) {
    for (size_t i = block * kBlock; i < std::min(n, (block + 1) * kBlock); ++i) {
      places[i] = index.row_of(ids[i]);
      if (places[i] >= 0)
        std::memcpy(out + i * out_stride, cached + static_cast<uint64_t>(places[i]) * row_bytes, row_bytes);
    }
  });
  return misses_of(places, ids);
}

}  // namespace outcrop
