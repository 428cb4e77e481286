// Threads, and a small fixed worker pool. Work is split by index, so what is computed never depends on the thread count.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace outcrop {

// A thread that runs `body`, or an Error that says what limits their number.
template <class Body>
std::thread start_thread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& refused) {
    throw_io("another thread cannot be started; what limits them is ulimit -u, or pids.max of the container",
             refused.code().value());
  }
}

class WorkerPool {
 public:
  explicit WorkerPool(unsigned threads);  // 0: one per core this process may use
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;
  unsigned threads() const { return static_cast<unsigned>(workers_.size()) + 1; }

  // Calls fn(task, worker) for task in [0, tasks), each once; the caller works too (worker 0). Blocks until
  // all are done; rethrows the first exception. Calls from several threads take turns.
  void run(size_t tasks, const std::function<void(size_t task, unsigned worker)>& fn);
  // Splits [0, n) into blocks of at least `grain` and calls fn(begin, end).
  void split(size_t n, size_t grain, const std::function<void(size_t begin, size_t end)>& fn);

 private:
  void worker_loop(unsigned worker);
  void end();
  void work(unsigned worker);

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(size_t, unsigned)>* fn_ = nullptr;
  size_t tasks_ = 0, next_ = 0;
  unsigned active_ = 0;
  uint64_t generation_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

}  // namespace outcrop
