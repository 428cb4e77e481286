// Fault injection: what the engine should pretend that the operating system did, decided by a keyed hash of
// the number of the operation and of its attempt. Operations are numbered in the order in which jobs are
// submitted, so a run with one submitting thread can be repeated exactly. Both backends ask here before each
// system call.
#pragma once
#include <cstdint>

#include "io/block_io.h"

namespace outcrop {

struct Fault {
  int error = 0;        // errno to report instead of asking the system; 0: ask it
  uint64_t length = 0;  // bytes to ask it for, at least 1
};

// number: of the operation; attempt: 0 for its first system call; length: bytes still wanted; direct: keep
// `length` a multiple of a sector; written: bytes that all earlier writes, and this one so far, were to
// write.
Fault decide_fault(const FaultPlan& plan, IoOp op, uint64_t number, unsigned attempt, uint64_t length,
                   bool direct, uint64_t written);

}  // namespace outcrop
