// Replacement policies: which rows a cache keeps.
//
// A policy sees one batch of requests at a time and writes what happens to it into a BatchPlan; rows are
// moved afterwards. The online policies are exact to their publications, request by request in the order of
// the batch, as if the rows of the batch were requested one after the other:
//   lru     the row that was not used for the longest time goes.
//   sieve   Zhang et al., NSDI'24, algorithm 1: a queue, one bit per row, and a hand that moves from old to
//   new. s3fifo  Yang et al., SOSP'23, algorithm 1: a small queue (a tenth) before a main queue, and a ghost
//   queue
//           with as many ids as the main queue has rows. Where the paper leaves it open: counts are cleared
//           on the way to the main queue, which is full when it has more than nine tenths of the rows; a
//           ghost that is requested leaves the ghosts.
// belady knows when each row is needed next, in batches (Belady, MIN, IBM Systems J. 1966; batch by batch as
// Ginex, PVLDB 2022): after each batch the cache keeps, of the rows that it held and the rows of
// the batch, those that are needed soonest. A row of the batch that is needed later than all others is not
// taken in at all. Among all ways of choosing with the same number of rows this misses the fewest after any
// number of batches, because a row that is kept from one use to the next fills one place for that interval,
// and giving up the interval that ends last never fits fewer of them.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/node_store.h"

namespace outcrop {

enum class CachePolicy { lru, sieve, s3fifo, belady };

// One batch of requests. belady: next[i] in (now, now + cycle] is the batch that needs ids[i] next, where
// `now` is the number of this batch; without it the cache is looked up and stays as it is.
struct CacheBatch {
  std::span<const int64_t> ids;
  std::span<const uint32_t> next;
  uint32_t now = 0;
};

// What happens to the rows of a batch. Slots hold what they held before the batch until the plan was carried
// out.
struct BatchPlan {
  struct Store {
    uint32_t slot, position;
  };
  std::vector<int64_t> held;     // positions whose rows are there, ascending
  std::vector<int64_t> sources;  // of each: a slot, or ~p for a repeat of position p, a row of this batch
  std::vector<int64_t> missing;  // the other ids, in the order of their positions
  std::vector<Store> stores;   // rows to keep, in order: a later one in the same slot replaces an earlier one
  std::span<uint32_t> filled;  // per slot: 1 + the position of its latest store in this batch, or 0

  void hit(size_t position, uint32_t slot) {
    held.push_back(static_cast<int64_t>(position));
    sources.push_back(filled[slot] ? ~static_cast<int64_t>(filled[slot] - 1) : slot);
  }
  void miss(int64_t id) { missing.push_back(id); }
  void store(size_t position, uint32_t slot) {
    stores.push_back({slot, static_cast<uint32_t>(position)});
    filled[slot] = static_cast<uint32_t>(position) + 1;
  }
  void clear();  // also `filled` of the stored slots
};

class ReplacementPolicy {
 public:
  virtual ~ReplacementPolicy() = default;
  virtual void run(const CacheBatch& batch, BatchPlan& plan) = 0;
  virtual void clear() = 0;
};

// A policy for `rows` >= 1 rows; belady: of a schedule that repeats after `cycle` >= 1 batches.
std::unique_ptr<ReplacementPolicy> make_policy(Budget& budget, const char* tag, CachePolicy policy,
                                               uint64_t rows, uint64_t cycle);
// Bytes that it holds.
uint64_t policy_bytes(CachePolicy policy, uint64_t rows, uint64_t cycle);

}  // namespace outcrop
