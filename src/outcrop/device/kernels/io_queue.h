// Rows of a file, read through a queue pair: the submission kernel writes commands and rings, the completion
// kernel waits for what comes back and moves rows from staging memory to their place. Between the two the GPU
// is free (Hyperion, section III-A).
//
// A row is read as pieces, by a command each, which reads the blocks that the piece touches.
// Rows that share a block are read each for itself. As every row has as many pieces, the place of every
// command is known: command number n (of all ever given) takes the id that entry n of a ring of free ids
// holds, and goes to entry n of the ring of commands; the completion at entry n, whichever id it brings,
// gives that id back to entry n of the ring of ids. Nobody locks. There are fewer ids than entries, so that
// no ring runs over: see also queue_pair.h.
//
// Rows are written the same way: the submission kernel moves their pieces to staging memory before it writes
// the commands. Only rows of whole blocks can be (Legend, section 5: slabs of a table of embeddings).
//
// Several disks have a queue pair each. One kernel submits to all of them, a block to each, which rings once;
// another takes the completions of all (Hyperion, section II: batched doorbells of each queue; Legend,
// section 5: one block manages one queue). A command names its file, as a namespace of its controller.
//
// Commands that were asked for together are a group, in whichever queues they are. A completion kernel takes
// completions in the order of their rings, of whichever group they are, until some group has all of its own;
// what is not there by then is left to the next one. So one wait never waits for another's disk. Entries are
// claimed one after the other: what was taken is always the beginning of the ring. What became of each is
// noted in outcomes; a row that failed is left as it was.
//
// Once a completion did not come in time, or made no sense, `lost` is not 0: the rings are of no use any
// more, and nothing waits or submits again.
#pragma once
#include "kernels/gather.h"
#include "kernels/queue_pair.h"

namespace outcrop::kernels {

constexpr int64 kMaxBlocks = 2 * kMemoryPage / kBlockBytes;    // of a command
constexpr int64 kPieceBytes = (kMaxBlocks - 1) * kBlockBytes;  // touches no more, wherever it begins

constexpr uint32 kStatuses = 2048;  // code and type of a status; the other bits only say what to do
constexpr uint32 kOtherStatus = kStatuses - 1;
constexpr uint32 kSenseless = kStatuses;  // of an outcome: no command with such an id was under way

// What is to be done when the command with an id is done.
struct Landing {
  uint8* to;              // none: it was written
  uint32 bytes;           // 0: no command with this id is under way
  uint32 index;           // of the command in its group
  uint32 group_commands;  // of its group, in all queues
  uint16 from;            // bytes of staging before those that are wanted
  uint16 group;
};
static_assert(sizeof(Landing) == 24);

// Of one completion that a kernel took.
struct Outcome {
  uint32 last;   // group, bits 0..15; status, bits 16..31
  uint32 index;  // of the command in its group
  uint32 result, reserved;
};
static_assert(sizeof(Outcome) == 16);

// Of completion kernels, for each queue. On a GPU all but `lost` are to be 0 when one begins. `lost` and `stop` are
// looked at in one of the queues alone, for all.
struct Progress {
  uint32 lost;     // not 0: the rings are of no use any more
  uint32 claimed;  // completions taken by this kernel: outcomes[0 .. claimed)
  uint32 stop;     // not 0: a group has all of its own, or there is room to submit what waits
  uint32 looking;  // not 0: a warp is looking for the next completion
};

// A queue pair with what its submitter keeps.
struct IoQueue {
  QueuePair pair;
  uint16* free_ids;
  Landing* landings;  // by id
  int64 num_ids;      // below pair.depth
  uint8* staging;     // of an id: slot_bytes, which go over at most one page boundary
  int64 slot_bytes;
  Progress* progress;   // then num_ids outcomes, then num_ids + 1 counts (see group_ended_of)
  Progress* shared;     // of all queues that have groups together
  uint32* group_ended;  // by group: how many of its commands have ended, in all queues; 0 between two uses
};

OUTCROP_DEVICE Outcome* outcomes_of(const IoQueue& q) { return reinterpret_cast<Outcome*>(q.progress + 1); }
// Those of the queue whose progress is shared are the ones that are used.
OUTCROP_DEVICE uint32* group_ended_of(const IoQueue& q) {
  return reinterpret_cast<uint32*>(outcomes_of(q) + q.num_ids);
}

struct FileRows {
  int64 base, stride, row_bytes;
};

// The most that one command moves: whole pages where rows begin at them.
OUTCROP_DEVICE int64 piece_bytes(const FileRows& rows) {
  return (rows.base | rows.stride) % kMemoryPage == 0 ? 2 * kMemoryPage : kPieceBytes;
}
OUTCROP_DEVICE int64 pieces_of(const FileRows& rows) {
  return (rows.row_bytes + piece_bytes(rows) - 1) / piece_bytes(rows);
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
  int64 first, count;           // commands of `wanted`: row by row, piece by piece
  int64 submitted, completed;   // commands, before
  int64 told;                   // of those completed, what the completion doorbell was told of
  const int32* places;          // or none
  int64 write;                  // not 0: rows are written to the file, from `out`
  int64 group, group_commands;  // whose they are; how many it has in all
  const uint16* files;          // of each of `wanted`, the namespace that it is in, less one; none: the first
};

struct Complete {
  IoQueue queue;
  const uint32* ended;  // not 0: the controller serves no more
  int64 most;           // completions, below or equal to num_ids
  int64 completed;      // before
  int64 refill;  // not 0: commands wait for room in this queue, which there is once it has given `most`
};

// A completion that a warp has taken.
struct Claim {
  bool there;
  int64 queue;
  uint32 number;  // of those that the kernel takes from the queue
  Taken taken;
  uint32 bytes;  // of its landing; 0: it makes no sense
};

// Each of these is one step for all threads of the kernel.
OUTCROP_DEVICE bool claim_one(uint32* claimed, uint32 number) {
#if defined(__CUDACC__)
  return atomicCAS(claimed, number, number + 1) == number;
#else
  return __atomic_compare_exchange_n(claimed, &number, number + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
#endif
}
OUTCROP_DEVICE uint32 count_up(uint32* at) {
#if defined(__CUDACC__)
  return atomicAdd(at, 1u) + 1;
#else
  return __atomic_add_fetch(at, 1u, __ATOMIC_RELAXED);
#endif
}
OUTCROP_DEVICE uint32 take(uint32* at) {
#if defined(__CUDACC__)
  return atomicExch(at, 0u);
#else
  return __atomic_exchange_n(at, 0u, __ATOMIC_RELAXED);
#endif
}

OUTCROP_DEVICE bool lost(const IoQueue& queue) { return load_acquire(&queue.shared->lost) != 0; }

// Where a command of s moves what.
struct Piece {
  uint16 id;
  uint8* memory;  // of the caller
  uint32 space;   // of the file
  int64 offset;   // in the file
  int64 bytes;
};

OUTCROP_DEVICE Piece piece_of(const Submit& s, int64 i) {
  const int64 pieces = pieces_of(s.rows), most = piece_bytes(s.rows), row = (s.first + i) / pieces;
  const int64 begin = (s.first + i) % pieces * most, rest = s.rows.row_bytes - begin;
  const int64 place = s.places ? s.places[row] : row;
  return {s.queue.free_ids[(s.submitted + i) % s.queue.num_ids], s.out + place * s.out_stride + begin,
          s.files ? s.files[row] + 1u : 1u, s.rows.base + s.wanted[row] * s.rows.stride + begin,
          rest < most ? rest : most};
}

// By every lane of a warp: by the widest words that suit both ends.
OUTCROP_DEVICE void copy_bytes(const uint8* from, uint8* to, int64 bytes, int lane) {
  const uint64 all =
      reinterpret_cast<uint64>(from) | reinterpret_cast<uint64>(to) | static_cast<uint64>(bytes);
  const Extent own{from, from + bytes};
  if (all % 16 == 0) return copy_row<Word16>(from, to, bytes / 16, lane, own);
  if (all % 8 == 0) return copy_row<uint64>(from, to, bytes / 8, lane, own);
  if (all % 4 == 0) return copy_row<uint32>(from, to, bytes / 4, lane, own);
  if (all % 2 == 0) return copy_row<uint16>(from, to, bytes / 2, lane, own);
  copy_row<uint8>(from, to, bytes, lane, own);
}

// By every lane of a warp, before submit_one: what command i of s writes goes to staging memory.
OUTCROP_DEVICE void stage(const Submit& s, int64 i, int lane) {
  const Piece piece = piece_of(s, i);
  copy_bytes(piece.memory, s.queue.staging + piece.id * s.queue.slot_bytes, piece.bytes, lane);
}

// Command i of s.
OUTCROP_DEVICE void submit_one(const Submit& s, int64 i) {
  const IoQueue& q = s.queue;
  const Piece piece = piece_of(s, i);
  const int64 block = piece.offset / kBlockBytes, from = piece.offset % kBlockBytes;
  q.landings[piece.id] = {s.write ? nullptr : piece.memory, static_cast<uint32>(piece.bytes),
                          static_cast<uint32>(s.first + i), static_cast<uint32>(s.group_commands),
                          static_cast<uint16>(from),        static_cast<uint16>(s.group)};
  Command command = block_command(s.write ? kWriteOpcode : kReadOpcode, piece.id, static_cast<uint64>(block),
                                  static_cast<uint32>((from + piece.bytes - 1) / kBlockBytes + 1),
                                  s.bus + static_cast<uint64>(piece.id * q.slot_bytes));
  command.space = piece.space;
  q.pair.commands[(s.submitted + i) % q.pair.depth] = command;
}

// By one thread, after all commands are written. Completions that were taken since the last time are told
// first: there is then room for those of the new commands.
OUTCROP_DEVICE void ring_submitted(const Submit& s) {
  const QueuePair& pair = s.queue.pair;
  // A disk may take a doorbell that is told the same twice for a mistake.
  if (s.completed % pair.depth != s.told % pair.depth)
    ring(pair.completion_doorbell, static_cast<uint32>(s.completed % pair.depth));
  ring(pair.command_doorbell, static_cast<uint32>((s.submitted + s.count) % pair.depth));
}

// Whether this warp may look at the ring of completions; it then calls end_look(). One looks at a time: the ring is in
// memory of the host, and each look keeps the line of memory from whoever is to write the completion that all wait for.
OUTCROP_DEVICE bool begin_look(Progress* progress) {
#if defined(__CUDACC__)
  return atomicExch(&progress->looking, 1u) == 0;
#else
  return __atomic_exchange_n(&progress->looking, 1u, __ATOMIC_ACQUIRE) == 0;
#endif
}
OUTCROP_DEVICE void end_look(Progress* progress) {
#if defined(__CUDACC__)
  atomicExch(&progress->looking, 0u);
#else
  __atomic_store_n(&progress->looking, 0u, __ATOMIC_RELEASE);
#endif
}

enum class Look { nothing, taken, spent };

// The next completion of a queue that nobody has taken, if it is there; spent: `most` were taken. By one
// lane.
OUTCROP_DEVICE Look take_next(const Complete& c, Claim& mine) {
  const IoQueue& q = c.queue;
  for (;;) {
    const uint32 number = load_acquire(&q.progress->claimed);
    if (number >= c.most) return Look::spent;
    const int64 at = c.completed + number;
    const Taken taken = look(&q.pair.completions[at % q.pair.depth], at / q.pair.depth % 2 == 0 ? 1 : 0);
    if (!taken.ready) return Look::nothing;
    if (!claim_one(&q.progress->claimed, number)) continue;
    mine.there = true;
    mine.number = number;
    mine.taken = taken;
    mine.bytes = taken.id < q.num_ids ? take(&q.landings[taken.id].bytes) : 0;
    return Look::taken;
  }
}

// The next completion of any queue, `first` being asked first, as soon as it is there; none once a group has
// what it waits for. `queues(i)` is what to complete of queue i. `patience.over()` waits a little and says
// whether to give up. By one lane.
template <typename Queues, typename Patience>
OUTCROP_DEVICE Claim claim(const Queues& queues, int64 count, int64 first, Patience& patience) {
  for (;;) {
    Progress* const shared = queues(0).queue.shared;
    // Once lost, commands are counted that were not submitted: what is in their entries is of earlier rounds.
    if (load_acquire(&shared->lost) != 0) return {};
    bool stop = load_acquire(&shared->stop) != 0, ended = false, spent = true;
    for (int64 i = 0; i < count; ++i) {
      const int64 which = (first + i) % count;
      const Complete& c = queues(which);
      Progress* const progress = c.queue.progress;
      if (load_acquire(&progress->claimed) >= c.most) {
        if (c.refill) {
          store_release(&shared->stop, 1);
          stop = true;
        }
        continue;
      }
      spent = false;
      if (!begin_look(progress)) continue;
      const bool last = load_acquire(c.ended) != 0;  // what came before that counts
      Claim mine{};
      mine.queue = which;
      const Look found = take_next(c, mine);
      end_look(progress);
      if (found == Look::taken) return mine;
      if (found == Look::nothing) ended = ended || last;
    }
    if (spent || stop) return {};
    if (ended || patience.over()) {
      store_release(&shared->lost, 1);
      return {};
    }
  }
}

// By every lane of a warp: moves what a command has read.
OUTCROP_DEVICE void land(const IoQueue& q, const Claim& c, int lane) {
  if (!c.bytes || c.taken.status) return;
  const Landing& landing = q.landings[c.taken.id];
  if (landing.to) copy_bytes(q.staging + c.taken.id * q.slot_bytes + landing.from, landing.to, c.bytes, lane);
}

// By one lane, when all have moved theirs: the id is free again.
OUTCROP_DEVICE void settle(const Complete& c, const Claim& claim) {
  const IoQueue& q = c.queue;
  Outcome& outcome = outcomes_of(q)[claim.number];
  if (!claim.bytes) {
    outcome = {kSenseless << 16, 0, 0, 0};
    return store_release(&q.shared->lost, 1);
  }
  const Landing& landing = q.landings[claim.taken.id];
  uint32 status = claim.taken.status % kStatuses;
  if (claim.taken.status && !status) status = kOtherStatus;
  const uint32 result = q.pair.completions[(c.completed + claim.number) % q.pair.depth].result;
  outcome = {landing.group | status << 16, landing.index, result, 0};
  q.free_ids[(c.completed + claim.number) % q.num_ids] = claim.taken.id;
  if (count_up(&q.group_ended[landing.group]) == landing.group_commands) {
    q.group_ended[landing.group] = 0;
    store_release(&q.shared->stop, 1);
  }
}

// What to complete, by queue.
struct CompleteTable {
  const Complete* rows;
  OUTCROP_DEVICE const Complete& operator()(int64 queue) const { return rows[queue]; }
};

// The host writes tables of these as int64 words, a row for each queue.
static_assert(sizeof(IoQueue) == 13 * 8 && sizeof(Submit) == 30 * 8 && sizeof(Complete) == 17 * 8);

}  // namespace outcrop::kernels
