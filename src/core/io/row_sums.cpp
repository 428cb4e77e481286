#include "io/row_sums.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/checksum.h"

namespace outcrop {
namespace {

constexpr size_t kAtOnce = 96;  // rows, whole threes
constexpr size_t kGrainBytes = size_t{64} << 10;

size_t grain_of(const RowTable& rows) { return kGrainBytes / std::max<size_t>(rows.row_bytes, 1) + 1; }

}  // namespace

void sum_rows(WorkerPool& workers, const RowTable& rows, uint32_t* out) {
  workers.split(rows.num_rows, grain_of(rows), [&](size_t begin, size_t end) {
    crc32c_rows(rows.data + begin * rows.stride, end - begin, rows.row_bytes, rows.stride, out + begin);
  });
}

RowMismatch compare_rows(WorkerPool& workers, const RowTable& rows, const int64_t* ids,
                         std::span<const uint32_t> crcs) {
  RowMismatch all{rows.num_rows};
  std::mutex mutex;
  workers.split(rows.num_rows, grain_of(rows), [&](size_t begin, size_t end) {
    std::array<uint32_t, kAtOnce> found;
    RowMismatch here{rows.num_rows};
    for (size_t at = begin; at < end; at += kAtOnce) {
      const size_t n = std::min(kAtOnce, end - at);
      for (size_t i = at; i < at + n; ++i)  // the table is looked up at random
        if (static_cast<uint64_t>(ids[i]) < crcs.size()) __builtin_prefetch(&crcs[ids[i]]);
      crc32c_rows(rows.data + at * rows.stride, n, rows.row_bytes, rows.stride, found.data());
      for (size_t i = at; i < at + n; ++i) {
        if (static_cast<uint64_t>(ids[i]) < crcs.size() && found[i - at] == crcs[ids[i]]) continue;
        here.first = std::min(here.first, i);
        ++here.count;
      }
    }
    if (!here.count) return;
    const std::lock_guard lock(mutex);
    all.first = std::min(all.first, here.first);
    all.count += here.count;
  });
  return all;
}

}  // namespace outcrop
