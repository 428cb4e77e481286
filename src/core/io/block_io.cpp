#include "io/block_io.h"

#include <cerrno>

#include "base/error.h"
#include "io/pread_backend.h"
#include "io/uring_backend.h"

namespace outcrop {

std::shared_ptr<BlockIo> BlockIo::create(const IoOptions& options, std::shared_ptr<Budget> budget) {
  if (options.depth == 0)
    throw Error(ErrorKind::argument, "an I/O depth of 0 reads nothing; 1 or more is needed");
  if (options.backend == Backend::pread) return make_pread_backend(options, *budget);
  try {
    return make_uring_backend(options, *budget);
  } catch (const Error& e) {
    // Anything but a full budget means that io_uring is not to be had: missing, forbidden, out of locked
    // memory.
    if (options.backend == Backend::uring || e.kind() != ErrorKind::io) throw;
  }
  return make_pread_backend(options, *budget);
}

void BlockIo::read(FileId file, uint64_t offset, void* data, uint64_t length) {
  submit(IoOp::read, {{file, offset, length, static_cast<std::byte*>(data)}})->wait();
}

void BlockIo::write(FileId file, uint64_t offset, const void* data, uint64_t length) {
  // Writes only read the memory.
  submit(IoOp::write, {{file, offset, length, static_cast<std::byte*>(const_cast<void*>(data))}})->wait();
}

}  // namespace outcrop
