// What replacement policies keep their books in: entries found by node id, in doubly linked lists, some of
// them with a slot for a row. All memory is reserved when the store is made; every operation takes O(1).
//
// An entry without a slot (kNone) is a ghost: an id that is remembered without its row.
#pragma once
#include <cstdint>

#include "base/buffer.h"
#include "cache/id_table.h"

namespace outcrop {

class NodeStore {
 public:
  static constexpr uint32_t kNone = IdTable::kNone;
  struct Entry {
    int64_t id = 0;
    uint32_t newer = kNone, older = kNone;  // neighbours in the list
    uint32_t slot = kNone;
    uint32_t list = 0;
  };
  struct List {
    uint32_t head = kNone, tail = kNone;  // newest and oldest
    uint64_t size = 0;
  };

  static uint64_t bytes_for(uint64_t entries, uint64_t slots, uint64_t lists) {
    return align_up(entries * kEntryBytes, kPageBytes) + align_up(slots * sizeof(uint32_t), kPageBytes) +
           align_up(lists * sizeof(List), kPageBytes) + align_up(IdTable::bytes_for(entries), kPageBytes);
  }

  NodeStore(Budget& budget, const char* tag, uint64_t entries, uint64_t slots, uint64_t lists);
  void clear();

  uint32_t find(int64_t id) const { return table_.find(id); }
  void prefetch(int64_t id) const { table_.prefetch(id); }
  // A new entry with a free slot, at the head of `list`; `id` must be absent, an entry and a slot free.
  uint32_t add(int64_t id, uint32_t list);
  void remove(uint32_t entry);             // and frees its slot
  void drop_slot(uint32_t entry);          // makes it a ghost
  void move(uint32_t entry, uint32_t to);  // to the head of list `to`

  Entry& operator[](uint32_t entry) const { return entries_.as<Entry>()[entry]; }
  uint8_t& mark(uint32_t entry) const { return marks()[entry]; }  // the policy's own, 0 for a new entry
  const List& list(uint32_t number) const { return lists_.as<List>()[number]; }
  uint64_t free_slots() const { return num_free_slots_; }

 private:
  static constexpr uint64_t kEntryBytes = sizeof(Entry) + 1;  // and its mark
  uint8_t* marks() const { return entries_.as<uint8_t>() + num_entries_ * sizeof(Entry); }
  void reset();
  void link(uint32_t entry, uint32_t to);
  void unlink(uint32_t entry);

  const uint64_t num_entries_, num_slots_, num_lists_;
  Buffer entries_, free_slots_, lists_;
  IdTable table_;
  uint64_t used_entries_ = 0, num_free_slots_ = 0;
  uint32_t free_entry_ = kNone;  // chained by `older`
};

}  // namespace outcrop
