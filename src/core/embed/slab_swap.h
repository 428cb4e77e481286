// Places of the buffer change hands while training goes on: what is there is written, then what comes is read
// over it, one after the other, in a thread of its own, which also works out the checksums of both.
//
// The memory must live, and nobody else may touch it, until wait() has returned or the swap is gone (the
// destructor waits).
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "io/block_io.h"

namespace outcrop {

struct SlabPlace {
  FileId file;
  uint64_t offset;
};

struct SlabMove {
  std::span<std::byte> slab;
  std::optional<SlabPlace> write, read;
  // CRC-32C of what was written and read, once it was; 0 where there is nothing.
  uint32_t written_crc = 0, read_crc = 0;
};

class SlabSwap {
 public:
  SlabSwap(std::shared_ptr<BlockIo> io, std::vector<SlabMove> moves);
  ~SlabSwap();
  SlabSwap(const SlabSwap&) = delete;
  SlabSwap& operator=(const SlabSwap&) = delete;

  void wait();  // throws what failed, each time; nothing is moved after that
  bool done() const { return done_; }
  const std::vector<SlabMove>& moves() const { return moves_; }  // after wait()

 private:
  void run();
  void transfer(IoOp op, const SlabMove& move, const SlabPlace& place);

  const std::shared_ptr<BlockIo> io_;
  std::vector<SlabMove> moves_;
  std::exception_ptr error_;
  std::atomic<bool> done_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace outcrop
