// Rows in memory, found by id, some of which leave when others come: a replacement policy (policy.h) over
// slots.
//
// Protocol, per batch: lookup() decides everything and lists the ids whose rows are missing; the caller reads
// those, in that order, to the end of `out`; complete() moves them to their places, fills in the rows that
// were held, and keeps the rows that the policy wants. A batch that was never completed (its read failed)
// empties the cache at the next lookup, because slots do not hold what the books say. Works for any capacity,
// also none and less than one batch. One thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/buffer.h"
#include "base/parallel.h"
#include "cache/policy.h"

namespace outcrop {

class RowCache {
 public:
  // All memory is held under the tag "row-cache". `cycle`: only belady, batches after which the schedule
  // repeats.
  RowCache(Budget& budget, CachePolicy policy, uint64_t rows, uint64_t row_bytes, uint64_t cycle);
  static uint64_t bytes_for(CachePolicy policy, uint64_t rows, uint64_t row_bytes, uint64_t cycle);
  // The most rows, at most `limit`, that so many bytes hold.
  static uint64_t rows_within(CachePolicy policy, uint64_t bytes, uint64_t row_bytes, uint64_t cycle,
                              uint64_t limit);

  // Ids that must be read, valid until complete().
  std::span<const int64_t> lookup(const CacheBatch& batch);
  // `out`: the rows of the batch of the last lookup, row_bytes each, the missing ones at its end.
  void complete(WorkerPool& workers, std::byte* out);
  void clear();

  uint64_t rows() const { return rows_; }
  uint64_t row_bytes() const { return row_bytes_; }
  uint64_t batch_rows() const { return batch_rows_; }  // of the last lookup

 private:
  const uint64_t rows_, row_bytes_;
  Buffer data_, filled_;
  std::unique_ptr<ReplacementPolicy> policy_;  // null for no rows
  BatchPlan plan_;
  uint64_t batch_rows_ = 0;
  bool open_ = false;  // looked up and not completed
};

}  // namespace outcrop
