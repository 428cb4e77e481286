// Block I/O with a pool of threads that call pread and pwrite: for systems where io_uring is missing or
// forbidden.
#pragma once
#include <memory>

#include "io/block_io.h"

namespace outcrop {

std::shared_ptr<BlockIo> make_pread_backend(const IoOptions& options, Budget& budget);

}  // namespace outcrop
