// out[i] = table[index[i]] for rows of any width, read where they lie: over PCIe where the table is in host memory.
//
// A warp copies a row at a time, by loads of 16 bytes at addresses of 16 bytes whatever the row is aligned to: two of a
// lane, 1 KiB of a warp, are under way before the first is written down. The first begins at a line of 128 bytes, so that
// every line is asked for once (PyTorch-Direct, section 4.5, shifts the threads of the whole grid, by one word each, which
// asks for one line more). On an H200, rows of 2052 bytes in host memory come at 0.91 of the bus's copies, where loads
// of a word for each lane have 0.62; no loads had more than 0.925, as lines of 128 bytes go over PCIe.
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

constexpr int kChunkBytes = 16;
constexpr int kChunksAhead = 2;
constexpr int64 kRoundBytes = kWarp * kChunkBytes;

// Where the chunk of a lane in a round begins, from the row at an address on: before it where negative.
OUTCROP_DEVICE int64 chunk_of(uint64 address, int64 round, int lane) {
  return round * kRoundBytes + lane * kChunkBytes - static_cast<int64>(address % kLineBytes);
}

// Rounds of a warp over a row.
OUTCROP_DEVICE int64 rounds_of(uint64 address, int64 bytes) {
  return (static_cast<int64>(address % kLineBytes) + bytes + kRoundBytes - 1) / kRoundBytes;
}

// Whether some of a chunk at `at` is of the row.
OUTCROP_DEVICE bool touches(int64 at, int64 bytes) { return at + kChunkBytes > 0 && at < bytes; }

template <typename Word>
constexpr int kWordsOfChunk = kChunkBytes / static_cast<int>(sizeof(Word));

// Word j of a chunk, and the same into it, where it is 0.
template <typename Word>
OUTCROP_DEVICE Word word_of(const Word16& chunk, int j) {
  if constexpr (sizeof(Word) == 16) {
    return chunk;
  } else if constexpr (sizeof(Word) == 8) {
    return chunk.parts[2 * j] | static_cast<uint64>(chunk.parts[2 * j + 1]) << 32;
  } else {
    constexpr int kEach = 4 / static_cast<int>(sizeof(Word));
    return static_cast<Word>(chunk.parts[j / kEach] >> (32 / kEach * (j % kEach)));
  }
}

template <typename Word>
OUTCROP_DEVICE void set_word(Word16& chunk, int j, Word word) {
  if constexpr (sizeof(Word) == 16) {
    chunk = word;
  } else if constexpr (sizeof(Word) == 8) {
    chunk.parts[2 * j] = static_cast<uint32>(word);
    chunk.parts[2 * j + 1] = static_cast<uint32>(word >> 32);
  } else {
    constexpr int kEach = 4 / static_cast<int>(sizeof(Word));
    chunk.parts[j / kEach] |= static_cast<uint32>(word) << (32 / kEach * (j % kEach));
  }
}

// Bytes that may be read although they are of other rows.
struct Extent {
  const uint8* begin;
  const uint8* end;
};

OUTCROP_DEVICE Extent extent_of(const uint8* table, int64 stride, int64 rows, int64 row_bytes) {
  return {table, table + (rows - 1) * stride + row_bytes};
}

// The chunk at `at` of the row: all of it where it may be read, else the row's words.
template <typename Word>
OUTCROP_DEVICE Word16 read_chunk(const uint8* row, int64 at, int64 bytes, const Extent& extent) {
  Word16 chunk{};
  if (!touches(at, bytes)) return chunk;
  if (row + at >= extent.begin && row + at + kChunkBytes <= extent.end) {
    return *reinterpret_cast<const Word16*>(row + at);
  }
  OUTCROP_UNROLL
  for (int j = 0; j < kWordsOfChunk<Word>; ++j) {
    const int64 word = at + j * static_cast<int64>(sizeof(Word));
    if (word >= 0 && word < bytes) set_word<Word>(chunk, j, *reinterpret_cast<const Word*>(row + word));
  }
  return chunk;
}

template <typename Word>
OUTCROP_DEVICE void write_chunk(const Word16& chunk, uint8* row, int64 at, int64 bytes) {
  if (at >= 0 && at + kChunkBytes <= bytes && reinterpret_cast<uint64>(row + at) % kChunkBytes == 0) {
    *reinterpret_cast<Word16*>(row + at) = chunk;
    return;
  }
  OUTCROP_UNROLL
  for (int j = 0; j < kWordsOfChunk<Word>; ++j) {
    const int64 word = at + j * static_cast<int64>(sizeof(Word));
    if (word >= 0 && word < bytes) *reinterpret_cast<Word*>(row + word) = word_of<Word>(chunk, j);
  }
}

template <typename Word>
OUTCROP_DEVICE void copy_row(const uint8* source, uint8* target, int64 words, int lane, const Extent& extent) {
  const int64 bytes = words * static_cast<int64>(sizeof(Word));
  const uint64 address = reinterpret_cast<uint64>(source);
  const int64 rounds = rounds_of(address, bytes);
  for (int64 round = 0; round < rounds; round += kChunksAhead) {
    Word16 chunks[kChunksAhead];
    OUTCROP_UNROLL
    for (int ahead = 0; ahead < kChunksAhead; ++ahead) {
      chunks[ahead] = read_chunk<Word>(source, chunk_of(address, round + ahead, lane), bytes, extent);
    }
    OUTCROP_UNROLL
    for (int ahead = 0; ahead < kChunksAhead; ++ahead) {
      write_chunk<Word>(chunks[ahead], target, chunk_of(address, round + ahead, lane), bytes);
    }
  }
}

template <typename Word, typename Index>
OUTCROP_DEVICE void gather(const Gather<Index>& g, const Lane& me) {
  const Extent extent = extent_of(g.table, g.table_stride, g.num_rows, g.row_words * static_cast<int64>(sizeof(Word)));
  for (int64 i = me.warp; i < g.count; i += me.warps) {
    const int64 row = static_cast<int64>(g.index[i]);
    if (row < 0 || row >= g.num_rows) {
      if (me.lane == 0) *g.wrong = i + 1;
      continue;
    }
    copy_row<Word>(g.table + row * g.table_stride, g.out + i * g.out_stride, g.row_words, me.lane,
                   extent);
  }
}

}  // namespace outcrop::kernels
