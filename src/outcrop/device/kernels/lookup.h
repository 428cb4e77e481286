// Where the row of each node of a mini-batch lies: in a cache of the GPU or of the host, or among those that are read,
// which are listed; found by the GPU that drew the batch, for every node at once (Hyperion, section III-B1).
//
// A batch's nodes come ascending, as sampling sorts them, so that the list of those that are read is ascending too: pages
// are read in order. Two passes, each a launch, a lane per node; between them the caller sums the marks.
//   look_up       the place of each row, as assemble.h takes it, and a mark of what kind it is.
//   list_missing  which rows are read, where each stands in the batch, and how many there are of each kind.
#pragma once
#include "kernels/assemble.h"
#include "kernels/hot_index.h"
#include "kernels/sample.h"

namespace outcrop::kernels {

// Tables of assemble.h: the cache on the device, that of the host, and the buffer of the batch, a row for each node.
enum RowTable : uint64 { kOnDevice, kInHost, kStaged };

// Of a row that is read the mark is 1, of one in the host's cache kOneInHost, of one on the device 0.
constexpr int64 kOneInHost = int64{1} << 32;

struct LookUp {
  const HotBlock* blocks;    // which rows are cached; null: none
  const int32* tiers;        // [cached rows]: a row's number in the host, or -1 less its number on the device;
                             // null: all are in the host, by their places in the index
  int64 room;                // nodes at the most
  const int64 *ids, *local;  // [room]: nodes ascending, kNone behind them; the place of each in the batch
  uint64* place;             // [nodes of the batch]
  int64* marks;              // [room]
};

OUTCROP_DEVICE void look_up(const LookUp& l, const Lane& me) {
  for (int64 i = first_of(me); i < l.room; i += lanes_of(me)) {
    l.marks[i] = 0;
    if (l.ids[i] == kNone) continue;
    const int64 local = l.local[i], row = hot_row(l.blocks, l.ids[i]);
    const int64 tier = row < 0 || l.tiers == nullptr ? row : int64{l.tiers[row]};
    const uint64 table = row < 0 ? kStaged : tier < 0 ? kOnDevice : kInHost;
    const int64 at = row < 0 ? local : tier < 0 ? -1 - tier : tier;
    l.place[local] = table << kTableShift | static_cast<uint64>(at);
    l.marks[i] = table == kStaged ? 1 : table == kInHost ? kOneInHost : 0;
  }
}

struct ListMissing {
  int64 room;
  const int64 *ids, *local;  // [room], as above
  const int64* sums;         // [room], of marks
  int64* missing;            // [rows that are read]: node ids, ascending
  int32* positions;          // as long: the place of each in the batch
  int64* counts;             // [2]: rows that are read, rows in the host's cache
};

OUTCROP_DEVICE int64 missing_of(int64 sums) { return sums & (kOneInHost - 1); }

OUTCROP_DEVICE void list_missing(const ListMissing& l, const Lane& me) {
  for (int64 i = first_of(me); i < l.room; i += lanes_of(me)) {
    const int64 before = i == 0 ? 0 : missing_of(l.sums[i - 1]), after = missing_of(l.sums[i]);
    if (after > before) {
      l.missing[before] = l.ids[i];
      l.positions[before] = static_cast<int32>(l.local[i]);
    }
    if (i == l.room - 1) {
      l.counts[0] = after;
      l.counts[1] = l.sums[i] / kOneInHost;
    }
  }
}

}  // namespace outcrop::kernels
