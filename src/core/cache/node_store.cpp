#include "cache/node_store.h"

#include <utility>

namespace outcrop {

NodeStore::NodeStore(Budget& budget, const char* tag, uint64_t entries, uint64_t slots, uint64_t lists)
    : num_entries_(entries),
      num_slots_(slots),
      num_lists_(lists),
      entries_(budget, tag, entries * kEntryBytes),
      free_slots_(budget, tag, slots * sizeof(uint32_t)),
      lists_(budget, tag, lists * sizeof(List)),
      table_(budget, tag, entries) {
  reset();
}

void NodeStore::clear() {
  table_.clear();
  reset();
}

void NodeStore::reset() {
  used_entries_ = 0;
  free_entry_ = kNone;
  num_free_slots_ = num_slots_;
  // From the back, so that slots are handed out in ascending order.
  for (uint64_t i = 0; i < num_slots_; ++i)
    free_slots_.as<uint32_t>()[i] = static_cast<uint32_t>(num_slots_ - 1 - i);
  for (uint64_t i = 0; i < num_lists_; ++i) lists_.as<List>()[i] = {};
}

uint32_t NodeStore::add(int64_t id, uint32_t list) {
  uint32_t entry = free_entry_;
  if (entry == kNone)
    entry = static_cast<uint32_t>(used_entries_++);
  else
    free_entry_ = (*this)[entry].older;
  (*this)[entry] = {.id = id, .slot = free_slots_.as<uint32_t>()[--num_free_slots_]};
  mark(entry) = 0;
  table_.insert(id, entry);
  link(entry, list);
  return entry;
}

void NodeStore::remove(uint32_t entry) {
  table_.erase((*this)[entry].id);
  unlink(entry);
  drop_slot(entry);
  (*this)[entry].older = std::exchange(free_entry_, entry);
}

void NodeStore::drop_slot(uint32_t entry) {
  if (const uint32_t slot = std::exchange((*this)[entry].slot, kNone); slot != kNone)
    free_slots_.as<uint32_t>()[num_free_slots_++] = slot;
}

void NodeStore::move(uint32_t entry, uint32_t to) {
  unlink(entry);
  link(entry, to);
}

void NodeStore::link(uint32_t entry, uint32_t to) {
  List& list = lists_.as<List>()[to];
  Entry& e = (*this)[entry];
  e.list = to;
  e.newer = kNone;
  e.older = list.head;
  (list.head == kNone ? list.tail : (*this)[list.head].newer) = entry;
  list.head = entry;
  ++list.size;
}

void NodeStore::unlink(uint32_t entry) {
  const Entry& e = (*this)[entry];
  List& list = lists_.as<List>()[e.list];
  (e.newer == kNone ? list.head : (*this)[e.newer].older) = e.older;
  (e.older == kNone ? list.tail : (*this)[e.older].newer) = e.newer;
  --list.size;
}

}  // namespace outcrop
