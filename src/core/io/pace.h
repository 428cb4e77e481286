// A limit on bytes per second, as a disk of that rate has it: a job begins when those before it have ended,
// and ends no sooner than its bytes take. Thread-safe.
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
  struct Turn {
    Clock::time_point begin, end;
  };
  // When a job of `bytes` that comes at `now` may begin, and the soonest that it may end. In the order of the
  // calls.
  Turn next(Clock::time_point now, uint64_t bytes) {
    if (!rate_) return {now, now};
    const std::chrono::duration<double> cost(static_cast<double>(bytes) / static_cast<double>(rate_));
    std::lock_guard lock(mutex_);
    const auto begin = std::max(now, free_);
    free_ = begin + std::chrono::duration_cast<Clock::duration>(cost);
    return {begin, free_};
  }

 private:
  const uint64_t rate_;
  std::mutex mutex_;
  Clock::time_point free_{};  // when all jobs so far have ended
};

}  // namespace outcrop
