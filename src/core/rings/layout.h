// Where the parts of a queue (kernels/io_queue.h) lie in one piece of memory that submitter and controller
// both see. What only the submitter uses may lie elsewhere: a GPU keeps it in its own memory.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/io_queue.h"

namespace outcrop {

// Of a Progress, its outcomes and its counts.
constexpr uint64_t progress_bytes(uint64_t num_ids) {
  return sizeof(kernels::Progress) + num_ids * sizeof(kernels::Outcome) +
         (num_ids + 1) * sizeof(kernels::uint32);
}

struct QueueLayout {
  uint64_t ids = 0;         // commands that can be under way
  uint64_t slot_bytes = 0;  // of staging, for each id
  uint64_t depth = 0;       // entries of a ring
  // From the beginning of the memory, which is that of a page:
  uint64_t staging = 0, commands = 0, completions = 0;
  uint64_t command_doorbell = 0, completion_doorbell = 0, ended = 0;  // each on a cache line of its own
  uint64_t progress = 0, free_ids = 0, landings = 0;                  // of the submitter
  uint64_t bytes = 0;                                                 // of all

  // For rows of row_bytes, as many ids as fit memory_bytes: at least 1, at most max_ids. Throws
  // Error(argument).
  static QueueLayout within(uint64_t row_bytes, uint64_t memory_bytes, uint64_t max_ids);

  // Over such memory, with groups of its own. Nothing is written; zeros are empty rings, and free ids are the
  // submitter's to begin.
  kernels::IoQueue at(std::byte* memory) const;
};

}  // namespace outcrop
