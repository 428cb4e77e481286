// out[i] = table[index[i]] for rows of any width, read where they lie: over PCIe where the table is in host memory.
//
// A warp copies a row at a time. Its lanes are shifted so that each round of reads begins at a 128-byte line of the true
// address, and what lies before the first line boundary is taken in the same round as the last words: every line is then
// asked for once (PyTorch-Direct, section 4.5, shifts the threads of the whole grid, which asks for one more).
#pragma once
#include "kernels/portable.h"

namespace outcrop::kernels {

// Rows of `row_words` words, `table_stride` and `out_stride` bytes apart; both ends of every copy are aligned to the word.
template <typename Index>
struct Gather {
  const uint8* table;
  int64 table_stride;
  int64 num_rows;
  const Index* index;
  int64 count;
  uint8* out;
  int64 out_stride;
  int64 row_words;
  int64* wrong;  // becomes 1 + i for some i of which index[i] is no row; such rows of out are left as they are
};

// Words that the row at an address begins after the boundary with which a warp can begin: of a line, or, where a line has
// more words than a warp has lanes, of as many words as it has lanes.
template <typename Word>
OUTCROP_DEVICE int64 shift_of(uint64 address) {
  return static_cast<int64>(address % kLineBytes / sizeof(Word) % kWarp);
}

// Rounds of a warp over a row.
OUTCROP_DEVICE int64 rounds_of(int64 words) { return (words + kWarp - 1) / kWarp; }

// The word of a row that a lane reads in a round: -1 for none.
OUTCROP_DEVICE int64 word_of(int64 round, int lane, int64 shift, int64 words) {
  const int64 at = round * kWarp + lane - shift;
  if (at >= 0) return at < words ? at : -1;
  const int64 wrapped = at + rounds_of(words) * kWarp;  // the end of the row, which rounds leave over
  return wrapped >= words ? -1 : wrapped;
}

template <typename Word>
OUTCROP_DEVICE void copy_row(const uint8* source, uint8* target, int64 words, int lane) {
  const int64 shift = shift_of<Word>(reinterpret_cast<uint64>(source));
  const Word* from = reinterpret_cast<const Word*>(source);
  Word* to = reinterpret_cast<Word*>(target);
  for (int64 round = 0; round < rounds_of(words); ++round) {
    const int64 at = word_of(round, lane, shift, words);
    if (at >= 0) to[at] = from[at];
  }
}

template <typename Word, typename Index>
OUTCROP_DEVICE void gather(const Gather<Index>& g, const Lane& me) {
  for (int64 i = me.warp; i < g.count; i += me.warps) {
    const int64 row = static_cast<int64>(g.index[i]);
    if (row < 0 || row >= g.num_rows) {
      if (me.lane == 0) *g.wrong = i + 1;
      continue;
    }
    copy_row<Word>(g.table + row * g.table_stride, g.out + i * g.out_stride, g.row_words, me.lane);
  }
}

}  // namespace outcrop::kernels
