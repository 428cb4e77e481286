// Which nodes have their features, and which their neighbour lists, in a static cache: one lookup for both
// (Hyperion, section III-B; "unified" there). Cached rows and lists lie in ascending order of node id, so
// that a node's place is the number of cached nodes before it: three bits a node and no hashing.
//
// A block is 64 nodes: a bit for each in either set, and how many are set in the blocks before. Not changed
// once made. Where nothing is cached it takes no memory.
#pragma once
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "base/budget.h"

namespace outcrop {

class HotIndex {
 public:
  static uint64_t bytes(int64_t num_nodes) {
    return (static_cast<uint64_t>(num_nodes) / 64 + 1) * sizeof(Block);
  }
  // Both ascending, without repeats. Throws Error(argument) where they are not, or leave [0, num_nodes).
  HotIndex(Budget& budget, int64_t num_nodes, std::span<const int64_t> rows, std::span<const int64_t> lists);

  int64_t num_nodes() const { return num_nodes_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_lists() const { return num_lists_; }
  // -1: not cached. `id` must be below num_nodes.
  int64_t row_of(int64_t id) const {
    if (blocks_.empty()) return -1;
    const Block& b = blocks_[static_cast<uint64_t>(id) / 64];
    return place(b.rows, b.rows_before, id);
  }
  int64_t list_of(int64_t id) const {
    if (blocks_.empty()) return -1;
    const Block& b = blocks_[static_cast<uint64_t>(id) / 64];
    return place(b.lists, b.lists_before, id);
  }

 private:
  struct Block {
    uint64_t rows = 0, lists = 0;
    uint32_t rows_before = 0, lists_before = 0;
  };
  static int64_t place(uint64_t bits, uint32_t before, int64_t id) {
    const uint64_t bit = uint64_t{1} << (static_cast<uint64_t>(id) % 64);
    return bits & bit ? int64_t{before} + std::popcount(bits & (bit - 1)) : -1;
  }
  int64_t num_nodes_, num_rows_, num_lists_;
  Reservation held_;
  std::vector<Block> blocks_;
};

}  // namespace outcrop
