// One place of the buffer changes hands while training goes on: what is there is written, then what comes is
// read over it, in a thread of its own, which also works out the checksums of both.
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

#include "io/block_io.h"

namespace outcrop {

struct SlabPlace {
  FileId file;
  uint64_t offset;
};

class SlabSwap {
 public:
  SlabSwap(std::shared_ptr<BlockIo> io, std::span<std::byte> slab, std::optional<SlabPlace> write,
           std::optional<SlabPlace> read);
  ~SlabSwap();
  SlabSwap(const SlabSwap&) = delete;
  SlabSwap& operator=(const SlabSwap&) = delete;

  void wait();  // throws what failed, each time
  bool done() const { return done_; }
  // CRC-32C of what was written and read, after wait(); 0 where there was nothing.
  uint32_t written_crc() const { return written_crc_; }
  uint32_t read_crc() const { return read_crc_; }

 private:
  void run();
  void transfer(IoOp op, const SlabPlace& place);

  const std::shared_ptr<BlockIo> io_;
  const std::span<std::byte> slab_;
  const std::optional<SlabPlace> write_, read_;
  uint32_t written_crc_ = 0, read_crc_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> done_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace outcrop
