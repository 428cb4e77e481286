// What the backends share: the file table, jobs, the order of operations, counting and validation.
//
// A JobState is shared by the engine and the JobHandle that the caller got; the handle's destructor waits, so
// that the caller's memory is never written after the handle is gone. The Feed turns queued jobs into
// transfers, oldest job first; backends call it from one thread at a time (the ring's thread, or under the
// mutex of the workers). A failed job's remaining pieces are dropped; it is done when those in flight have come back.
// After fork() the child has no engine thread: submit and wait throw there, and destructors leave everything
// alone.
#pragma once
#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/block_io.h"
#include "io/faults.h"
#include "io/file.h"
#include "io/pace.h"
#include "io/transfer.h"

namespace outcrop {

class JobState {
 public:
  JobState(IoOp op, std::vector<IoRequest> requests, std::vector<std::shared_ptr<File>> files,
           IoListener* listener, uint64_t token);
  void wait();          // throws what failed
  void wait_quietly();  // returns at once in a forked child
  bool done() const;
  bool writes_buffered() const;  // writes, and only to files whose bytes go to the page cache

 private:
  friend class Feed;
  File* file_of(FileId id);
  bool exhausted() const { return error_ || next_ == requests_.size(); }
  void finish();  // publishes the end; the job is not touched by the engine after it

  // Of the engine:
  const IoOp op_;
  const pid_t pid_;
  IoListener* const listener_;
  const uint64_t token_;
  std::vector<IoRequest> requests_;
  std::vector<std::shared_ptr<File>> files_;  // each once
  File* last_file_ = nullptr;
  size_t next_ = 0;  // request
  uint64_t at_ = 0;  // bytes into it
  uint64_t flying_ = 0;
  bool queued_ = true;  // in the Feed's queue
  std::optional<Error> error_;
  // Between engine and waiters:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
};

// Jobs in, transfers out, verdicts back.
class Feed {
 public:
  Feed(const SplitRule& rule, AtomicIoCounters& counters) : rule_(rule), counters_(counters) {}
  void add(std::shared_ptr<JobState> job) { queue_.push_back(std::move(job)); }
  // The next transfer, counted and numbered; false if there is none.
  bool next(Transfer& transfer);
  // Takes a transfer back: complete, or failed with `error`.
  void settle(Transfer& transfer, std::optional<Error> error);
  // Fails every queued job.
  void fail_all(const Error& error);
  bool empty() const { return queue_.empty(); }

 private:
  void retire_front();
  const SplitRule rule_;
  AtomicIoCounters& counters_;
  std::deque<std::shared_ptr<JobState>> queue_;
};

class Engine : public BlockIo {
 public:
  Engine(const IoOptions& options, const Budget& budget);
  FileId open(const std::string& path, OpenMode mode) override;
  void close(FileId file) override;
  uint64_t size_bytes(FileId file) const override { return files_.get(file)->size_bytes(); }
  const std::string& path(FileId file) const override { return files_.get(file)->path(); }
  std::shared_ptr<IoJob> submit(IoOp op, std::vector<IoRequest> requests, IoListener* listener = nullptr,
                                uint64_t token = 0) override;
  void sync(FileId file) override { files_.get(file)->sync(); }
  void drop_cache(FileId file) override { files_.get(file)->drop_cache(); }
  void resize(FileId file, uint64_t bytes) override;
  IoCounters counters() const override { return counters_.snapshot(); }

 protected:
  virtual void enqueue(std::shared_ptr<JobState> job) = 0;
  virtual void closed(const File&) {}
  bool forked() const;  // this process is a child of the one that made the engine
  Fault fault_of(const Transfer& transfer) const;

  const IoOptions options_;
  const SplitRule rule_;
  AtomicIoCounters counters_;

 private:
  const pid_t pid_;
  const bool faulty_;
  Pace pace_;
  FileTable files_;
};

}  // namespace outcrop
