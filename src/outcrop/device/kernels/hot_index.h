// Which nodes are in a static cache, and at which place: the blocks of core/cache/hot_index.h, which reads them by this
// code too, so that a GPU finds what the CPU finds.
#pragma once
#include "kernels/portable.h"

namespace outcrop::kernels {

// 64 nodes: a bit for each whose row, and whose list, is cached, and how many are in the blocks before.
struct HotBlock {
  uint64 rows = 0, lists = 0;
  uint32 rows_before = 0, lists_before = 0;
};

// -1: not cached.
OUTCROP_DEVICE int64 hot_place(uint64 bits, uint32 before, int64 id) {
  const uint64 bit = uint64{1} << (static_cast<uint64>(id) % 64);
  return bits & bit ? int64{before} + OUTCROP_POPCOUNT(bits & (bit - 1)) : -1;
}

// `blocks` may be null: nothing is cached. `id` must be a node.
OUTCROP_DEVICE int64 hot_row(const HotBlock* blocks, int64 id) {
  return blocks == nullptr ? -1 : hot_place(blocks[id / 64].rows, blocks[id / 64].rows_before, id);
}
OUTCROP_DEVICE int64 hot_list(const HotBlock* blocks, int64 id) {
  return blocks == nullptr ? -1 : hot_place(blocks[id / 64].lists, blocks[id / 64].lists_before, id);
}

}  // namespace outcrop::kernels
