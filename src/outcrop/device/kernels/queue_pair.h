// A queue pair as NVM Express has it, in memory that both sides see: a ring of commands, a ring of
// completions, a doorbell of each. The same code runs on a GPU, on the CPU (core/rings) and over a
// controller's registers (a driver).
//
// A command is 64 bytes, a completion 16. Entry i of the completion ring is new when its phase bit is the one
// expected of this round of the ring (1 in the first). A completion is published by one release store of its
// last word, which has phase, status and command id together, so that one acquire load sees all or nothing. A
// command's id says where its data goes; it is the submitter's to give and is free again when its completion
// was taken: the slot of the ring is none, since slots come free in the order of fetching and ids in the
// order of completion.
#pragma once
#include "kernels/portable.h"

namespace outcrop::kernels {

constexpr uint32 kBlockBytes = 512;  // unit of a command's address
constexpr uint32 kMemoryPage =
    4096;  // a command names at most two of these: longer transfers are more commands
constexpr uint8 kWriteOpcode = 1, kReadOpcode = 2;

// Statuses: what kind of error in bits 8 to 10, which one in bits 0 to 7.
constexpr uint32 kDone = 0, kInvalidOpcode = 0x001, kInvalidField = 0x002, kInvalidSpace = 0x00b,
                 kBeyondEnd = 0x080, kUnwritable = 0x280, kUnreadable = 0x281;

struct alignas(64) Command {
  uint8 opcode, flags;
  uint16 id;
  uint32 space;  // namespace, 1 is the first
  uint64 reserved, metadata;
  uint64 data[2];   // bus addresses: where it begins, and the page that it goes on in (0: none)
  uint32 words[6];  // of a read or write: first block (low, high), blocks less one
};
static_assert(sizeof(Command) == 64);

struct alignas(16) Completion {
  uint32 result, reserved;
  uint16 head, queue;  // commands fetched so far (modulo the ring)
  uint32 last;         // id, bits 0..15; phase, bit 16; status, bits 17..31 (0: done)
};
static_assert(sizeof(Completion) == 16);

struct QueuePair {
  Command* commands;
  Completion* completions;
  uint32* command_doorbell;     // written by the submitter: one past the last command
  uint32* completion_doorbell;  // written by the submitter: one past the last completion that it took
  uint32 depth;                 // entries of each ring; one is always left free
};

OUTCROP_DEVICE uint32 load_acquire(const uint32* from) {
#if defined(__CUDACC__)
  uint32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

OUTCROP_DEVICE void store_release(uint32* to, uint32 value) {
#if defined(__CUDACC__)
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}

// After all that was written before by this thread, whatever kind of memory the register is in.
OUTCROP_DEVICE void ring(uint32* doorbell, uint32 value) {
#if defined(__CUDACC__)
  asm volatile("fence.acq_rel.sys; st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(doorbell), "r"(value)
               : "memory");
#else
  __atomic_store_n(doorbell, value, __ATOMIC_RELEASE);
#endif
}

// Moves `blocks` blocks to or from `address`, which is a multiple of a block; they go over at most one page
// boundary.
OUTCROP_DEVICE Command block_command(uint8 opcode, uint16 id, uint64 first_block, uint32 blocks, uint64 address) {
  Command c{};
  c.opcode = opcode;
  c.id = id;
  c.space = 1;
  c.data[0] = address;
  const uint64 next = (address / kMemoryPage + 1) * kMemoryPage;
  c.data[1] = address + uint64{blocks} * kBlockBytes > next ? next : 0;
  c.words[0] = static_cast<uint32>(first_block);
  c.words[1] = static_cast<uint32>(first_block >> 32);
  c.words[2] = blocks - 1;
  return c;
}

OUTCROP_DEVICE Command read_command(uint16 id, uint64 first_block, uint32 blocks, uint64 address) {
  return block_command(kReadOpcode, id, first_block, blocks, address);
}

OUTCROP_DEVICE uint32 completion_word(uint16 id, uint32 phase, uint32 status) {
  return id | phase << 16 | status << 17;
}

struct Taken {
  bool ready;
  uint16 id;
  uint32 status;
};

// Whether `entry` is new in the round whose phase bit is `phase`, and what it says.
OUTCROP_DEVICE Taken look(const Completion* entry, uint32 phase) {
  const uint32 last = load_acquire(&entry->last);
  return {(last >> 16 & 1) == phase, static_cast<uint16>(last), last >> 17};
}

}  // namespace outcrop::kernels
