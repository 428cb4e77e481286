// One side of a queue pair, the submitter's: gives ids to commands, puts them into the ring, rings, takes
// completions. Commands go in continuously: an id is free again as soon as its completion was taken, whatever
// the order, and the slot of the ring says nothing about the id.
//
// A status other than 0 is counted and handed on, never waited for or tried again. A completion that has not
// come within the deadline, or whose id is not out, ends the queue with Error(io). Not thread-safe.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/queue_pair.h"

namespace outcrop::nvme {

// What a status means: "0x281 (media: unrecovered read error)".
std::string status_name(uint32_t status);

struct QueueCounters {
  uint64_t submitted = 0, completed = 0, failed = 0, doorbells = 0;
  std::map<uint32_t, uint64_t> by_status;  // of those that failed
};

struct Finished {
  uint16_t id;
  uint32_t status;  // 0: done
  uint32_t result;
};

class CommandQueue {
 public:
  // name: for errors, "queue 1 of 0000:00:10.0". The rings must be zero.
  CommandQueue(kernels::QueuePair pair, std::chrono::milliseconds deadline, std::string name);

  uint32_t in_flight() const { return pair_.depth - 1 - static_cast<uint32_t>(free_.size()); }
  uint32_t capacity() const { return pair_.depth - 1; }  // ids are below it
  bool full() const { return free_.empty(); }
  uint16_t next_id() const { return free_.back(); }  // what put() will give, unless full
  // Into the ring, not yet rung. `command.id` is given here and returned. Throws Error(argument) if full.
  uint16_t put(const kernels::Command& command);
  void ring();
  // Takes completions that are there, at most `most`, and returns how many were put into `into`.
  uint32_t take(std::vector<Finished>& into, uint32_t most = UINT32_MAX);
  // take() once there is at least one; at once when nothing is in flight.
  uint32_t wait(std::vector<Finished>& into, uint32_t most = UINT32_MAX);
  const QueueCounters& counters() const { return counters_; }

 private:
  [[noreturn]] void fail(const std::string& what) const;

  kernels::QueuePair pair_;
  std::chrono::milliseconds deadline_;
  std::string name_;
  uint32_t tail_ = 0, rung_ = 0, head_ = 0, phase_ = 1;
  std::vector<uint16_t> free_;
  std::vector<bool> out_;
  QueueCounters counters_;
};

}  // namespace outcrop::nvme
