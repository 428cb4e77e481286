// Protocol. Workers take transfers from the Feed under the mutex, oldest job first, carry each to its end
// with blocking calls outside the mutex, and settle it under the mutex. Each worker owns one bounce slot.
// stop_ ends a worker only when the Feed is empty, so that destruction finishes what was submitted.
#include "io/pread_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "base/buffer.h"
#include "base/parallel.h"
#include "io/engine.h"

namespace outcrop {
namespace {

class PreadBackend final : public Engine {
 public:
  PreadBackend(const IoOptions& options, Budget& budget);
  ~PreadBackend() override;
  std::string backend_name() const override { return "pread"; }

 protected:
  void enqueue(std::shared_ptr<JobState> job) override;

 private:
  struct State {  // apart, so that a forked child can leave it alone
    std::mutex mutex;
    std::condition_variable work;
    bool stop = false;
    std::vector<std::thread> threads;
  };
  void run(std::byte* slot);
  void end();
  std::optional<Error> carry(Transfer& transfer);
  int64_t attempt(const Transfer& transfer) const;

  Buffer slots_;
  Feed feed_;
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

PreadBackend::PreadBackend(const IoOptions& options, Budget& budget)
    : Engine(options, budget), feed_(rule_, counters_) {
  const unsigned threads = std::max(1u, options.threads);
  slots_ = Buffer(budget, "io-buffers", threads * rule_.slot_bytes);
  try {
    for (unsigned i = 0; i < threads; ++i)
      state_->threads.push_back(start_thread([this, i] { run(slots_.data() + i * rule_.slot_bytes); }));
  } catch (...) {
    end();
    throw;
  }
}

PreadBackend::~PreadBackend() {
  if (forked()) {
    (void)state_.release();  // its threads live in the parent
    return;
  }
  end();
}

void PreadBackend::end() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->work.notify_all();
  for (auto& t : state_->threads) t.join();
}

void PreadBackend::enqueue(std::shared_ptr<JobState> job) {
  {
    std::lock_guard lock(state_->mutex);
    feed_.add(std::move(job));
  }
  state_->work.notify_all();
}

void PreadBackend::run(std::byte* slot) {
  std::unique_lock lock(state_->mutex);
  for (Transfer t;;) {
    if (feed_.next(t)) {
      lock.unlock();
      if (t.piece.bounce) t.target = slot;
      auto error = carry(t);
      lock.lock();
      feed_.settle(t, std::move(error));
    } else if (state_->stop) {
      return;
    } else {
      state_->work.wait(lock, [&] { return state_->stop || !feed_.empty(); });
    }
  }
}

std::optional<Error> PreadBackend::carry(Transfer& t) {
  if (options_.faults.delay_us)
    std::this_thread::sleep_for(std::chrono::microseconds(options_.faults.delay_us));
  std::optional<Error> error;
  while (judge(t, attempt(t), counters_, error) == Verdict::again) {
  }
  return error;
}

int64_t PreadBackend::attempt(const Transfer& t) const {
  const Fault fault = fault_of(t);
  if (fault.error) return -fault.error;
  const Piece& p = t.piece;
  std::byte* const memory = t.target + t.position;
  const auto offset = static_cast<off_t>(p.offset + t.position);
  const ssize_t n = p.op == IoOp::read ? pread(p.file->fd(), memory, fault.length, offset)
                                       : pwrite(p.file->fd(), memory, fault.length, offset);
  return n < 0 ? -errno : n;
}

}  // namespace

std::shared_ptr<BlockIo> make_pread_backend(const IoOptions& options, Budget& budget) {
  return std::make_shared<PreadBackend>(options, budget);
}

}  // namespace outcrop
