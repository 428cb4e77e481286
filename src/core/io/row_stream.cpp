#include "io/row_stream.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "io/row_file.h"

namespace outcrop {
namespace {

constexpr uint64_t kMaxReadBytes = uint64_t{1} << 20;
constexpr uint64_t kOrderShare = 4;  // a quarter of the scratch holds the order of the rows, the rest pages
constexpr uint64_t kMostParts = 4;
constexpr uint64_t kPartBytes = uint64_t{64} << 10;

struct Job {
  const int64_t* ids;
  const int32_t* positions;
  size_t n;
  std::byte* out;
  uint64_t out_stride;
  // Of the driver:
  size_t planned = 0;
  std::optional<RowWindow> last;  // planned before
  std::vector<std::byte> tail;    // pages at the end of the window that was copied out last
  size_t flying = 0;              // windows
  // Under the stream's mutex:
  std::optional<Error> error;
  bool done = false;

  bool exhausted() const { return planned == n; }
};

// A part of the scratch memory, and the window under way in it.
struct Part {
  std::byte* pages;
  RowEntry* rows;
  std::shared_ptr<Job> job;
  std::optional<RowWindow> window;
  std::shared_ptr<IoJob> io;
};

}  // namespace

struct RowStream::State {
  explicit State(RowFile rows) : file(std::move(rows)) {}

  RowFile file;
  Buffer scratch;
  uint64_t part_bytes = 0;
  size_t part_rows = 0;
  std::vector<Part> parts;
  size_t begun = 0, ended = 0;  // windows; number w is in parts[w % parts.size()]
  const pid_t pid = getpid();

  std::mutex mutex;
  std::condition_variable changed;         // a job came, or ended, or the stream does
  std::deque<std::shared_ptr<Job>> queue;  // not planned to their end
  bool ending = false;
  std::thread driver;

  void drive();
  bool begin_window(const std::shared_ptr<Job>& job);
  void end_window();
  void copy_out(Part& part);
  void fail(Job& job, const Error& error);
  bool failed(const Job& job);
  void finish(Job& job);
};

void RowStream::State::fail(Job& job, const Error& error) {
  std::lock_guard lock(mutex);
  if (!job.error) job.error = error;
  job.planned = job.n;
}

bool RowStream::State::failed(const Job& job) {
  std::lock_guard lock(mutex);
  return job.error.has_value();
}

void RowStream::State::finish(Job& job) {
  std::lock_guard lock(mutex);
  job.done = true;
  changed.notify_all();
}

// Plans the next window of a job and starts its reads. False where that failed.
bool RowStream::State::begin_window(const std::shared_ptr<Job>& job) {
  Part& part = parts[begun % parts.size()];
  const size_t count = std::min(part_rows, job->n - job->planned);
  for (size_t i = 0; i < count; ++i)
    part.rows[i] = {static_cast<uint64_t>(job->ids[job->planned + i]),
                    static_cast<uint64_t>(job->positions[job->planned + i])};
  try {
    part.window = plan_window(file.layout, true, part.rows, 0, count, part_bytes / kPageBytes, kMaxReadBytes,
                              job->last ? &*job->last : nullptr);
    part.io = file.start(*part.window, part.pages);
  } catch (const Error& error) {
    fail(*job, error);
    return false;
  }
  part.job = job;
  job->planned += part.window->end;
  job->last.emplace(RowWindow{0, 0, part.window->start, part.window->stop, {}});
  ++job->flying;
  ++begun;
  return true;
}

// The rows of a window to their places. Pages that it shares with the one before were read by that one.
void RowStream::State::copy_out(Part& part) {
  Job& job = *part.job;
  const uint64_t carried = part.window->start.carried() * kPageBytes;
  if (carried) std::memcpy(part.pages, job.tail.data() + job.tail.size() - carried, carried);
  const uint64_t end = part.window->stop.pages() * kPageBytes;
  const uint64_t kept = std::min(end, file.layout.max_pages() * kPageBytes);
  job.tail.assign(part.pages + end - kept, part.pages + end);
  file.copy_out(*part.window, part.rows, part.pages, job.out, job.out_stride);
}

// Waits for the oldest window.
void RowStream::State::end_window() {
  Part& part = parts[ended++ % parts.size()];
  Job& job = *part.job;
  try {
    part.io->wait();
    file.check(*part.window, part.pages);
    if (!failed(job)) copy_out(part);
  } catch (const Error& error) {
    fail(job, error);
  }
  part.io.reset();
  if (--job.flying == 0 && job.exhausted()) finish(job);
  part.job.reset();
}

void RowStream::State::drive() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return ending || !queue.empty() || begun != ended; });
      if (ending && queue.empty() && begun == ended) return;
      if (!queue.empty() && begun - ended < parts.size()) {
        job = queue.front();
        if (ending && !job->error) job->error = Error(ErrorKind::io, "the stream of rows was closed");
        if (job->error) job->planned = job->n;
      }
    }
    if (!job) {
      end_window();
      continue;
    }
    if (!job->exhausted()) begin_window(job);
    if (job->exhausted()) {
      {
        std::lock_guard lock(mutex);
        queue.pop_front();
      }
      if (job->flying == 0) finish(*job);
    }
  }
}

namespace {

class StreamedJob final : public RowJob {
 public:
  StreamedJob(std::shared_ptr<RowStream::State> state, std::shared_ptr<Job> job)
      : state_(std::move(state)), job_(std::move(job)) {}
  ~StreamedJob() override {
    if (state_->pid != getpid()) return;
    std::unique_lock lock(state_->mutex);
    if (!job_->done && !job_->error) job_->error = Error(ErrorKind::io, "the job was dropped");
    state_->changed.wait(lock, [&] { return job_->done; });
  }
  void wait() override {
    if (state_->pid != getpid())
      throw Error(ErrorKind::io, "these reads belong to the process that was forked");
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return job_->done; });
    // A new error each time: copies of one share its text, also across threads.
    if (job_->error) throw Error(job_->error->kind(), job_->error->what(), job_->error->error_number());
  }
  bool ready() const override {
    std::lock_guard lock(state_->mutex);
    return job_->done;
  }

 private:
  const std::shared_ptr<RowStream::State> state_;
  const std::shared_ptr<Job> job_;
};

}  // namespace

uint64_t RowStream::min_scratch_bytes(uint64_t row_bytes) {
  return 2 * kOrderShare * RowLayout{0, row_bytes, row_bytes}.max_pages() * kPageBytes;
}

RowStream::RowStream(std::shared_ptr<BlockIo> io, Budget& budget, FileId file, const RowLayout& layout,
                     uint64_t num_rows, uint64_t scratch_bytes)
    : state_(std::make_shared<State>(RowFile(std::move(io), file, layout, num_rows))) {
  State& s = *state_;
  check_scratch(scratch_bytes, min_scratch_bytes(layout.row_bytes), layout.row_bytes);
  const uint64_t least = layout.max_pages() * kPageBytes, order = scratch_bytes / kOrderShare;
  const uint64_t pages = scratch_bytes - order;
  const uint64_t parts = std::clamp<uint64_t>(pages / std::max(least, kPartBytes), 2, kMostParts);
  s.part_bytes = align_down(pages / parts, kPageBytes);
  s.part_rows = std::max<size_t>(order / parts / sizeof(RowEntry), 1);
  s.scratch = Buffer(budget, "row-scratch", parts * (s.part_bytes + s.part_rows * sizeof(RowEntry)));
  std::byte* const rows = s.scratch.data() + parts * s.part_bytes;
  for (uint64_t p = 0; p < parts; ++p)
    s.parts.push_back({s.scratch.data() + p * s.part_bytes,
                       reinterpret_cast<RowEntry*>(rows) + p * s.part_rows, nullptr, std::nullopt, nullptr});
  s.driver = start_thread([&s] { s.drive(); });
}

RowStream::~RowStream() {
  State& s = *state_;
  if (s.pid != getpid()) {
    // The thread is in another process, and still waits for what would be destroyed here.
    new std::shared_ptr<State>(state_);
    return;
  }
  {
    std::lock_guard lock(s.mutex);
    s.ending = true;
    s.changed.notify_all();
  }
  s.driver.join();
}

void RowStream::check_pages(const uint32_t* crcs, size_t n, std::string remedy) {
  state_->file.check_pages(crcs, n, std::move(remedy));
}

const RowLayout& RowStream::layout() const { return state_->file.layout; }
uint64_t RowStream::num_rows() const { return state_->file.num_rows; }

std::unique_ptr<RowJob> RowStream::submit(const int64_t* ids, const int32_t* positions, size_t n,
                                          std::byte* out, size_t out_rows, uint64_t out_stride) {
  if (state_->pid != getpid())
    throw Error(ErrorKind::io, "these rows belong to the process that was forked; open them in the child");
  for (size_t i = 0; i < n; ++i) {
    if (ids[i] < (i ? ids[i - 1] : 0) || static_cast<uint64_t>(ids[i]) >= state_->file.num_rows)
      throw Error(ErrorKind::argument, "row id " + std::to_string(ids[i]) + " at position " +
                                           std::to_string(i) + " falls, or is outside the table of " +
                                           std::to_string(state_->file.num_rows) + " rows");
    if (static_cast<uint32_t>(positions[i]) >= out_rows)
      throw Error(ErrorKind::argument, "row " + std::to_string(i) + " goes to place " +
                                           std::to_string(positions[i]) + " of an output of " +
                                           std::to_string(out_rows) + " rows");
  }
  auto job = std::make_shared<Job>();
  job->ids = ids, job->positions = positions, job->n = n, job->out = out, job->out_stride = out_stride;
  job->done = n == 0;
  auto handle = std::make_unique<StreamedJob>(state_, job);
  if (n) {
    std::lock_guard lock(state_->mutex);
    state_->queue.push_back(std::move(job));
    state_->changed.notify_all();
  }
  return handle;
}

}  // namespace outcrop
