// Protocol. Workers take transfers from the Feed under the mutex, oldest job first, carry each to its end
// with blocking calls outside the mutex, and settle it under the mutex. Each worker owns one bounce slot.
// stop_ ends a worker only when the Feed is empty, so that destruction finishes what was submitted.
#include "io/blocking_workers.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/parallel.h"

namespace outcrop {

BlockingWorkers::BlockingWorkers(const SplitRule& rule, const IoOptions& options, AtomicIoCounters& counters,
                                 unsigned threads, std::byte* slots,
                                 std::function<Fault(const Transfer&)> fault_of)
    : options_(options), counters_(counters), fault_of_(std::move(fault_of)), feed_(rule, counters) {
  try {
    for (unsigned i = 0; i < threads; ++i)
      threads_.push_back(
          start_thread([this, slot = slots ? slots + i * rule.slot_bytes : nullptr] { run(slot); }));
  } catch (...) {
    end();
    throw;
  }
}

BlockingWorkers::~BlockingWorkers() { end(); }

void BlockingWorkers::end() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_all();
  for (auto& t : threads_) t.join();
}

void BlockingWorkers::push(std::shared_ptr<JobState> job) {
  {
    std::lock_guard lock(mutex_);
    feed_.add(std::move(job));
  }
  work_.notify_all();
}

void BlockingWorkers::run(std::byte* slot) {
  std::unique_lock lock(mutex_);
  for (Transfer t;;) {
    if (feed_.next(t)) {
      lock.unlock();
      if (t.piece.bounce) t.target = slot;
      auto error = carry(t);
      lock.lock();
      feed_.settle(t, std::move(error));
    } else if (stop_) {
      return;
    } else {
      work_.wait(lock, [&] { return stop_ || !feed_.empty(); });
    }
  }
}

std::optional<Error> BlockingWorkers::carry(Transfer& t) {
  if (options_.faults.delay_us)
    std::this_thread::sleep_for(std::chrono::microseconds(options_.faults.delay_us));
  std::optional<Error> error;
  while (judge(t, attempt(t), counters_, error) == Verdict::again) {
  }
  return error;
}

int64_t BlockingWorkers::attempt(const Transfer& t) const {
  const Fault fault = fault_of_(t);
  if (fault.error) return -fault.error;
  const Piece& p = t.piece;
  std::byte* const memory = t.target + t.position;
  const auto offset = static_cast<off_t>(p.offset + t.position);
  const ssize_t n = p.op == IoOp::read ? pread(p.file->fd(), memory, fault.length, offset)
                                       : pwrite(p.file->fd(), memory, fault.length, offset);
  return n < 0 ? -errno : n;
}

}  // namespace outcrop
