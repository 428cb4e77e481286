#include "cache/policy.h"

#include <string>

#include "base/error.h"

namespace outcrop {
namespace {

constexpr uint32_t kNone = NodeStore::kNone;
constexpr size_t kAhead = 12;  // requests whose table entry is fetched ahead

// How many entries and lists the books of a policy need for so many rows.
struct Books {
  uint64_t entries, lists;
};

Books books_for(CachePolicy policy, uint64_t rows, uint64_t cycle) {
  if (policy == CachePolicy::s3fifo) return {2 * rows + 1, 3};
  if (policy == CachePolicy::belady) return {rows, cycle};
  return {rows, 1};
}

// Serves requests one by one.
class OnlinePolicy : public ReplacementPolicy {
 public:
  OnlinePolicy(Budget& budget, const char* tag, uint64_t rows, Books books)
      : rows_(rows), store_(budget, tag, books.entries, rows, books.lists) {}
  void clear() override { store_.clear(); }
  void run(const CacheBatch& batch, BatchPlan& plan) final {
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      if (i + kAhead < batch.ids.size()) store_.prefetch(batch.ids[i + kAhead]);
      const int64_t id = batch.ids[i];
      const uint32_t entry = store_.find(id);
      if (entry != kNone && store_[entry].slot != kNone) {
        plan.hit(i, store_[entry].slot);
        hit(entry);
      } else {
        plan.miss(id);
        plan.store(i, store_[admit(id)].slot);
      }
    }
  }

 protected:
  virtual void hit(uint32_t entry) = 0;
  virtual uint32_t admit(int64_t id) = 0;  // makes room and gives `id` an entry with a slot
  const uint64_t rows_;
  NodeStore store_;
};

class Lru final : public OnlinePolicy {
 public:
  using OnlinePolicy::OnlinePolicy;

 private:
  void hit(uint32_t entry) override { store_.move(entry, 0); }
  uint32_t admit(int64_t id) override {
    if (store_.free_slots() == 0) store_.remove(store_.list(0).tail);
    return store_.add(id, 0);
  }
};

class Sieve final : public OnlinePolicy {
 public:
  using OnlinePolicy::OnlinePolicy;
  void clear() override {
    OnlinePolicy::clear();
    hand_ = kNone;
  }

 private:
  void hit(uint32_t entry) override { store_.mark(entry) = 1; }
  uint32_t admit(int64_t id) override {
    if (store_.free_slots() == 0) evict();
    return store_.add(id, 0);
  }
  void evict() {
    uint32_t entry = hand_ == kNone ? store_.list(0).tail : hand_;
    while (store_.mark(entry)) {
      store_.mark(entry) = 0;
      entry = store_[entry].newer;
      if (entry == kNone) entry = store_.list(0).tail;
    }
    hand_ = store_[entry].newer;
    store_.remove(entry);
  }
  uint32_t hand_ = kNone;
};

class S3Fifo final : public OnlinePolicy {
 public:
  using OnlinePolicy::OnlinePolicy;

 private:
  enum : uint32_t { kSmall, kMain, kGhost };
  static constexpr uint8_t kMost = 3;

  void hit(uint32_t entry) override {
    if (store_.mark(entry) < kMost) ++store_.mark(entry);
  }
  uint32_t admit(int64_t id) override {
    while (store_.free_slots() == 0) evict();
    const uint32_t ghost = store_.find(id);
    if (ghost != kNone) store_.remove(ghost);
    return store_.add(id, ghost == kNone ? kSmall : kMain);
  }
  void evict() { 10 * store_.list(kSmall).size >= rows_ ? evict_small() : evict_main(); }
  void evict_small() {
    while (store_.list(kSmall).size > 0) {
      const uint32_t entry = store_.list(kSmall).tail;
      if (store_.mark(entry) <= 1) {
        store_.drop_slot(entry);
        store_.move(entry, kGhost);
        if (store_.list(kGhost).size > 9 * rows_ / 10) store_.remove(store_.list(kGhost).tail);
        return;
      }
      store_.mark(entry) = 0;
      store_.move(entry, kMain);
      if (10 * store_.list(kMain).size > 9 * rows_) evict_main();
    }
  }
  void evict_main() {
    for (;;) {
      const uint32_t entry = store_.list(kMain).tail;
      if (store_.mark(entry) == 0) return store_.remove(entry);
      --store_.mark(entry);
      store_.move(entry, kMain);
    }
  }
};

// Rows wait in one list per batch that needs them next; the schedule is a cycle, so lists are numbered modulo
// it.
class Belady final : public ReplacementPolicy {
 public:
  Belady(Budget& budget, const char* tag, uint64_t rows, uint64_t cycle)
      : cycle_(cycle), store_(budget, tag, rows, rows, cycle) {}
  void clear() override { store_.clear(); }

  void run(const CacheBatch& batch, BatchPlan& plan) override {
    const bool admits = !batch.next.empty();
    if (admits) check(batch);
    missed_.clear();
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      if (i + kAhead < batch.ids.size()) store_.prefetch(batch.ids[i + kAhead]);
      const uint32_t entry = store_.find(batch.ids[i]);
      if (entry == kNone) {
        plan.miss(batch.ids[i]);
        missed_.push_back(static_cast<uint32_t>(i));
        continue;
      }
      plan.hit(i, store_[entry].slot);
      if (admits) store_.move(entry, list_of(batch.next[i]));
    }
    if (!admits) return;
    // Distance, in batches, of the row needed last. It falls only, because what is needed later than that
    // stays out.
    uint64_t farthest = cycle_;
    for (const uint32_t i : missed_) {
      if (store_.find(batch.ids[i]) != kNone) continue;  // a repeat
      if (store_.free_slots() == 0) {
        while (store_.list(list_of(batch.now + farthest)).size == 0) --farthest;
        if (batch.next[i] - batch.now >= farthest) continue;
        store_.remove(store_.list(list_of(batch.now + farthest)).tail);
      }
      plan.store(i, store_[store_.add(batch.ids[i], list_of(batch.next[i]))].slot);
    }
  }

 private:
  uint32_t list_of(uint64_t batch) const { return static_cast<uint32_t>(batch % cycle_); }
  void check(const CacheBatch& batch) const {
    if (batch.next.size() != batch.ids.size())
      throw Error(ErrorKind::argument, std::to_string(batch.ids.size()) + " ids and " +
                                           std::to_string(batch.next.size()) + " next uses were given");
    for (const uint32_t next : batch.next)
      if (next <= batch.now || next - batch.now > cycle_)
        throw Error(ErrorKind::argument, "next use " + std::to_string(next) + " of a row of batch " +
                                             std::to_string(batch.now) + " is not among the " +
                                             std::to_string(cycle_) + " batches after it");
  }
  const uint64_t cycle_;
  NodeStore store_;
  std::vector<uint32_t> missed_;  // positions
};

}  // namespace

void BatchPlan::clear() {
  for (const Store& s : stores) filled[s.slot] = 0;
  held.clear();
  sources.clear();
  missing.clear();
  stores.clear();
}

std::unique_ptr<ReplacementPolicy> make_policy(Budget& budget, const char* tag, CachePolicy policy,
                                               uint64_t rows, uint64_t cycle) {
  const Books books = books_for(policy, rows, cycle);
  switch (policy) {
    case CachePolicy::lru:
      return std::make_unique<Lru>(budget, tag, rows, books);
    case CachePolicy::sieve:
      return std::make_unique<Sieve>(budget, tag, rows, books);
    case CachePolicy::s3fifo:
      return std::make_unique<S3Fifo>(budget, tag, rows, books);
    default:
      return std::make_unique<Belady>(budget, tag, rows, cycle);
  }
}

uint64_t policy_bytes(CachePolicy policy, uint64_t rows, uint64_t cycle) {
  const Books books = books_for(policy, rows, cycle);
  return NodeStore::bytes_for(books.entries, rows, books.lists);
}

}  // namespace outcrop
