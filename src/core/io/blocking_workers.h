// Threads that carry transfers to their end with pread and pwrite.
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "io/engine.h"

namespace outcrop {

class BlockingWorkers {
 public:
  // slots: memory of rule.slot_bytes for each thread; it may be null where no transfer takes a detour.
  BlockingWorkers(const SplitRule& rule, const IoOptions& options, AtomicIoCounters& counters,
                  unsigned threads, std::byte* slots, std::function<Fault(const Transfer&)> fault_of);
  ~BlockingWorkers();  // once what was pushed is done
  void push(std::shared_ptr<JobState> job);

 private:
  void run(std::byte* slot);
  void end();
  std::optional<Error> carry(Transfer& transfer);
  int64_t attempt(const Transfer& transfer) const;

  const IoOptions& options_;
  AtomicIoCounters& counters_;
  const std::function<Fault(const Transfer&)> fault_of_;
  Feed feed_;
  std::mutex mutex_;
  std::condition_variable work_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace outcrop
