// One hop's rows: those in the static cache are copied at once, the others are for the disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/parallel.h"
#include "cache/hot_index.h"

namespace outcrop {

struct Misses {
  std::vector<int64_t> ids;        // not falling
  std::vector<int32_t> positions;  // in the output
};

struct Hits {
  std::vector<int32_t> positions, rows;  // in the ids, and in the cache
};

// Which ids are cached, and where. Throws Error(argument) for ids that are no nodes.
Hits find_hot_rows(const HotIndex& index, const int64_t* ids, size_t n, Misses& misses);

// out[i] = cached[place of ids[i]] for the ids whose rows are cached (rows of row_bytes without gaps); the
// others come back with their positions. Ids may come in any order. Throws Error(argument) for ids that are
// no nodes.
Misses take_hot_rows(WorkerPool& workers, const HotIndex& index, const std::byte* cached, uint64_t row_bytes,
                     const int64_t* ids, size_t n, std::byte* out, uint64_t out_stride);

}  // namespace outcrop
