// Caches under every policy: the rows delivered are right whatever the capacity, in parallel, with repeats
// and after a batch that failed. What the policies hit is tested against references in Python (tests/unit).
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "cache/id_table.h"
#include "cache/next_use.h"
#include "cache/row_cache.h"
#include "sampling/induce.h"

namespace outcrop {
namespace {

constexpr CachePolicy kPolicies[] = {CachePolicy::lru, CachePolicy::sieve, CachePolicy::s3fifo,
                                     CachePolicy::belady};

TEST(IdTable, AgreesWithASetThroughInsertionsAndRemovals) {
  const auto budget = Budget::create(UINT64_MAX);
  std::mt19937_64 random(1);
  for (uint64_t entries : {1u, 2u, 7u, 500u}) {
    IdTable table(*budget, "t", entries);
    std::vector<int64_t> held;
    for (int step = 0; step < 20000; ++step) {
      const auto id = static_cast<int64_t>(random() % (3 * entries));
      const auto at = std::find(held.begin(), held.end(), id);
      ASSERT_EQ(table.find(id), at == held.end() ? IdTable::kNone : static_cast<uint32_t>(id * 2));
      if (at != held.end()) {
        table.erase(id);
        held.erase(at);
      } else if (held.size() < entries) {
        table.insert(id, static_cast<uint32_t>(id * 2));
        held.push_back(id);
      }
    }
  }
}

TEST(RowCache, DeliversTheRowsAskedFor) {
  constexpr int64_t kNodes = 3000;
  std::mt19937_64 random(2);
  WorkerPool workers(3);
  const auto budget = Budget::create(UINT64_MAX);
  for (const size_t row_bytes : {size_t{3}, size_t{256}}) {
    std::vector<uint8_t> table(kNodes * row_bytes);
    for (auto& b : table) b = static_cast<uint8_t>(random());
    for (const CachePolicy policy : kPolicies)
      for (const uint64_t capacity : {0u, 1u, 100u, 900u, 3000u}) {
        RowCache cache(*budget, policy, capacity, row_bytes, 5);
        for (uint32_t now = 0; now < 20; ++now) {
          std::vector<int64_t> ids(random() % 2000);
          for (auto& id : ids) id = static_cast<int64_t>((random() % kNodes) * (random() % kNodes) / kNodes);
          std::vector<uint32_t> next(ids.size());
          for (auto& n : next) n = now + 1 + static_cast<uint32_t>(random() % 5);
          CacheBatch batch{ids, {}, now};
          if (policy == CachePolicy::belady && now % 4) batch.next = next;
          const auto missing = cache.lookup(batch);
          if (now % 7 == 6) continue;  // its rows never come
          std::vector<uint8_t> out(ids.size() * row_bytes, 99);
          size_t at = ids.size() - missing.size();
          for (const int64_t id : missing)
            std::memcpy(&out[at++ * row_bytes], &table[static_cast<size_t>(id) * row_bytes], row_bytes);
          cache.complete(workers, reinterpret_cast<std::byte*>(out.data()));
          for (size_t i = 0; i < ids.size(); ++i)
            ASSERT_EQ(
                std::memcmp(&out[i * row_bytes], &table[static_cast<size_t>(ids[i]) * row_bytes], row_bytes),
                0);
        }
      }
  }
}

TEST(RowCache, RefusesImpossibleNextUses) {
  const auto budget = Budget::create(UINT64_MAX);
  RowCache cache(*budget, CachePolicy::belady, 4, 8, 3);
  const std::vector<int64_t> ids{1, 2};
  for (const std::vector<uint32_t>& next : {std::vector<uint32_t>{6, 5}, {6, 9}, {6}})
    EXPECT_THROW(cache.lookup({ids, next, 5}), Error);
  EXPECT_THROW(RowCache(*budget, CachePolicy::belady, 4, 8, 0), Error);
}

TEST(Induce, KeepsResidentSourcesInOrder) {
  const std::vector<int64_t> bounds{0, 2, 5, 7}, base{0, -1, 2};  // nodes 0, 1, 5, 6 are resident
  const std::vector<int64_t> indptr{10, 10, 13, 13, 17};          // of four nodes
  const std::vector<uint32_t> sources{0, 4, 6, 1, 2, 5, 6};
  for (size_t piece : {1u, 2u, 3u, 7u}) {
    std::vector<int64_t> out_indptr(5, 0);
    std::vector<uint32_t> out(7);
    uint64_t used = 0;
    for (size_t at = 0; at < sources.size(); at += piece)
      used = induce<uint32_t>(indptr, 10 + static_cast<int64_t>(at),
                              std::span(sources).subspan(at, std::min(piece, sources.size() - at)),
                              {bounds, base}, out_indptr.data(), out, used);
    EXPECT_EQ(used, 5u);
    EXPECT_EQ(out_indptr, (std::vector<int64_t>{0, 0, 2, 2, 5}));
    EXPECT_EQ(std::vector<uint32_t>(out.begin(), out.begin() + 5), (std::vector<uint32_t>{0, 3, 1, 2, 3}));
  }
  std::vector<int64_t> out_indptr(5);
  std::vector<uint32_t> small(1), out(7), bad{0, 4, 7, 1, 2, 5, 6};
  EXPECT_THROW(induce<uint32_t>(indptr, 10, sources, {bounds, base}, out_indptr.data(), small, 0), Error);
  EXPECT_THROW(induce<uint32_t>(indptr, 10, bad, {bounds, base}, out_indptr.data(), out, 0), Error);
}

}  // namespace
}  // namespace outcrop
