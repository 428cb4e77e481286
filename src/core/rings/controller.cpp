#include "rings/controller.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"

namespace outcrop {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::kBlockBytes;
using kernels::kMemoryPage;

constexpr unsigned kEager = 4, kAttentive = 200;  // looks in vain before it looks less often
constexpr std::chrono::microseconds kSoon{30}, kLater{1000};

}  // namespace

class RingController::Impl final : private IoListener {
 public:
  Impl(std::shared_ptr<BlockIo> io, const std::vector<FileId>& files, const QueueLayout& layout,
       std::byte* memory, const RingFaults& faults, bool checksums)
      : io_(std::move(io)),
        files_(with_sizes(*io_, files)),
        queue_(layout.at(memory)),
        ended_(reinterpret_cast<kernels::uint32*>(memory + layout.ended)),
        faults_(faults),
        checksums_(checksums),
        thread_(start_thread([this] { run(); })) {}
  ~Impl() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }

  bool forked() const { return pid_ != getpid(); }
  uint64_t served() const { return served_.load(std::memory_order_relaxed); }
  std::string error() const {
    std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  struct File {
    FileId id;
    uint64_t bytes;
  };
  struct Flight {  // a command that was given to the engine
    std::shared_ptr<IoJob> job;
    uint64_t number = 0;
    uint16_t id = 0;
    bool write = false;
    std::vector<std::span<const std::byte>> moved;  // in staging memory, where checksums are asked for
  };
  struct Finished {
    uint64_t number;
    uint16_t id;
    uint32_t status, result;
    Clock::time_point ready;
  };

  static std::vector<File> with_sizes(const BlockIo& io, const std::vector<FileId>& files) {
    std::vector<File> found;
    for (const FileId file : files) found.push_back({file, io.size_bytes(file)});
    return found;
  }
  void run();
  bool fetch();
  uint32_t start(const kernels::Command& command, uint64_t number);
  bool collect();
  bool publish();
  void post(const Finished& finished);
  void finish(uint64_t number, uint16_t id, uint32_t status, uint32_t result = 0);
  void pause(unsigned quiet);
  void ended(uint64_t token) noexcept override;
  void note(const std::string& error) {
    std::lock_guard lock(mutex_);
    error_ = error;
  }
  uint64_t chance(uint64_t number, uint64_t what) const {
    return mix64(mix64(faults_.seed * 8 + what) ^ number);
  }

  const std::shared_ptr<BlockIo> io_;
  const std::vector<File> files_;  // by namespace, less one
  const kernels::IoQueue queue_;
  kernels::uint32* const ended_;
  const RingFaults faults_;
  const bool checksums_;
  const pid_t pid_ = getpid();

  // Of the thread:
  uint64_t fetched_ = 0, published_ = 0;
  std::vector<Flight> flights_;         // by token
  std::vector<uint64_t> free_flights_;  // tokens
  std::vector<uint64_t> landed_;        // tokens, of collect()
  std::vector<Finished> finished_;
  uint16_t last_id_ = 0;
  bool dead_ = false;

  std::atomic<uint64_t> served_{0};
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::string error_;
  std::vector<uint64_t> ended_jobs_;  // tokens
  std::condition_variable news_;      // of ended_jobs_
  bool waiting_ = false;
  std::thread thread_;  // last: it uses all others
};

void RingController::Impl::run() {
  try {
    for (unsigned quiet = 0; !stop_.load(std::memory_order_relaxed) && !dead_;) {
      const bool fetched = fetch(), collected = collect(), published = publish();
      quiet = fetched || collected || published ? 0 : quiet + 1;
      if (quiet) pause(quiet);
    }
  } catch (const std::exception& e) {
    note(e.what());
    kernels::store_release(ended_, 1);
  }
  flights_.clear();  // waits
}

// Until a read has ended, but not for long: nobody says when a doorbell is rung.
void RingController::Impl::pause(unsigned quiet) {
  if (quiet <= kEager) return std::this_thread::yield();
  const auto end = std::chrono::system_clock::now() + (quiet <= kAttentive ? kSoon : kLater);
  std::unique_lock lock(mutex_);
  waiting_ = true;
  if (ended_jobs_.empty()) (void)news_.wait_until(lock, end);
  waiting_ = false;
}

void RingController::Impl::ended(uint64_t token) noexcept {
  std::lock_guard lock(mutex_);
  ended_jobs_.push_back(token);  // there is room
  if (std::exchange(waiting_, false)) news_.notify_one();
}

// New commands, to the engine.
bool RingController::Impl::fetch() {
  const uint32_t depth = queue_.pair.depth, tail = kernels::load_acquire(queue_.pair.command_doorbell);
  if (tail >= depth)
    throw Error(ErrorKind::argument,
                "a doorbell of a ring of " + std::to_string(depth) + " was set to " + std::to_string(tail));
  bool any = false;
  for (; fetched_ % depth != tail; any = true) {
    const uint64_t number = fetched_;
    if (number == faults_.die_at) {
      dead_ = true;
      return true;
    }
    if (number == faults_.fail_at) throw Error(ErrorKind::io, "the controller was made to fail");
    const kernels::Command command = queue_.pair.commands[number % depth];
    ++fetched_;
    if (command.words[0] >= faults_.silent_from) continue;
    if (const uint32_t status = start(command, number)) finish(number, command.id, status);
  }
  return any;
}

// 0, or the status that the command ends with at once.
uint32_t RingController::Impl::start(const kernels::Command& c, uint64_t number) {
  if (faults_.error_probability > 0 &&
      static_cast<double>(chance(number, 0) >> 11) * 0x1p-53 < faults_.error_probability)
    return faults_.error_status;
  const bool write = c.opcode == kernels::kWriteOpcode;
  if (!write && c.opcode != kernels::kReadOpcode) return kernels::kInvalidOpcode;
  if (c.space == 0 || c.space > files_.size()) return kernels::kInvalidSpace;
  const File& file = files_[c.space - 1];
  const uint64_t first = c.words[0] | uint64_t{c.words[1]} << 32, blocks = uint64_t{c.words[2]} + 1;
  // What is left of the last block can be read.
  const uint64_t blocks_of_file = (file.bytes + (write ? 0 : kBlockBytes - 1)) / kBlockBytes;
  if (blocks > blocks_of_file || first > blocks_of_file - blocks) return kernels::kBeyondEnd;
  const auto staging = reinterpret_cast<uint64_t>(queue_.staging);
  const uint64_t staged = static_cast<uint64_t>(queue_.num_ids * queue_.slot_bytes);
  std::vector<IoRequest> requests;
  uint64_t offset = first * kBlockBytes, left = blocks * kBlockBytes;
  for (int part = 0; part < 2 && left; ++part) {
    const uint64_t address = c.data[part];
    const uint64_t bytes = std::min(left, kMemoryPage - address % kMemoryPage);
    if (address % kBlockBytes || (part == 1 && address % kMemoryPage) || address < staging ||
        address - staging > staged || bytes > staged - (address - staging))
      return kernels::kInvalidField;
    auto* data = reinterpret_cast<std::byte*>(address);
    const uint64_t there = std::min(bytes, file.bytes - std::min(offset, file.bytes));
    if (part == 1 && requests[0].data + requests[0].length == data)
      requests[0].length += there;
    else if (there)
      requests.push_back({file.id, offset, there, data});
    offset += bytes;
    left -= bytes;
  }
  if (left) return kernels::kInvalidField;
  if (free_flights_.empty()) {
    free_flights_.push_back(flights_.size());
    flights_.emplace_back();
    free_flights_.reserve(flights_.size());
    landed_.reserve(flights_.size());
    std::lock_guard lock(mutex_);
    ended_jobs_.reserve(flights_.size());
  }
  const uint64_t token = free_flights_.back();
  Flight& flight = flights_[token] = {nullptr, number, c.id, write, {}};
  if (checksums_)
    for (const IoRequest& r : requests) flight.moved.emplace_back(r.data, r.length);
  try {
    flight.job = io_->submit(write ? IoOp::write : IoOp::read, std::move(requests), this, token);
  } catch (const Error& refused) {  // what the file is not open for
    if (refused.kind() != ErrorKind::argument) throw;
    note(refused.what());
    return write ? kernels::kUnwritable : kernels::kUnreadable;
  }
  free_flights_.pop_back();
  return kernels::kDone;
}

void RingController::Impl::finish(uint64_t number, uint16_t id, uint32_t status, uint32_t result) {
  Clock::time_point ready{};
  if (faults_.delay_us)
    ready = Clock::now() + std::chrono::microseconds(chance(number, 1) % (uint64_t{faults_.delay_us} + 1));
  finished_.push_back({number, id, status, result, ready});
}

// What the engine has ended.
bool RingController::Impl::collect() {
  landed_.clear();
  {
    std::lock_guard lock(mutex_);
    landed_.swap(ended_jobs_);
  }
  for (const uint64_t token : landed_) {
    Flight& flight = flights_[token];
    uint32_t status = kernels::kDone;
    try {
      flight.job->wait();
    } catch (const Error& e) {
      note(e.what());
      status = flight.write ? kernels::kUnwritable : kernels::kUnreadable;
    }
    uint32_t crc = 0;
    for (const auto& part : flight.moved) crc = crc32c(part.data(), part.size(), crc);
    finish(flight.number, flight.id, status, crc);
    flight.job.reset();
    free_flights_.push_back(token);
  }
  return !landed_.empty();
}

// What may be told, as far as there is room.
bool RingController::Impl::publish() {
  if (finished_.empty()) return false;
  if (faults_.shuffle)
    std::sort(finished_.begin(), finished_.end(), [&](const Finished& a, const Finished& b) {
      return chance(a.number, 2) < chance(b.number, 2);
    });
  const Clock::time_point now = faults_.delay_us ? Clock::now() : Clock::time_point{};
  const uint32_t depth = queue_.pair.depth;
  const uint32_t taken = kernels::load_acquire(queue_.pair.completion_doorbell);
  // A part stays behind, to come after what is fetched later.
  size_t most = faults_.shuffle ? (finished_.size() + 3) / 4 : finished_.size();
  std::vector<Finished> kept;
  for (const Finished& f : finished_) {
    if (most == 0 || f.ready > now || (published_ + 1) % depth == taken) {
      kept.push_back(f);
    } else {
      post(f);
      --most;
    }
  }
  const bool any = kept.size() < finished_.size();
  finished_.swap(kept);
  return any;
}

void RingController::Impl::post(const Finished& f) {
  const uint32_t depth = queue_.pair.depth;
  kernels::Completion& entry = queue_.pair.completions[published_ % depth];
  entry.result = f.result;
  entry.reserved = 0;
  entry.head = static_cast<uint16_t>(fetched_ % depth);
  entry.queue = 1;
  const uint32_t phase = published_ / depth % 2 == 0 ? 1 : 0;
  const uint16_t id = published_ == faults_.repeat_at ? last_id_ : f.id;
  served_.fetch_add(1, std::memory_order_relaxed);  // before: who has seen the completion finds it counted
  kernels::store_release(&entry.last, kernels::completion_word(id, phase, f.status));
  last_id_ = f.id;
  ++published_;
}

RingController::RingController(std::shared_ptr<BlockIo> io, const std::vector<FileId>& files,
                               const QueueLayout& layout, std::byte* memory, const RingFaults& faults,
                               bool checksums)
    : impl_(std::make_unique<Impl>(std::move(io), files, layout, memory, faults, checksums)) {}

RingController::~RingController() {
  if (impl_->forked()) (void)impl_.release();  // its thread is in the parent
}

uint64_t RingController::served() const { return impl_->served(); }
std::string RingController::error() const { return impl_->error(); }

}  // namespace outcrop
