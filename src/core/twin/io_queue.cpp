#include "twin/io_queue.h"

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

template <typename T>
T* pointer(int64_t address) {
  return reinterpret_cast<T*>(address);
}

kernels::IoQueue queue_of(const int64_t* a) {
  using namespace kernels;
  return {{pointer<Command>(a[0]), pointer<Completion>(a[1]), pointer<uint32>(a[2]), pointer<uint32>(a[3]),
           static_cast<uint32>(a[4])},
          pointer<uint16>(a[5]),
          pointer<Landing>(a[6]),
          a[7],
          pointer<uint8>(a[8]),
          a[9],
          pointer<Progress>(a[10])};
}

}  // namespace

void twin_io_submit(const kernels::Submit& s) {
  if (kernels::lost(s.queue)) return;
  for (int64_t i = 0; i < s.count; ++i) {
    for (int lane = 0; s.write && lane < kernels::kWarp; ++lane) kernels::stage(s, i, lane);
    kernels::submit_one(s, i);
  }
  kernels::ring_submitted(s);
}

void twin_io_complete(const kernels::Complete& c, int64_t deadline_ns) {
  Patience patience(deadline_ns);
  c.queue.progress->claimed = c.queue.progress->stop = 0;
  for (;;) {
    const kernels::Claim claim = kernels::claim(c, patience);
    if (!claim.there) return;
    for (int lane = 0; lane < kernels::kWarp; ++lane) kernels::land(c.queue, claim, lane);
    kernels::settle(c, claim);
  }
}

void twin_io_submit(const int64_t* arguments) {
  const int64_t* a = arguments + kQueueArguments;
  twin_io_submit(kernels::Submit{queue_of(arguments),
                                 static_cast<kernels::uint64>(a[0]),
                                 {a[1], a[2], a[3]},
                                 pointer<const kernels::int64>(a[4]),
                                 pointer<kernels::uint8>(a[5]),
                                 a[6],
                                 a[7],
                                 a[8],
                                 a[9],
                                 a[10],
                                 a[11],
                                 pointer<const kernels::int32>(a[12]),
                                 a[13],
                                 a[14],
                                 a[15]});
}

void twin_io_complete(const int64_t* arguments) {
  const int64_t* a = arguments + kQueueArguments;
  const kernels::Complete c{queue_of(arguments), pointer<const kernels::uint32>(a[0]), a[1], a[2]};
  twin_io_complete(c, a[3]);
}

}  // namespace outcrop
