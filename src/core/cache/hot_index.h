// Which nodes have their features, and which their neighbour lists, in a static cache: one lookup for both
// (Hyperion, section III-B; "unified" there). Cached rows and lists lie in ascending order of node id, so
// that a node's place is the number of cached nodes before it: three bits a node and no hashing.
//
// A block is 64 nodes: a bit for each in either set, and how many are set in the blocks before. Not changed
// once made. Where nothing is cached it takes no memory.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/budget.h"
#include "base/error.h"
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
  // Writes the positions in `ids` of the cached rows and the rows they are, then the same of the lists; returns how
  // many of each. Each array has room for all ids. Throws Error(argument) for an id that is no node.
  template <class Id>
  std::pair<size_t, size_t> find(std::span<const Id> ids, int32_t* row_positions, int32_t* rows,
                                 int32_t* list_positions, int32_t* lists) const;
  // As kernels read them; empty where nothing is cached.
  std::span<const kernels::HotBlock> blocks() const { return blocks_; }

 private:
  using Block = kernels::HotBlock;
  const Block* data() const { return blocks_.empty() ? nullptr : blocks_.data(); }
  int64_t num_nodes_, num_rows_, num_lists_;
  Reservation held_;
  std::vector<Block> blocks_;
};

template <class Id>
std::pair<size_t, size_t> HotIndex::find(std::span<const Id> ids, int32_t* row_positions, int32_t* rows,
                                         int32_t* list_positions, int32_t* lists) const {
  size_t found_rows = 0, found_lists = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids[i];
    if (id < 0 || id >= num_nodes_)
      throw Error(ErrorKind::argument,
                  "row " + std::to_string(id) + " of " + std::to_string(num_nodes_) + " is looked up");
    // Written in any case and counted if found: whether it is, nobody can predict.
    const int64_t row = row_of(id), list = list_of(id);
    row_positions[found_rows] = list_positions[found_lists] = static_cast<int32_t>(i);
    rows[found_rows] = static_cast<int32_t>(row);
    lists[found_lists] = static_cast<int32_t>(list);
    found_rows += row >= 0;
    found_lists += list >= 0;
  }
  return {found_rows, found_lists};
}

}  // namespace outcrop
