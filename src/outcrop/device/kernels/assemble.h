// out[i] = the row `place[i]` of whichever of several tables has it: the rows of a mini-batch from the device cache, the
// host cache and the staging buffer, each read where it lies, in one pass.
//
// Rows are copied as gather.h copies them. A place is a table's number in the highest byte and a row of it in the others.
#pragma once
#include "kernels/gather.h"

namespace outcrop::kernels {

constexpr int kTables = 3;
constexpr int kTableShift = 56;

struct Table {
  const uint8* rows;
  int64 stride;  // bytes
  int64 count;
};

struct Assemble {
  Table tables[kTables];
  const uint64* place;
  int64 count;
  uint8* out;
  int64 out_stride;
  int64 row_words;
  int64* wrong;  // becomes 1 + i for some i whose place is none; such rows of out are left as they are
};

// By comparisons: an index that the compiler does not know would put the tables on the stack of every thread.
OUTCROP_DEVICE Table table_of(const Assemble& a, int number) {
  const Table second = number == 1 ? a.tables[1] : a.tables[2];
  return number == 0 ? a.tables[0] : second;
}

template <typename Word>
OUTCROP_DEVICE void assemble(const Assemble& a, const Lane& me) {
  for (int64 i = me.warp; i < a.count; i += me.warps) {
    const uint64 place = a.place[i];
    const int number = static_cast<int>(place >> kTableShift);
    const int64 row = static_cast<int64>(place & ((1ULL << kTableShift) - 1));
    const Table from = table_of(a, number);
    if (number >= kTables || row >= from.count) {
      if (me.lane == 0) *a.wrong = i + 1;
      continue;
    }
    const int64 bytes = a.row_words * static_cast<int64>(sizeof(Word));
    copy_row<Word>(from.rows + row * from.stride, a.out + i * a.out_stride, a.row_words, me.lane,
                   extent_of(from.rows, from.stride, from.count, bytes));
  }
}

}  // namespace outcrop::kernels
