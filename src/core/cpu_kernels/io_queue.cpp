#include "cpu_kernels/io_queue.h"

#include <chrono>
#include <thread>

namespace outcrop {
namespace {

class Patience {
 public:
  explicit Patience(int64_t deadline_ns) : end_(Clock::now() + std::chrono::nanoseconds(deadline_ns)) {}
  bool over() {
    if (++looks_ % kEager)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(30));
    return Clock::now() > end_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr unsigned kEager = 2;
  const Clock::time_point end_;
  unsigned looks_ = 0;
};

}  // namespace

void cpu_io_submit(const kernels::Submit& s) {
  if (kernels::lost(s.queue)) return;
  for (int64_t i = 0; i < s.count; ++i) {
    for (int lane = 0; s.write && lane < kernels::kWarp; ++lane) kernels::stage(s, i, lane);
    kernels::submit_one(s, i);
  }
  kernels::ring_submitted(s);
}

void cpu_io_submit(std::span<const kernels::Submit> queues) {
  for (const kernels::Submit& s : queues) cpu_io_submit(s);
}

void cpu_io_complete(std::span<const kernels::Complete> queues, int64_t deadline_ns) {
  const kernels::CompleteTable all{queues.data()};
  const auto count = static_cast<int64_t>(queues.size());
  Patience patience(deadline_ns);
  for (const kernels::Complete& c : queues) c.queue.progress->claimed = c.queue.progress->looking = 0;
  all(0).queue.shared->stop = 0;
  for (int64_t first = 0;; ++first) {
    const kernels::Claim claim = kernels::claim(all, count, first, patience);
    if (!claim.there) return;
    const kernels::Complete& c = all(claim.queue);
    for (int lane = 0; lane < kernels::kWarp; ++lane) kernels::land(c.queue, claim, lane);
    kernels::settle(c, claim);
  }
}

void cpu_io_complete(const kernels::Complete& c, int64_t deadline_ns) {
  cpu_io_complete(std::span(&c, 1), deadline_ns);
}

}  // namespace outcrop
