// Block I/O through io_uring: one thread owns the ring and keeps it full across jobs.
#pragma once
#include <memory>

#include "io/block_io.h"

namespace outcrop {

// Throws Error(io) with the errno of the setup where io_uring is missing, forbidden or out of memory.
std::shared_ptr<BlockIo> make_uring_backend(const IoOptions& options, Budget& budget);

}  // namespace outcrop
