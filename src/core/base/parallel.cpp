#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace outcrop {
namespace {
unsigned usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  return std::max(1u, std::thread::hardware_concurrency());
}
}  // namespace

WorkerPool::WorkerPool(unsigned threads) {
  if (threads == 0) threads = usable_cores();
  try {
    for (unsigned i = 1; i < threads; ++i) workers_.push_back(start_thread([this, i] { worker_loop(i); }));
  } catch (...) {
    end();
    throw;
  }
}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::end() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void WorkerPool::work(unsigned worker) {
  for (;;) {
    size_t task;
    {
      std::lock_guard lock(mutex_);
      if (next_ >= tasks_) return;
      task = next_++;
    }
    try {
      (*fn_)(task, worker);
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_ = tasks_;  // start nothing more
    }
  }
}

void WorkerPool::worker_loop(unsigned worker) {
  uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    work(worker);
    std::lock_guard lock(mutex_);
    if (--active_ == 0) done_.notify_all();
  }
}

void WorkerPool::run(size_t tasks, const std::function<void(size_t, unsigned)>& fn) {
  if (tasks == 0) return;
  std::lock_guard turn(turn_);
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    fn_ = &fn;
    tasks_ = tasks;
    next_ = 0;
    error_ = nullptr;
    active_ = static_cast<unsigned>(workers_.size());
    ++generation_;
  }
  wake_.notify_all();
  work(0);
  {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return active_ == 0; });
    error = std::exchange(error_, nullptr);
    fn_ = nullptr;
  }
  if (error) std::rethrow_exception(error);
}

void WorkerPool::split(size_t n, size_t grain, const std::function<void(size_t, size_t)>& fn) {
  if (n == 0) return;
  const size_t block =
      std::max<size_t>(std::max<size_t>(grain, 1), (n + 4 * threads() - 1) / (4 * threads()));
  const size_t blocks = (n + block - 1) / block;
  if (blocks == 1 || threads() == 1) return fn(0, n);
  run(blocks, [&](size_t i, unsigned) { fn(i * block, std::min(n, (i + 1) * block)); });
}

}  // namespace outcrop
