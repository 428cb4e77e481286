// Rows of a file, read through a queue pair: the submission kernel writes commands and rings, the completion kernel
// waits for what comes back and moves rows from staging memory to their place. Between the two the GPU is free
// (Hyperion, section III-A).
//
// A row is read as pieces of kPieceBytes, by a command each, which reads the blocks that the piece touches. Rows that
// share a block are read each for itself. As every row has as many pieces, the place of every command is known: command
// number n (of all ever given) takes the id that entry n of a ring of free ids holds, and goes to entry n of the ring of
// commands; the completion at entry n, whichever id it brings, gives that id back to entry n of the ring of ids. Nobody
// locks or counts. There are fewer ids than entries, so that no ring runs over: see also queue_pair.h.
//
// What failed is counted by status and its row is left as it was. Once a completion did not come in time, or made no
// sense, counts[kLost] is not 0: the rings are of no use any more, and nothing waits or submits again.
#pragma once
#include "kernels/gather.h"
#include "kernels/queue_pair.h"

namespace outcrop::kernels {

constexpr int64 kMaxBlocks = 2 * kMemoryPage / kBlockBytes;  // of a command
constexpr int64 kPieceBytes = (kMaxBlocks - 1) * kBlockBytes;  // touches no more, wherever it begins

constexpr uint32 kStatuses = 2048;  // code and type of a status; the other bits only say what to do
constexpr uint32 kLost = 0;         // in counts: completions that did not come, or made no sense
constexpr uint32 kOtherStatus = kStatuses - 1;

// What is to be done when the command with an id is done.
struct Landing {
  uint8* to;
  uint32 from;   // bytes of staging before those that are wanted
  uint32 bytes;  // 0: no command with this id is under way
};
static_assert(sizeof(Landing) == 16);

// A queue pair with what its submitter keeps.
struct IoQueue {
  QueuePair pair;
  uint16* free_ids;
  Landing* landings;  // by id
  int64 num_ids;      // below pair.depth
  uint8* staging;     // of an id: slot_bytes, which go over at most one page boundary
  int64 slot_bytes;
  uint32* counts;  // kStatuses
};

struct FileRows {
  int64 base, stride, row_bytes;
};

OUTCROP_DEVICE int64 pieces_of(const FileRows& rows) {
  return (rows.row_bytes + kPieceBytes - 1) / kPieceBytes;
}

// Whole blocks that a piece of so many bytes can touch.
OUTCROP_DEVICE int64 blocks_of(int64 bytes) { return (bytes + kBlockBytes - 2) / kBlockBytes + 1; }

struct Submit {
  IoQueue queue;
  uint64 bus;  // address of staging as the controller knows it
  FileRows rows;
  const int64* wanted;  // out[i] = row wanted[i]; with places: out[places[i]]
  uint8* out;
  int64 out_stride;
  int64 first, count;          // commands of `wanted`: row by row, piece by piece
  int64 submitted, completed;  // commands, before
  int64 told;                  // of those completed, what the completion doorbell was told of
  const int32* places;         // or none
};

struct Complete {
  IoQueue queue;
  const uint32* ended;  // not 0: the controller serves no more
  int64 count;
  int64 completed;  // before
};

OUTCROP_DEVICE void count_one(uint32* at) {
#if defined(__CUDACC__)
  atomicAdd(at, 1u);
#else
  __atomic_fetch_add(at, 1u, __ATOMIC_RELAXED);
#endif
}

OUTCROP_DEVICE bool lost(const IoQueue& queue) { return load_acquire(&queue.counts[kLost]) != 0; }

// Command i of s.
OUTCROP_DEVICE void submit_one(const Submit& s, int64 i) {
  const IoQueue& q = s.queue;
  const int64 pieces = pieces_of(s.rows), row = (s.first + i) / pieces;
  const int64 begin = (s.first + i) % pieces * kPieceBytes, rest = s.rows.row_bytes - begin;
  const int64 bytes = rest < kPieceBytes ? rest : kPieceBytes;
  const int64 offset = s.rows.base + s.wanted[row] * s.rows.stride + begin;
  const int64 block = offset / kBlockBytes, from = offset % kBlockBytes;
  const int64 number = s.submitted + i;
  const uint16 id = q.free_ids[number % q.num_ids];
  const int64 place = s.places ? s.places[row] : row;
  q.landings[id] = {s.out + place * s.out_stride + begin, static_cast<uint32>(from), static_cast<uint32>(bytes)};
  q.pair.commands[number % q.pair.depth] =
      read_command(id, static_cast<uint64>(block), static_cast<uint32>((from + bytes - 1) / kBlockBytes + 1),
                   s.bus + static_cast<uint64>(id * q.slot_bytes));
}

// By one thread, after all commands are written. Completions that were taken since the last time are told first: there
// is then room for those of the new commands.
OUTCROP_DEVICE void ring_submitted(const Submit& s) {
  const QueuePair& pair = s.queue.pair;
  // A disk may take a doorbell that is told the same twice for a mistake.
  if (s.completed % pair.depth != s.told % pair.depth)
    ring(pair.completion_doorbell, static_cast<uint32>(s.completed % pair.depth));
  ring(pair.command_doorbell, static_cast<uint32>((s.submitted + s.count) % pair.depth));
}

// Completion i of c, as soon as it is there. `patience.over()` waits a little and says whether to give up.
template <typename Patience>
OUTCROP_DEVICE Taken await(const Complete& c, int64 i, Patience& patience) {
  const QueuePair& pair = c.queue.pair;
  const int64 number = c.completed + i;
  const Completion* entry = &pair.completions[number % pair.depth];
  const uint32 phase = number / pair.depth % 2 == 0 ? 1 : 0;
  for (;;) {
    // Once lost, commands are counted that were not submitted: what is in their entries is of earlier rounds.
    if (lost(c.queue)) return {};
    const bool last = load_acquire(c.ended) != 0;  // what came before that counts
    const Taken taken = look(entry, phase);
    if (taken.ready || last || patience.over()) return taken;
  }
}

// Whether the row of a completion can be moved.
OUTCROP_DEVICE bool landed(const IoQueue& q, const Taken& taken) {
  return taken.ready && taken.id < q.num_ids && taken.status == 0;
}

// By every lane of a warp: moves what a command has read.
template <typename Word>
OUTCROP_DEVICE void land(const IoQueue& q, const Taken& taken, int lane) {
  if (!landed(q, taken)) return;
  const Landing& landing = q.landings[taken.id];
  copy_row<Word>(q.staging + taken.id * q.slot_bytes + landing.from, landing.to,
                 landing.bytes / static_cast<int64>(sizeof(Word)), lane);
}

// By one lane, when all have moved theirs: the id is free again.
OUTCROP_DEVICE void settle(const Complete& c, int64 i, const Taken& taken) {
  const IoQueue& q = c.queue;
  if (!taken.ready || taken.id >= q.num_ids || q.landings[taken.id].bytes == 0) {
    count_one(&q.counts[kLost]);
    return;
  }
  if (taken.status != 0) {
    const uint32 status = taken.status % kStatuses;
    count_one(&q.counts[status == kLost ? kOtherStatus : status]);
  }
  q.landings[taken.id].bytes = 0;
  q.free_ids[(c.completed + i) % q.num_ids] = taken.id;
}

}  // namespace outcrop::kernels
