// What was asked of the disk, counted once, where it happens.
#pragma once
#include <cstdint>

namespace outcrop {

struct IoCounters {
  uint64_t read_bytes = 0;  // bytes delivered by the operating system, alignment included
  uint64_t read_ops = 0;    // read requests as submitted (a finished short read counts once)
  uint64_t write_bytes = 0;
  uint64_t write_ops = 0;
  uint64_t bounce_bytes = 0;  // bytes that had to be copied because a request was not aligned
  uint64_t short_reads = 0;   // reads that had to be continued
  uint64_t retries = 0;       // EINTR/EAGAIN resubmissions
};

}  // namespace outcrop
