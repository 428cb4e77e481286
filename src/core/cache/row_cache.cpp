#include "cache/row_cache.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "pack/assemble.h"

namespace outcrop {
namespace {

constexpr const char* kTag = "row-cache";
constexpr uint64_t kMostRows = uint64_t{1} << 30;  // entries are numbered by 32 bits, s3fifo has two per row
constexpr size_t kGrainRows = 256, kAheadRows = 4;

// Calls copy(to, from) for items [0, n) in parallel, their sources fetched ahead.
template <class Rows>
void copy_rows(WorkerPool& workers, size_t n, size_t row_bytes, const Rows& rows) {
  workers.split(n, kGrainRows, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kAheadRows < end) __builtin_prefetch(rows(i + kAheadRows).from);
      const auto [to, from] = rows(i);
      if (to) std::memcpy(to, from, row_bytes);
    }
  });
}

struct Copy {
  std::byte* to;
  const std::byte* from;
};

}  // namespace

RowCache::RowCache(Budget& budget, CachePolicy policy, uint64_t rows, uint64_t row_bytes, uint64_t cycle)
    : rows_(rows),
      row_bytes_(row_bytes),
      data_(budget, kTag, rows * row_bytes),
      filled_(budget, kTag, rows * sizeof(uint32_t)) {
  if (rows > kMostRows || cycle == 0 || cycle > kMostRows)
    throw Error(ErrorKind::argument, "a cache of " + std::to_string(rows) + " rows for a cycle of " +
                                         std::to_string(cycle) + " batches was asked for; 1 to " +
                                         std::to_string(kMostRows) + " are possible");
  if (rows) policy_ = make_policy(budget, kTag, policy, rows, cycle);
  plan_.filled = {filled_.as<uint32_t>(), rows};
}

uint64_t RowCache::bytes_for(CachePolicy policy, uint64_t rows, uint64_t row_bytes, uint64_t cycle) {
  if (rows == 0) return 0;
  return align_up(rows * row_bytes, kPageBytes) + align_up(rows * sizeof(uint32_t), kPageBytes) +
         policy_bytes(policy, rows, cycle);
}

uint64_t RowCache::rows_within(CachePolicy policy, uint64_t bytes, uint64_t row_bytes, uint64_t cycle,
                               uint64_t limit) {
  uint64_t low = 0, high = std::min(limit, kMostRows);
  while (low < high) {
    const uint64_t middle = (low + high + 1) / 2;
    if (bytes_for(policy, middle, row_bytes, cycle) <= bytes)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

void RowCache::clear() {
  plan_.clear();
  if (policy_) policy_->clear();
  open_ = false;
}

std::span<const int64_t> RowCache::lookup(const CacheBatch& batch) {
  if (open_) clear();
  plan_.clear();
  batch_rows_ = batch.ids.size();
  open_ = true;
  if (policy_)
    policy_->run(batch, plan_);
  else
    plan_.missing.assign(batch.ids.begin(), batch.ids.end());
  return plan_.missing;
}

void RowCache::complete(WorkerPool& workers, std::byte* out) {
  if (!open_) throw Error(ErrorKind::argument, "no rows were looked up: a batch is completed once");
  const auto row = [&](int64_t position) { return out + static_cast<uint64_t>(position) * row_bytes_; };
  const auto slot = [&](uint64_t number) { return data_.data() + number * row_bytes_; };
  expand_rows(workers, out, batch_rows_, row_bytes_, plan_.held, false);
  copy_rows(workers, plan_.held.size(), row_bytes_, [&](size_t i) -> Copy {
    const int64_t source = plan_.sources[i];
    return {row(plan_.held[i]), source < 0 ? row(~source) : slot(static_cast<uint64_t>(source))};
  });
  // Only now are slots overwritten, each by its latest row.
  copy_rows(workers, plan_.stores.size(), row_bytes_, [&](size_t i) -> Copy {
    const auto [number, position] = plan_.stores[i];
    return {plan_.filled[number] == position + 1 ? slot(number) : nullptr, row(position)};
  });
  plan_.clear();
  open_ = false;
}

}  // namespace outcrop
