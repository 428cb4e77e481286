// Which nodes have their features, and which their neighbour lists, in a static cache: one lookup for both
// (Hyperion, section III-B; "unified" there). Cached rows and lists lie in ascending order of node id, so
// that a node's place is the number of cached nodes before it: three bits a node and no hashing.
//
// A block is 64 nodes: a bit for each in either set, and how many are set in the blocks before. Not changed
// once made. Where nothing is cached it takes no memory.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/budget.h"
#include "kernels/hot_index.h"

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
  int64_t row_of(int64_t id) const { return kernels::hot_row(data(), id); }
  int64_t list_of(int64_t id) const { return kernels::hot_list(data(), id); }
  // As kernels read them; empty where nothing is cached.
  std::span<const kernels::HotBlock> blocks() const { return blocks_; }

 private:
  using Block = kernels::HotBlock;
  const Block* data() const { return blocks_.empty() ? nullptr : blocks_.data(); }
  int64_t num_nodes_, num_rows_, num_lists_;
  Reservation held_;
  std::vector<Block> blocks_;
};

}  // namespace outcrop
