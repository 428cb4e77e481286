// An NVM Express controller (base specification 1.2 and later) with one namespace, driven from user space:
// reset, enable, identify, queue pairs, shutdown. Every wait has a deadline; every failure is an
// outcrop::Error that names the device.
//
// Commands that exist here: identify, set features (number of queues), create and delete queues, and what
// users of a queue pair put into it, which is reads (kernels/queue_pair.h, ReadQueue). There is none that
// writes. Protocol. The constructor leaves the controller enabled and identified. create_queue() may be
// called until the controller has no more. The destructor (or shutdown(), which throws) deletes the queues
// and disables it; the memory of rings is unmapped only after that. Not thread-safe; queue pairs may be used
// in different threads.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "nvme/command_queue.h"
#include "nvme/dma.h"
#include "nvme/registers.h"

namespace outcrop::nvme {

struct ControllerOptions {
  std::chrono::milliseconds command_deadline{10'000};  // of one command
  std::chrono::milliseconds ready_deadline{0};  // of reset, enable, shutdown; 0: what the controller says
  uint32_t queues = 1;                          // queue pairs to ask for
};

struct ControllerInfo {
  std::string model, serial, firmware;
  uint32_t version;             // 0x00010400: 1.4
  uint64_t max_transfer_bytes;  // of one command
  uint32_t max_depth;           // of a ring
  uint32_t stride_bytes;        // between doorbells
  uint32_t queues;              // queue pairs that it gives us
};

struct NamespaceInfo {
  uint64_t blocks;
  uint32_t block_bytes, metadata_bytes;
  uint64_t bytes() const { return blocks * block_bytes; }
};

class Controller {
 public:
  // name: for errors (the PCI address). Throws Error(io) if it does not become ready, Error(format) if it is
  // one that this driver cannot drive.
  Controller(Registers registers, std::shared_ptr<DmaSpace> space, std::shared_ptr<Budget> budget,
             std::string name, const ControllerOptions& options);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  const ControllerInfo& info() const { return info_; }
  const NamespaceInfo& disk() const { return disk_; }  // namespace 1
  // A queue pair that this controller serves, for whoever submits: rings in memory that it reaches, doorbells
  // in its registers. depth: entries, at most info().max_depth. Addresses of the commands are in blocks of
  // kernels::kBlockBytes: a namespace of other blocks is refused. Lives as long as the controller.
  kernels::QueuePair create_queue(uint32_t depth);
  // Deletes the youngest queue pair, in which nothing is in flight.
  void drop_queue();
  // Throws what the destructor swallows. No queue may be used any more.
  void shutdown();

 private:
  struct Rings {
    DmaMemory memory;
    kernels::QueuePair pair;
  };
  Rings make_rings(uint32_t queue, uint32_t depth);
  void disable();
  void enable();
  void identify();
  void ask_queues();
  uint32_t admin(const kernels::Command& command, const char* what);
  void await_status(uint32_t mask, uint32_t value, const char* what);
  [[noreturn]] void fail(ErrorKind kind, const std::string& what) const;

  Registers registers_;
  std::shared_ptr<DmaSpace> space_;
  std::shared_ptr<Budget> budget_;
  std::string name_;
  ControllerOptions options_;
  std::chrono::milliseconds ready_deadline_;
  ControllerInfo info_{};
  NamespaceInfo disk_{};
  Rings admin_rings_;
  std::optional<CommandQueue> admin_;
  std::vector<Rings> queues_;
  bool down_ = false;
};

// The submitting side for C++: reads by block into memory of a DmaMapping.
class ReadQueue {
 public:
  ReadQueue(kernels::QueuePair pair, std::chrono::milliseconds deadline, std::string name)
      : queue_(pair, deadline, std::move(name)) {}
  // blocks of kernels::kBlockBytes to `bus`, a multiple of a block; at most two pages are touched. The id,
  // which its completion will carry. Throws Error(argument).
  uint16_t read(uint64_t first_block, uint32_t blocks, uint64_t bus);
  void ring() { queue_.ring(); }
  bool full() const { return queue_.full(); }
  uint32_t in_flight() const { return queue_.in_flight(); }
  uint32_t capacity() const { return queue_.capacity(); }
  uint16_t next_id() const { return queue_.next_id(); }
  uint32_t take(std::vector<Finished>& into) { return queue_.take(into); }
  uint32_t wait(std::vector<Finished>& into, uint32_t most = UINT32_MAX) { return queue_.wait(into, most); }
  const QueueCounters& counters() const { return queue_.counters(); }

 private:
  CommandQueue queue_;
};

}  // namespace outcrop::nvme
