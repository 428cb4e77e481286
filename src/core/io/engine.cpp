#include "io/engine.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/buffer.h"

namespace outcrop {
namespace {

class JobHandle final : public IoJob {
 public:
  JobHandle(std::shared_ptr<JobState> state, Pace::Clock::time_point end)
      : state_(std::move(state)), end_(end) {}
  ~JobHandle() override { state_->wait_quietly(); }
  void wait() override {
    state_->wait();
    if (end_ != Pace::Clock::time_point{}) std::this_thread::sleep_until(end_);
  }
  bool done() const override { return state_->done() && Pace::Clock::now() >= end_; }

 private:
  const std::shared_ptr<JobState> state_;
  const Pace::Clock::time_point end_;  // no sooner
};

[[noreturn]] void throw_forked() {
  throw Error(ErrorKind::io,
              "this I/O engine belongs to the process that was forked; make a new one in the child");
}

// Checks a request and returns its file; throws Error(argument).
void check(IoOp op, const IoRequest& r, const File& file) {
  const std::string what = " in a request of " + std::to_string(r.length) + " bytes at offset " +
                           std::to_string(r.offset) + " of " + file.path();
  if (op == IoOp::write && !file.writable())
    throw Error(ErrorKind::argument, "file opened for reading is written" + what);
  if (op == IoOp::write && file.whole_pages() &&
      (r.offset | r.length | reinterpret_cast<uintptr_t>(r.data)) % kPageBytes)
    throw Error(ErrorKind::argument, "file opened for whole pages is written in part of one" + what);
  if (r.offset > INT64_MAX || r.length > INT64_MAX - r.offset)
    throw Error(ErrorKind::argument, "offset beyond what files can have" + what);
  if (r.length && !r.data) throw Error(ErrorKind::argument, "no memory" + what);
}

}  // namespace

JobState::JobState(IoOp op, std::vector<IoRequest> requests, std::vector<std::shared_ptr<File>> files,
                   IoListener* listener, uint64_t token)
    : op_(op),
      pid_(getpid()),
      listener_(listener),
      token_(token),
      requests_(std::move(requests)),
      files_(std::move(files)) {}

void JobState::wait() {
  if (pid_ != getpid()) throw_forked();
  wait_quietly();
  // A new error each time: copies of one share its text, also across threads.
  if (error_) throw Error(error_->kind(), error_->what(), error_->error_number());
}

void JobState::wait_quietly() {
  if (pid_ != getpid()) return;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return done_; });
}

bool JobState::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

bool JobState::writes_buffered() const {
  return op_ == IoOp::write &&
         std::none_of(files_.begin(), files_.end(), [](const auto& f) { return f->direct(); });
}

File* JobState::file_of(FileId id) {
  if (!last_file_ || last_file_->slot != id)
    last_file_ =
        std::find_if(files_.begin(), files_.end(), [&](const auto& f) { return f->slot == id; })->get();
  return last_file_;
}

void JobState::finish() {
  files_.clear();
  requests_ = {};
  next_ = 0;
  if (listener_) listener_->ended(token_);
  std::lock_guard lock(mutex_);
  done_ = true;
  ended_.notify_all();
}

bool Feed::next(Transfer& t) {
  for (; !queue_.empty(); retire_front()) {
    JobState& job = *queue_.front();
    while (!job.exhausted() && job.at_ == job.requests_[job.next_].length) {
      ++job.next_;
      job.at_ = 0;
    }
    if (job.exhausted()) continue;
    const IoRequest& request = job.requests_[job.next_];
    t = Transfer{};
    t.piece = next_piece(rule_, job.op_, request, job.file_of(request.file), job.at_);
    t.job = queue_.front();
    t.request = request;
    t.target = t.piece.data;
    t.number = counters_.transfers.fetch_add(1, std::memory_order_relaxed);
    job.at_ += t.piece.wanted;
    ++job.flying_;
    const bool read = job.op_ == IoOp::read;
    const uint64_t before = (read ? counters_.read_bytes : counters_.write_bytes)
                                .fetch_add(t.piece.length, std::memory_order_relaxed);
    t.written = read ? counters_.write_bytes.load(std::memory_order_relaxed) : before;
    (read ? counters_.read_ops : counters_.write_ops).fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

// The front job has nothing more to give; it ends here if nothing of it is in flight, else in settle().
void Feed::retire_front() {
  auto job = std::move(queue_.front());
  queue_.pop_front();
  job->queued_ = false;
  if (job->flying_ == 0) job->finish();
}

void Feed::settle(Transfer& t, std::optional<Error> error) {
  auto job = std::move(t.job);
  if (error && !job->error_) job->error_ = std::move(error);
  // A job that still stands in the queue is ended by retire_front().
  if (--job->flying_ == 0 && !job->queued_) job->finish();
}

void Feed::fail_all(const Error& error) {
  for (auto& job : queue_)
    if (!job->error_) job->error_ = error;
  while (!queue_.empty()) retire_front();
}

Engine::Engine(const IoOptions& options, const Budget& budget)
    : options_(options),
      rule_(SplitRule::make(options, budget.limit_bytes())),
      pid_(getpid()),
      faulty_(options.faults.any()),
      pace_(options.rate_bytes_per_second, options.requests_per_second) {}

FileId Engine::open(const std::string& path, OpenMode mode) {
  return files_.open(path, mode, options_.direct)->slot;
}

void Engine::close(FileId id) { closed(*files_.close(id)); }

void Engine::resize(FileId id, uint64_t bytes) {
  auto file = files_.get(id);
  if (!file->writable())
    throw Error(ErrorKind::argument, file->path() + " was opened for reading: it cannot be resized");
  file->resize(bytes);
}

std::shared_ptr<IoJob> Engine::submit(IoOp op, std::vector<IoRequest> requests, IoListener* listener,
                                      uint64_t token) {
  if (forked()) throw_forked();
  std::vector<std::shared_ptr<File>> files;
  const File* file = nullptr;
  for (const IoRequest& r : requests) {
    if (!file || file->slot != r.file) {
      auto found = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f->slot == r.file; });
      if (found == files.end()) found = files.insert(files.end(), files_.get(r.file));
      file = found->get();
    }
    check(op, r, *file);
  }
  Pace::Clock::time_point end{};
  if (pace_.limited()) {
    uint64_t bytes = 0;
    for (const IoRequest& r : requests) bytes += r.length;
    const Pace::Turn turn = pace_.next(Pace::Clock::now(), bytes, requests.size());
    end = turn.end;
    std::this_thread::sleep_until(turn.begin);
  }
  if (op == IoOp::write && options_.unwritten_bytes) {
    for (const auto& f : files) {
      if (f->direct()) continue;
      uint64_t bytes = 0;
      for (const IoRequest& r : requests) bytes += r.file == f->slot ? r.length : 0;
      f->write_back(bytes, options_.unwritten_bytes);
    }
  }
  auto state = std::make_shared<JobState>(op, std::move(requests), std::move(files), listener, token);
  enqueue(state);
  return std::make_shared<JobHandle>(std::move(state), end);
}

bool Engine::forked() const { return pid_ != getpid(); }

Fault Engine::fault_of(const Transfer& t) const {
  const uint64_t length = t.piece.length - t.position;
  if (!faulty_) return {0, length};
  return decide_fault(options_.faults, t.piece.op, t.number, t.attempt, length, t.piece.direct,
                      t.written + t.position);
}

}  // namespace outcrop
