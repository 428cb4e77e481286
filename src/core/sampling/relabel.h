// Global node id -> local id of one mini-batch: open addressing, linear probing, at most half full.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace outcrop {

class Relabel {
 public:
  // Makes room for `nodes` ids in all; forgets nothing. Slots handed out before are invalid afterwards.
  void reserve(size_t nodes) {
    const size_t capacity = std::bit_ceil(std::max<size_t>(2 * nodes, 64));
    if (capacity <= keys_.size()) return;
    std::vector<uint64_t> keys(capacity, kEmpty);
    std::vector<int32_t> locals(capacity);
    keys.swap(keys_);
    locals.swap(locals_);
    set_shift();
    for (size_t i = 0; i < keys.size(); ++i)
      if (keys[i] != kEmpty) locals_[insert(keys[i], 0).slot] = locals[i];
  }
  void clear() { std::fill(keys_.begin(), keys_.end(), kEmpty); }

  struct Found {
    size_t slot;
    bool is_new;
  };
  // Finds `id`, or enters it with `local`. Needs room (reserve).
  Found insert(uint64_t id, int32_t local) {
    size_t slot = home(id);
    while (keys_[slot] != id) {
      if (keys_[slot] == kEmpty) {
        keys_[slot] = id;
        locals_[slot] = local;
        return {slot, true};
      }
      slot = (slot + 1) & (keys_.size() - 1);
    }
    return {slot, false};
  }
  // Local id of `id`, or -1.
  int32_t find(uint64_t id) const {
    size_t slot = home(id);
    while (keys_[slot] != id) {
      if (keys_[slot] == kEmpty) return -1;
      slot = (slot + 1) & (keys_.size() - 1);
    }
    return locals_[slot];
  }
  int32_t& local(size_t slot) { return locals_[slot]; }
  void prefetch(uint64_t id) const { __builtin_prefetch(&keys_[home(id)]); }
  size_t memory_bytes() const {
    return keys_.capacity() * sizeof(uint64_t) + locals_.capacity() * sizeof(int32_t);
  }
  static size_t bytes_for(size_t nodes) {
    return std::bit_ceil(std::max<size_t>(2 * nodes, 64)) * (sizeof(uint64_t) + sizeof(int32_t));
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  size_t home(uint64_t id) const { return id * 0x9E3779B97F4A7C15ull >> shift_; }
  void set_shift() { shift_ = 64 - static_cast<unsigned>(std::countr_zero(keys_.size())); }
  std::vector<uint64_t> keys_;
  std::vector<int32_t> locals_;
  unsigned shift_ = 63;
};

}  // namespace outcrop
