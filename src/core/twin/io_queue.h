// The kernels of kernels/io_queue.h on the CPU: what reads through rings where there is no GPU, and what
// sanitizers see.
#pragma once
#include <cstdint>

#include "kernels/io_queue.h"

namespace outcrop {

void twin_io_submit(const kernels::Submit& submit);

// Waits at most deadline_ns, until a group has all that it waits for.
void twin_io_complete(const kernels::Complete& complete, int64_t deadline_ns);

// The same, from the arguments of the kernels' entry points (io_queue.cu) in their order.
inline constexpr int kQueueArguments = 11, kSubmitArguments = kQueueArguments + 16,
                     kCompleteArguments = kQueueArguments + 4;
void twin_io_submit(const int64_t* arguments);
void twin_io_complete(const int64_t* arguments);

}  // namespace outcrop
