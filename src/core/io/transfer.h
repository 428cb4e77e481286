// How a request becomes system calls, the same for every backend: splitting, alignment, and what a result
// means.
//
// A request is cut into pieces in order; each piece is one counted operation. With O_DIRECT a piece is a span
// of whole pages that goes straight into the caller's memory where offset, length and address allow it, and
// through a bounce slot otherwise; the spans of a request cover each of its pages exactly once. What is
// written past the page cache is whole pages from the start (checked when it is submitted) and never goes
// through a slot. A piece may take several system calls (attempts) when the system transfers less than was
// asked or says "again".
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/error.h"
#include "io/block_io.h"
#include "io/file.h"

namespace outcrop {

// Counters that several threads add to.
struct AtomicIoCounters {
  std::atomic<uint64_t> read_bytes{0}, read_ops{0}, write_bytes{0}, write_ops{0}, bounce_bytes{0},
      short_reads{0}, retries{0}, transfers{0};
  IoCounters snapshot() const;
};

struct SplitRule {
  uint64_t max_request_bytes = 0;  // multiple of 4096
  uint64_t slot_bytes = 0;         // of one bounce slot, multiple of 4096, <= max_request_bytes
  unsigned slots = 0;
  // The rule for these options and a memory budget of limit_bytes: the slots take at most 4 MiB and a
  // sixteenth of the limit, but always a few pages.
  static SplitRule make(const IoOptions& options, uint64_t limit_bytes);
};

struct Piece {
  File* file = nullptr;
  IoOp op = IoOp::read;
  bool direct = false;        // asked for with O_DIRECT: whole pages
  bool bounce = false;        // goes through a slot
  uint64_t offset = 0;        // in the file, of the span
  uint64_t length = 0;        // of the span
  uint64_t skip = 0;          // bytes of the span before the wanted ones
  uint64_t wanted = 0;        // bytes wanted
  std::byte* data = nullptr;  // where the wanted bytes go or come from
};

// The piece of `request` that starts `at` bytes into it, at < request.length.
Piece next_piece(const SplitRule& rule, IoOp op, const IoRequest& request, File* file, uint64_t at);

class JobState;

// A piece on its way. `target` holds the span: the caller's memory, or a bounce slot.
struct Transfer {
  Piece piece;
  std::shared_ptr<JobState> job;
  IoRequest request;     // of which the piece is a part, for messages
  uint64_t number = 0;   // of the operation
  uint64_t written = 0;  // bytes of all writes before it
  std::byte* target = nullptr;
  uint64_t position = 0;  // bytes of the span that are settled: the next attempt starts here
  unsigned attempt = 0;   // system calls so far
  unsigned idle = 0;      // of which without progress since the last progress
};

enum class Verdict { complete, again, failed };

// Judges the result of a system call for the rest of the span from `position`: bytes, or a negative errno.
// Complete: the wanted bytes are there (and were copied out of the slot). Again: go on at `position`. Failed:
// `error` says why.
Verdict judge(Transfer& transfer, int64_t result, AtomicIoCounters& counters, std::optional<Error>& error);

}  // namespace outcrop
