// Protocol. Callers push jobs under a mutex and write the eventfd when the list was empty; the ring's thread
// polls the eventfd in the ring itself, so one wait covers completions and new work. The thread alone touches
// the Feed, the ring and the flights. user_data of a request is the index of its flight; kWake is the
// eventfd. Invariants. At most `depth` flights; the submission queue is larger than that, so a request always
// finds an entry. A transfer that needs a bounce slot when none is free waits in `pending_`, and everything
// behind it; so does one that would exceed kFlightRequests full requests under way: more bytes in flight than
// keep the disk busy only let later jobs delay earlier ones, and what is read is used in order. The slot of a
// flight is its own until the flight is settled. Nothing of a job outlives its last flight. Registered files
// are refreshed when a slot of the table is found to hold another file (its serial differs).
#include "io/uring_backend.h"

#include "base/error.h"

#if defined(OUTCROP_HAVE_URING)

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "base/buffer.h"
#include "base/parallel.h"
#include "io/blocking_workers.h"
#include "io/engine.h"

namespace outcrop {
namespace {

constexpr uint64_t kWake = UINT64_MAX;
constexpr unsigned kSpareEntries = 8;  // of the submission queue, for the eventfd
constexpr unsigned kRegisteredFiles = 256;
constexpr uint64_t kFlightRequests = 16;
constexpr unsigned kMaxRingErrors = 1000;  // in a row, before the ring is given up
// At most, for what is under way then; and where the kernel says nothing of it.
constexpr std::chrono::seconds kDrain{30}, kBlindDrain{5};

int set_up_ring(io_uring& ring, unsigned entries) {
  const unsigned attempts[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                               IORING_SETUP_COOP_TASKRUN, 0};
  int result = -EINVAL;
  for (unsigned flags : attempts) {
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CLAMP;
    result = io_uring_queue_init_params(entries, &ring, &params);
    if (result != -EINVAL) break;  // EINVAL: a flag that this kernel does not know
  }
  return result;
}

Error ring_error(int error_number) {
  return Error(ErrorKind::io,
               std::string("the kernel no longer serves the io_uring of this process (") +
                   std::strerror(error_number) +
                   "): run it again with OUTCROP_IO_BACKEND=pread in the environment",
               error_number);
}

struct Flight {
  Transfer transfer;
  int fault = 0;       // errno that stands in for the system call
  uint64_t entry = 0;  // of the submission queue: the number of its last attempt's
  bool delaying = false, delayed = false;
  __kernel_timespec delay{};
};

// What the ring's thread works on; left alone by forked children.
class Ring {
 public:
  Ring(const SplitRule& rule, const IoOptions& options, AtomicIoCounters& counters, std::byte* slots,
       std::function<Fault(const Transfer&)> fault_of);
  ~Ring();
  void push(std::shared_ptr<JobState> job);
  void forget_file(FileId slot, uint64_t serial);

 private:
  struct ClosedFile {
    FileId slot;
    uint64_t serial;
  };
  void run(std::promise<int> ready);
  int try_out();
  int enter();
  void submit();
  bool enter_fails();
  void register_all();
  void loop();
  bool take_new_work();
  void unregister(const ClosedFile& file);
  void fill();
  bool give_slot(Transfer& transfer);
  void issue(unsigned index);
  void prepare(io_uring_sqe* sqe, Flight& flight);
  io_uring_sqe* entry();
  io_uring_sqe* free_entry();
  bool use_registered(const File& file);
  void reap();
  void land(unsigned index, int result);
  void poll_wake();
  void give_up(int error_number);
  void drain();

  const SplitRule rule_;
  const IoOptions& options_;
  AtomicIoCounters& counters_;
  std::byte* const slots_;
  const std::function<Fault(const Transfer&)> fault_of_;
  const int wake_;

  // Of the ring's thread:
  io_uring ring_{};
  bool fixed_buffers_ = false;
  std::vector<uint64_t> registered_;  // serial of the file in each registered slot, 0: none
  std::vector<Flight> flights_;
  std::vector<unsigned> free_flights_;
  std::vector<std::byte*> free_slots_;
  Feed feed_;
  std::optional<Transfer> pending_;
  uint64_t flying_bytes_ = 0;
  bool broken_ = false;
  int broken_by_ = 0;  // errno
  uint64_t enters_ = 0;
  uint64_t entries_ = 0;  // of the submission queue that were taken

  // Between threads:
  std::mutex mutex_;
  std::vector<std::shared_ptr<JobState>> new_jobs_;
  std::vector<ClosedFile> closed_files_;
  bool stop_ = false;
  std::thread thread_;
};

Ring::Ring(const SplitRule& rule, const IoOptions& options, AtomicIoCounters& counters, std::byte* slots,
           std::function<Fault(const Transfer&)> fault_of)
    : rule_(rule),
      options_(options),
      counters_(counters),
      slots_(slots),
      fault_of_(std::move(fault_of)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      feed_(rule, counters) {
  if (wake_ < 0) throw_io("cannot make an eventfd", errno);
  const unsigned depth = std::clamp(options.depth, 1u, 4096u);
  flights_.resize(depth);
  for (unsigned i = depth; i-- > 0;) free_flights_.push_back(i);
  for (unsigned i = rule_.slots; i-- > 0;) free_slots_.push_back(slots_ + i * rule_.slot_bytes);
  std::promise<int> ready;
  auto result = ready.get_future();
  try {
    thread_ = start_thread([this, ready = std::move(ready)]() mutable { run(std::move(ready)); });
  } catch (...) {
    ::close(wake_);
    throw;
  }
  if (const int error = result.get(); error < 0) {
    thread_.join();
    ::close(wake_);
    throw_io("io_uring cannot be used here (choose the pread backend)", -error);
  }
}

Ring::~Ring() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  ::close(wake_);
}

void Ring::push(std::shared_ptr<JobState> job) {
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = new_jobs_.empty();
    new_jobs_.push_back(std::move(job));
  }
  if (first) eventfd_write(wake_, 1);
}

void Ring::forget_file(FileId slot, uint64_t serial) {
  {
    std::lock_guard lock(mutex_);
    closed_files_.push_back({slot, serial});
  }
  eventfd_write(wake_, 1);
}

// The ring is made here because a ring with SINGLE_ISSUER belongs to the thread that made it.
void Ring::run(std::promise<int> ready) {
  int result = set_up_ring(ring_, static_cast<unsigned>(flights_.size()) + kSpareEntries);
  if (result == 0) {
    result = try_out();
    if (result < 0)
      io_uring_queue_exit(&ring_);
    else
      register_all();
  }
  ready.set_value(result);
  if (result < 0) return;
  loop();
  if (!broken_) io_uring_queue_exit(&ring_);
}

// A request that does nothing: where a policy lets rings be made but not entered, this is where it shows.
int Ring::try_out() {
  io_uring_prep_nop(io_uring_get_sqe(&ring_));
  io_uring_cqe* cqe = nullptr;
  int result = enter();
  for (unsigned i = 0; result == -EINTR && i < kMaxRingErrors; ++i) result = enter();
  if (result >= 0) result = io_uring_wait_cqe(&ring_, &cqe);
  if (result < 0) return result;
  io_uring_cqe_seen(&ring_, cqe);
  return 0;
}

int Ring::enter() {
  return enter_fails() ? -options_.faults.error_number : io_uring_submit_and_wait(&ring_, 1);
}

// Like enter(), without waiting. What is not submitted stays in the queue.
void Ring::submit() {
  if (!enter_fails()) (void)io_uring_submit(&ring_);
}

bool Ring::enter_fails() {
  const FaultPlan& plan = options_.faults;
  const uint64_t number = enters_++;
  return number >= plan.fail_enter_at && number - plan.fail_enter_at < plan.fail_enters;
}

// Each registration is an optimisation: where a limit forbids it, plain requests do.
void Ring::register_all() {
  (void)io_uring_register_ring_fd(&ring_);
  if (io_uring_register_files_sparse(&ring_, kRegisteredFiles) == 0) registered_.assign(kRegisteredFiles, 0);
  const iovec pool{slots_, rule_.slots * rule_.slot_bytes};
  fixed_buffers_ = io_uring_register_buffers(&ring_, &pool, 1) == 0;
}

void Ring::loop() {
  poll_wake();
  unsigned errors = 0;
  for (;;) {
    const bool stopping = take_new_work();
    fill();
    if (broken_) {
      if (stopping) return;
      pollfd p{wake_, POLLIN, 0};
      (void)poll(&p, 1, -1);
      uint64_t count;
      (void)eventfd_read(wake_, &count);  // then the lists are read, so that no wake-up is lost
      continue;
    }
    if (stopping && feed_.empty() && !pending_ && free_flights_.size() == flights_.size()) return;
    const int result = enter();
    if (result >= 0 || result == -EINTR) {
      errors = 0;
    } else if (++errors > kMaxRingErrors || (result != -EAGAIN && result != -EBUSY && result != -ENOMEM)) {
      give_up(-result);
      continue;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    reap();
  }
}

// Returns whether the engine is being destroyed.
bool Ring::take_new_work() {
  std::vector<std::shared_ptr<JobState>> jobs;
  std::vector<ClosedFile> closed;
  bool stop;
  {
    std::lock_guard lock(mutex_);
    jobs.swap(new_jobs_);
    closed.swap(closed_files_);
    stop = stop_;
  }
  for (auto& job : jobs) feed_.add(std::move(job));
  if (!broken_)
    for (const ClosedFile& file : closed) unregister(file);
  return stop;
}

void Ring::unregister(const ClosedFile& file) {
  if (file.slot >= registered_.size() || registered_[file.slot] != file.serial) return;
  // Requests that name the file by its slot must have reached the kernel. If they cannot now, the slot stays
  // taken until its next file or the end of the ring.
  if (io_uring_sq_ready(&ring_) > 0) submit();
  if (io_uring_sq_ready(&ring_) > 0) return;
  int none = -1;
  if (io_uring_register_files_update(&ring_, file.slot, &none, 1) == 1) registered_[file.slot] = 0;
}

void Ring::fill() {
  if (broken_) {
    feed_.fail_all(ring_error(broken_by_));
    return;
  }
  while (!free_flights_.empty()) {
    if (!pending_) {
      Transfer t;
      if (!feed_.next(t)) return;
      pending_ = std::move(t);
    }
    const uint64_t bytes = pending_->piece.length;
    if (flying_bytes_ && flying_bytes_ + bytes > kFlightRequests * options_.max_request_bytes) return;
    if (!give_slot(*pending_)) return;
    flying_bytes_ += bytes;
    const unsigned index = free_flights_.back();
    free_flights_.pop_back();
    flights_[index] = Flight{};
    flights_[index].transfer = std::move(*pending_);
    pending_.reset();
    issue(index);
  }
}

bool Ring::give_slot(Transfer& t) {
  if (!t.piece.bounce) return true;
  if (free_slots_.empty()) return false;
  t.target = free_slots_.back();
  free_slots_.pop_back();
  return true;
}

// A SQ entry is free for every flight, but a full queue after an interrupted submission is flushed all the
// same.
io_uring_sqe* Ring::entry() {
  io_uring_sqe* const sqe = free_entry();
  if (sqe) ++entries_;
  return sqe;
}

io_uring_sqe* Ring::free_entry() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  for (unsigned i = 0; !sqe && i < kMaxRingErrors; ++i) {
    submit();
    sqe = io_uring_get_sqe(&ring_);
  }
  return sqe;
}

// Starts a flight's next attempt.
void Ring::issue(unsigned index) {
  Flight& f = flights_[index];
  io_uring_sqe* sqe = entry();
  if (!sqe) return land(index, -EBUSY);
  f.entry = entries_;
  prepare(sqe, f);
  io_uring_sqe_set_data64(sqe, index);
}

void Ring::prepare(io_uring_sqe* sqe, Flight& f) {
  const Transfer& t = f.transfer;
  const Piece& p = t.piece;
  if (const uint32_t us = options_.faults.delay_us; us && !f.delayed) {
    f.delayed = f.delaying = true;
    f.delay = {us / 1000000, static_cast<long long>(us % 1000000) * 1000};
    return io_uring_prep_timeout(sqe, &f.delay, 0, 0);
  }
  const Fault fault = fault_of_(t);
  f.fault = fault.error;
  if (f.fault) return io_uring_prep_nop(sqe);
  const bool registered = use_registered(*p.file);
  const int fd = registered ? static_cast<int>(p.file->slot) : p.file->fd();
  std::byte* const memory = t.target + t.position;
  const auto length = static_cast<unsigned>(fault.length);
  const uint64_t offset = p.offset + t.position;
  if (p.op == IoOp::write)
    io_uring_prep_write(sqe, fd, memory, length, offset);
  else if (p.bounce && fixed_buffers_)
    io_uring_prep_read_fixed(sqe, fd, memory, length, offset, 0);
  else
    io_uring_prep_read(sqe, fd, memory, length, offset);
  if (registered) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

// A file that its user has closed is not registered again: nothing would take it out.
// The slot's former file is gone for good, so no request names it any more.
bool Ring::use_registered(const File& file) {
  if (file.slot >= registered_.size()) return false;
  if (registered_[file.slot] == file.serial) return true;
  if (file.closed) return false;
  int fd = file.fd();
  const bool done = io_uring_register_files_update(&ring_, file.slot, &fd, 1) == 1;
  registered_[file.slot] = done ? file.serial : 0;
  return done;
}

void Ring::reap() {
  io_uring_cqe* cqe;
  unsigned head, seen = 0;
  bool woken = false;
  io_uring_for_each_cqe(&ring_, head, cqe) {
    ++seen;
    if (cqe->user_data == kWake)
      woken = true;
    else
      land(static_cast<unsigned>(cqe->user_data), cqe->res);
  }
  io_uring_cq_advance(&ring_, seen);
  if (woken) poll_wake();
}

void Ring::land(unsigned index, int result) {
  Flight& f = flights_[index];
  if (std::exchange(f.delaying, false)) return issue(index);
  if (f.fault) result = -f.fault;
  std::optional<Error> error;
  if (judge(f.transfer, result, counters_, error) == Verdict::again) return issue(index);
  if (f.transfer.piece.bounce) free_slots_.push_back(f.transfer.target);
  flying_bytes_ -= f.transfer.piece.length;
  feed_.settle(f.transfer, std::move(error));
  free_flights_.push_back(index);
}

void Ring::poll_wake() {
  uint64_t count;
  (void)eventfd_read(wake_,
                     &count);  // before the poll, so that no wake-up is lost: the lists are read after it
  io_uring_sqe* sqe = entry();
  if (!sqe) return give_up(EBUSY);
  io_uring_prep_poll_add(sqe, wake_, POLLIN);
  io_uring_sqe_set_data64(sqe, kWake);
}

// Waits for the requests that the kernel has: it may write to their memory until they are done, also when the ring is
// gone, and whoever is told that a job failed may use the memory again. Nothing more is submitted meanwhile: liburing's
// waits with a time limit would, on older kernels. Asking for completions may work where submitting does not; where it
// does not either, nobody can know, and the clock has to do.
void Ring::drain() {
  const uint64_t reached = entries_ - io_uring_sq_ready(&ring_);
  unsigned under_way = 0;
  for (const Flight& f : flights_) under_way += f.transfer.job && f.entry <= reached;
  const auto began = std::chrono::steady_clock::now();
  auto answered = began, now = began;
  for (; under_way > 0 && now - began < kDrain && now - answered < kBlindDrain;
       now = std::chrono::steady_clock::now()) {
    // Also runs what DEFER_TASKRUN has put off.
    const long result = syscall(__NR_io_uring_enter, ring_.ring_fd, 0, 0, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (result >= 0 || errno == EINTR) answered = std::chrono::steady_clock::now();
    io_uring_cqe* cqe = nullptr;
    if (io_uring_peek_cqe(&ring_, &cqe) < 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    under_way -= cqe->user_data != kWake;
    io_uring_cqe_seen(&ring_, cqe);
  }
}

// The ring no longer works: when the kernel is done with what it has, or has had time for it, every job fails.
void Ring::give_up(int error_number) {
  drain();
  io_uring_queue_exit(&ring_);
  broken_ = true;
  broken_by_ = error_number;
  const Error error = ring_error(error_number);
  feed_.fail_all(error);
  if (pending_) feed_.settle(*pending_, error);
  pending_.reset();
  for (Flight& f : flights_)
    if (f.transfer.job) feed_.settle(f.transfer, error);
}

class UringBackend final : public Engine {
 public:
  UringBackend(const IoOptions& options, Budget& budget)
      : Engine(options, budget),
        slots_(budget, "io-buffers", rule_.slots * rule_.slot_bytes),
        ring_(std::make_unique<Ring>(rule_, options_, counters_, slots_.data(),
                                     [this](const Transfer& t) { return fault_of(t); })) {}
  ~UringBackend() override {
    if (!forked()) return;
    (void)ring_.release();  // its thread lives in the parent
    (void)writer_.release();
  }
  std::string backend_name() const override { return "io_uring"; }

 protected:
  // What goes to the page cache is a copy that the kernel cannot begin without waiting for the file's lock: through a
  // ring each such write would wake a thread of the kernel's. A thread of our own makes them one after another.
  void enqueue(std::shared_ptr<JobState> job) override {
    if (job->writes_buffered())
      writer().push(std::move(job));
    else
      ring_->push(std::move(job));
  }
  void closed(const File& file) override {
    if (!forked()) ring_->forget_file(file.slot, file.serial);
  }

 private:
  BlockingWorkers& writer() {
    std::lock_guard lock(mutex_);
    if (!writer_)
      writer_ = std::make_unique<BlockingWorkers>(rule_, options_, counters_, 1, nullptr,
                                                  [this](const Transfer& t) { return fault_of(t); });
    return *writer_;
  }

  Buffer slots_;
  std::unique_ptr<Ring> ring_;
  std::mutex mutex_;
  std::unique_ptr<BlockingWorkers> writer_;  // from the first write on
};

}  // namespace

std::shared_ptr<BlockIo> make_uring_backend(const IoOptions& options, Budget& budget) {
  return std::make_shared<UringBackend>(options, budget);
}

}  // namespace outcrop

#else

namespace outcrop {

std::shared_ptr<BlockIo> make_uring_backend(const IoOptions&, Budget&) {
  throw_io("io_uring was left out of this build (liburing was not found); choose the pread backend", ENOSYS);
}

}  // namespace outcrop

#endif
