// A limit on bytes and requests per second, as a disk of those rates has it: a job begins when those before it have
// ended, and ends no sooner than its bytes and its requests take. Thread-safe.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

namespace outcrop {

class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  // 0: no limit.
  explicit Pace(uint64_t bytes_per_second, uint64_t requests_per_second = 0)
      : rate_(bytes_per_second), requests_(requests_per_second) {}
  bool limited() const { return rate_ > 0 || requests_ > 0; }
  struct Turn {
    Clock::time_point begin, end;
  };
  // When a job of so much that comes at `now` may begin, and the soonest that it may end. In the order of the calls.
  Turn next(Clock::time_point now, uint64_t bytes, uint64_t requests = 1) {
    if (!limited()) return {now, now};
    const std::chrono::duration<double> cost(share(bytes, rate_) + share(requests, requests_));
    std::lock_guard lock(mutex_);
    const auto begin = std::max(now, free_);
    free_ = begin + std::chrono::duration_cast<Clock::duration>(cost);
    return {begin, free_};
  }

 private:
  static double share(uint64_t count, uint64_t rate) {
    return rate ? static_cast<double>(count) / static_cast<double>(rate) : 0;
  }
  const uint64_t rate_, requests_;
  std::mutex mutex_;
  Clock::time_point free_{};  // when all jobs so far have ended
};

}  // namespace outcrop
