#include "embed/slab_swap.h"

#include <utility>

#include "base/checksum.h"
#include "base/parallel.h"

namespace outcrop {

SlabSwap::SlabSwap(std::shared_ptr<BlockIo> io, std::vector<SlabMove> moves)
    : io_(std::move(io)), moves_(std::move(moves)), thread_(start_thread([this] { run(); })) {}

SlabSwap::~SlabSwap() {
  if (thread_.joinable()) thread_.join();
}

void SlabSwap::wait() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(error_);
}

void SlabSwap::run() {
  try {
    for (SlabMove& move : moves_) {
      if (move.write) {
        move.written_crc = crc32c(move.slab.data(), move.slab.size());
        transfer(IoOp::write, move, *move.write);
      }
      if (move.read) {
        transfer(IoOp::read, move, *move.read);
        move.read_crc = crc32c(move.slab.data(), move.slab.size());
      }
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  done_ = true;
}

void SlabSwap::transfer(IoOp op, const SlabMove& move, const SlabPlace& place) {
  io_->submit(op, {{place.file, place.offset, move.slab.size(), move.slab.data()}})->wait();
}

}  // namespace outcrop
