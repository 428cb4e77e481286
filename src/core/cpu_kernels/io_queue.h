// The kernels of kernels/io_queue.h on the CPU: what reads through rings where there is no GPU, and what
// sanitizers see.
#pragma once
#include <cstdint>
#include <span>

#include "kernels/io_queue.h"

namespace outcrop {

void cpu_io_submit(const kernels::Submit& submit);

// Waits at most deadline_ns, until a group has all that it waits for. Groups go over all queues.
void cpu_io_complete(std::span<const kernels::Complete> queues, int64_t deadline_ns);
void cpu_io_complete(const kernels::Complete& complete, int64_t deadline_ns);

// A row for each queue, as of io_queue.cu.
void cpu_io_submit(std::span<const kernels::Submit> queues);

}  // namespace outcrop
