// The block I/O engine: the only code of Outcrop that reads and writes data files.
//
// Protocol. open() gives a FileId; submit() takes a list of reads or writes and returns at once with a Job;
// Job::wait() blocks until every request of the job has finished and throws the first error. Requests may be
// of any offset, length and memory: what O_DIRECT demands of alignment is handled inside (bounce buffers).
// Invariants. Every completion's result is checked; short transfers are continued; a read that meets the end
// of the file before its length is an error that names file, offset and length. The memory of a request must
// live until its job was waited for (a Job's destructor waits). Bytes and operations are counted here.
// Jobs may be submitted from several threads and overlap: the ring stays full across jobs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/budget.h"
#include "base/counters.h"

namespace outcrop {

using FileId = uint32_t;
// create truncates, update keeps what is there; both are for reading and writing, through the page cache.
// pages is update past it: what is written are whole pages of the file and of memory. On a file that was
// preallocated (resize) such writes take next to no CPU and leave nothing behind that counts as memory.
enum class OpenMode { read, create, update, pages };
enum class IoOp { read, write };
enum class Backend { automatic, uring, pread };

struct IoRequest {
  FileId file = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
  std::byte* data = nullptr;
};

// Faults for tests: decided by a keyed hash of the operation number, so that a run can be repeated.
struct FaultPlan {
  double short_probability = 0;                 // transfer only part of what was asked
  double eagain_probability = 0;                // fail once with EAGAIN/EINTR
  double error_probability = 0;                 // fail with error_number
  int error_number = 5;                         // EIO
  uint64_t fail_at_op = UINT64_MAX;             // exactly this operation (0 = first) fails with error_number
  unsigned fail_attempts = UINT32_MAX;          // of that operation; further ones are made
  uint64_t disk_full_after_bytes = UINT64_MAX;  // writes beyond this many bytes in all fail with ENOSPC
  uint64_t fail_enter_at =
      UINT64_MAX;                     // from this io_uring_enter on (0 = first) they fail with error_number,
  uint64_t fail_enters = UINT64_MAX;  // so many of them
  uint32_t delay_us = 0;
  uint64_t seed = 0;
  bool any() const;
};

struct IoOptions {
  Backend backend = Backend::automatic;
  unsigned depth = 128;                   // requests in flight
  uint64_t max_request_bytes = 1u << 20;  // longer requests are split
  bool direct = true;    // O_DIRECT for files opened as read or pages, where the file system has it
  unsigned threads = 4;  // of the pread backend
  uint64_t rate_bytes_per_second = 0;  // reads and writes together, on average (pace.h); 0: no limit
  uint64_t requests_per_second = 0;    // the same of requests
  // Writes leave at most about twice this for each file in the page cache that the disk has not got yet; 0:
  // as much as the system lets. Control groups of version 1 kill processes that let too much gather.
  uint64_t unwritten_bytes = 0;
  FaultPlan faults;
};

class IoJob {
 public:
  virtual ~IoJob() = default;
  virtual void wait() = 0;        // idempotent; throws Error(io) each time if the job failed
  virtual bool done() const = 0;  // finished, well or not
};

// Told by the engine's threads, once for each job that it was given with, just before wait() stops waiting.
class IoListener {
 public:
  virtual void ended(uint64_t token) noexcept = 0;

 protected:
  ~IoListener() = default;
};

class BlockIo {
 public:
  static std::shared_ptr<BlockIo> create(const IoOptions& options, std::shared_ptr<Budget> budget);
  virtual ~BlockIo() = default;

  virtual FileId open(const std::string& path, OpenMode mode) = 0;
  virtual void close(FileId file) = 0;
  virtual uint64_t size_bytes(FileId file) const = 0;
  virtual const std::string& path(FileId file) const = 0;
  // The listener, if any, must live until the job was waited for.
  virtual std::shared_ptr<IoJob> submit(IoOp op, std::vector<IoRequest> requests,
                                        IoListener* listener = nullptr, uint64_t token = 0) = 0;
  virtual void sync(FileId file) = 0;                    // fdatasync
  virtual void drop_cache(FileId file) = 0;              // fsync + POSIX_FADV_DONTNEED
  virtual void resize(FileId file, uint64_t bytes) = 0;  // ftruncate; preallocates where possible
  virtual IoCounters counters() const = 0;
  virtual std::string backend_name() const = 0;  // "io_uring" or "pread"

  void read(FileId file, uint64_t offset, void* data, uint64_t length);
  void write(FileId file, uint64_t offset, const void* data, uint64_t length);
};

}  // namespace outcrop
