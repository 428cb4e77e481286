// A limit on bytes per second, kept by making each job wait until the jobs before it are paid for. So the
// mean rate over any stretch that begins with a job exceeds the limit by one job at the most. Thread-safe.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace outcrop {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Pace(uint64_t bytes_per_second) : rate_(bytes_per_second) {}  // 0: no limit
  bool limited() const { return rate_ > 0; }
  // When a job of `bytes` that comes at `now` may start. Jobs start in the order of these calls.
  Clock::time_point start(Clock::time_point now, uint64_t bytes) {
    if (!rate_) return now;
    const std::chrono::duration<double> cost(static_cast<double>(bytes) / static_cast<double>(rate_));
    std::lock_guard lock(mutex_);
    const auto begin = std::max(now, free_);
    free_ = begin + std::chrono::duration_cast<Clock::duration>(cost);
    return begin;
  }

 private:
  const uint64_t rate_;
  std::mutex mutex_;
  Clock::time_point free_{};  // when all jobs so far are paid for
};

}  // namespace outcrop
