// The thread that serves a queue pair from files, as a disk's controller would, by the I/O engine: any file,
// any file system, no privileges. Each file is a namespace: the first is number 1.
//
// Protocol. It polls the doorbell, fetches the commands behind it and gives each to the engine as a job of
// its own; as jobs end, in whatever order, the engine says so, and it publishes their completions. A command
// that makes no sense, or whose read failed, is completed with a status. Where nothing happens it looks at
// the doorbell less and less often. Invariants. Data is in staging memory before its completion is published.
// No completion overwrites one that was not taken. Memory that a command names outside staging is never
// written. If the thread itself fails it says so in `ended`, and why in error(). The memory of the queue must
// outlive the controller; its destructor waits for reads under way. In a forked child there is no thread:
// rings are not served there, and the destructor leaves everything alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/block_io.h"
#include "rings/layout.h"

namespace outcrop {

// For tests: decided by a keyed hash of the number of the command.
struct RingFaults {
  double error_probability = 0;  // completed with error_status, unread
  uint32_t error_status = kernels::kUnreadable;
  uint32_t delay_us = 0;              // completions are held back for a part of this
  bool shuffle = false;               // published in another order than finished
  uint64_t die_at = UINT64_MAX;       // at this command: serves no more and does not say so
  uint64_t fail_at = UINT64_MAX;      // at this command: as if the engine had thrown
  uint64_t repeat_at = UINT64_MAX;    // this completion has the id of the one before
  uint64_t silent_from = UINT64_MAX;  // commands for blocks from here on are never answered
  uint64_t seed = 0;
};

class RingController {
 public:
  // With `checksums` the result of a command is the CRC-32C of what it moved.
  RingController(std::shared_ptr<BlockIo> io, const std::vector<FileId>& files, const QueueLayout& layout,
                 std::byte* memory, const RingFaults& faults, bool checksums = false);
  ~RingController();
  uint64_t served() const;    // completions published
  std::string error() const;  // what went wrong last; empty: nothing

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace outcrop
