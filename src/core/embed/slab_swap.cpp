#include "embed/slab_swap.h"

#include <utility>

#include "base/checksum.h"

namespace outcrop {

SlabSwap::SlabSwap(std::shared_ptr<BlockIo> io, std::span<std::byte> slab, std::optional<SlabPlace> write,
                   std::optional<SlabPlace> read)
    : io_(std::move(io)), slab_(slab), write_(write), read_(read), thread_([this] { run(); }) {}

SlabSwap::~SlabSwap() {
  if (thread_.joinable()) thread_.join();
}

void SlabSwap::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(error_);
}

void SlabSwap::run() {
  try {
    if (write_) {
      written_crc_ = crc32c(slab_.data(), slab_.size());
      transfer(IoOp::write, *write_);
    }
    if (read_) {
      transfer(IoOp::read, *read_);
      read_crc_ = crc32c(slab_.data(), slab_.size());
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  done_ = true;
}

void SlabSwap::transfer(IoOp op, const SlabPlace& place) {
  io_->submit(op, {{place.file, place.offset, slab_.size(), slab_.data()}})->wait();
}

}  // namespace outcrop
