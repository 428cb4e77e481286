// Global node id -> number, with removal: open addressing, linear probing, at most two thirds full. A removed
// entry leaves no mark behind: the entries after it move up (Knuth, TAOCP 6.4, algorithm R).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "base/random.h"

namespace outcrop {

class IdTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Bytes that a table for `entries` takes.
  static uint64_t bytes_for(uint64_t entries) { return (entries + entries / 2 + 8) * sizeof(Entry); }

  IdTable() = default;
  IdTable(Budget& budget, const char* tag, uint64_t entries)
      : memory_(budget, tag, bytes_for(entries)), size_(memory_.size() / sizeof(Entry)) {}

  // The number of `id`, or kNone.
  uint32_t find(int64_t id) const {
    if (size_ == 0) return kNone;
    for (uint64_t at = home(id); table()[at].key; at = next(at))
      if (table()[at].key == key_of(id)) return table()[at].number;
    return kNone;
  }
  // `id` must be absent, and there must be room.
  void insert(int64_t id, uint32_t number) {
    uint64_t at = home(id);
    while (table()[at].key) at = next(at);
    table()[at] = {key_of(id), number};
  }
  // `id` must be there.
  void erase(int64_t id) {
    uint64_t hole = home(id);
    while (table()[hole].key != key_of(id)) hole = next(hole);
    for (uint64_t at = next(hole); table()[at].key; at = next(at)) {
      const uint64_t wanted = home(static_cast<int64_t>(table()[at].key - 1));
      // An entry may fill the hole unless its home lies behind it, cyclically in (hole, at].
      const bool stays = hole < at ? hole < wanted && wanted <= at : hole < wanted || wanted <= at;
      if (stays) continue;
      table()[hole] = table()[at];
      hole = at;
    }
    table()[hole] = {};
  }
  void clear() { std::fill_n(table(), size_, Entry{}); }
  void prefetch(int64_t id) const {
    if (size_) __builtin_prefetch(&table()[home(id)]);
  }

 private:
  struct Entry {
    uint64_t key = 0;  // id + 1; 0 = empty, as fresh memory is
    uint32_t number = 0;
  };
  static uint64_t key_of(int64_t id) { return static_cast<uint64_t>(id) + 1; }
  uint64_t home(int64_t id) const {  // multiply and shift: uniform in [0, size), whatever the size is
    return static_cast<uint64_t>(static_cast<unsigned __int128>(mix64(static_cast<uint64_t>(id))) * size_ >>
                                 64);
  }
  uint64_t next(uint64_t at) const { return at + 1 == size_ ? 0 : at + 1; }
  Entry* table() const { return memory_.as<Entry>(); }

  Buffer memory_;
  uint64_t size_ = 0;
};

}  // namespace outcrop
