#include "io/transfer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/buffer.h"

namespace outcrop {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{4} << 20, kMaxSlotBytes = 32 << 10, kFloorPages = 4;
constexpr uint64_t kMaxRequestBytes = uint64_t{1} << 30;  // the kernel moves less than 2 GiB per call
constexpr uint64_t kSectorBytes = 512;
constexpr unsigned kMaxIdle = 100;  // attempts without progress before giving up

std::string describe(const Transfer& t) {
  const Piece& p = t.piece;
  return std::string(p.op == IoOp::read ? "cannot read " : "cannot write ") + std::to_string(p.wanted) +
         " bytes at offset " + std::to_string(p.offset + p.skip) + " of " + p.file->path();
}

Error system_error(const Transfer& t, int error_number) {
  return Error(ErrorKind::io, describe(t) + ": " + std::strerror(error_number), error_number);
}

Verdict try_again(Transfer& t, int error_number, std::optional<Error>& error) {
  if (++t.idle <= kMaxIdle) return Verdict::again;
  error = Error(ErrorKind::io,
                describe(t) + ": no progress after " + std::to_string(kMaxIdle) + " attempts" +
                    (error_number ? std::string(": ") + std::strerror(error_number) : std::string()),
                error_number);
  return Verdict::failed;
}

Verdict judge_error(Transfer& t, int error_number, AtomicIoCounters& counters, std::optional<Error>& error) {
  if (error_number == EINTR || error_number == EAGAIN) {
    counters.retries.fetch_add(1, std::memory_order_relaxed);
    return try_again(t, error_number, error);
  }
  if (error_number == EINVAL && t.piece.direct) {
    t.piece.file->use_buffered();
    t.piece.direct = false;
    return Verdict::again;
  }
  error = system_error(t, error_number);
  return Verdict::failed;
}

Verdict judge_short(Transfer& t, uint64_t reached, AtomicIoCounters& counters, std::optional<Error>& error) {
  const Piece& p = t.piece;
  if (p.op == IoOp::read) {
    const uint64_t size = p.file->size_bytes();
    if (p.offset + reached >= size) {
      error = Error(ErrorKind::io, p.file->path() + " ends at byte " + std::to_string(size) + ", " +
                                       std::to_string(t.request.length) + " bytes at offset " +
                                       std::to_string(t.request.offset) +
                                       " were asked for: the file is truncated");
      return Verdict::failed;
    }
    counters.short_reads.fetch_add(1, std::memory_order_relaxed);
  }
  const uint64_t before = t.position;
  t.position = p.direct ? align_down(reached, kSectorBytes) : reached;
  if (t.position == before) return try_again(t, 0, error);
  t.idle = 0;
  return Verdict::again;
}

}  // namespace

IoCounters AtomicIoCounters::snapshot() const {
  return {read_bytes, read_ops, write_bytes, write_ops, bounce_bytes, short_reads, retries};
}

SplitRule SplitRule::make(const IoOptions& options, uint64_t limit_bytes) {
  SplitRule rule;
  rule.max_request_bytes =
      std::clamp(align_down(options.max_request_bytes, kPageBytes), uint64_t{kPageBytes}, kMaxRequestBytes);
  const uint64_t pool = std::max(std::min(kPoolBytes, limit_bytes / 16), kFloorPages * kPageBytes);
  const uint64_t depth = std::max(1u, options.depth);
  rule.slot_bytes = std::clamp(align_down(pool / depth, kPageBytes), uint64_t{kPageBytes},
                               std::min(kMaxSlotBytes, rule.max_request_bytes));
  rule.slots = static_cast<unsigned>(std::clamp<uint64_t>(pool / rule.slot_bytes, 1, depth));
  return rule;
}

Piece next_piece(const SplitRule& rule, IoOp op, const IoRequest& request, File* file, uint64_t at) {
  Piece p;
  p.file = file;
  p.op = op;
  p.data = request.data + at;
  const uint64_t offset = request.offset + at, rest = request.length - at;
  p.direct = file->direct();
  if (!p.direct) {
    p.offset = offset;
    p.length = p.wanted = std::min(rest, rule.max_request_bytes);
    return p;
  }
  const uint64_t in_page = offset % kPageBytes, in_memory = reinterpret_cast<uintptr_t>(p.data) % kPageBytes;
  p.offset = offset - in_page;
  if (in_page == 0 && in_memory == 0 && (rest % kPageBytes == 0 || rest > rule.slot_bytes)) {
    p.length = p.wanted = std::min(align_down(rest, kPageBytes), rule.max_request_bytes);
    return p;
  }
  p.bounce = true;
  p.skip = in_page;
  // A long request whose memory can be aligned along with the file: only its first page takes the detour.
  const bool first_page_only = in_page == in_memory && in_page != 0 && rest > rule.slot_bytes;
  p.length = first_page_only ? kPageBytes
                             : std::min(align_up(offset + rest, kPageBytes) - p.offset, rule.slot_bytes);
  p.wanted = std::min(rest, p.length - p.skip);
  return p;
}

Verdict judge(Transfer& t, int64_t result, AtomicIoCounters& counters, std::optional<Error>& error) {
  ++t.attempt;
  try {
    if (result < 0) return judge_error(t, static_cast<int>(-result), counters, error);
    const Piece& p = t.piece;
    const uint64_t reached = t.position + static_cast<uint64_t>(result);
    if (reached < p.skip + p.wanted) return judge_short(t, reached, counters, error);
    if (p.bounce) {
      std::memcpy(p.data, t.target + p.skip, p.wanted);
      counters.bounce_bytes.fetch_add(p.wanted, std::memory_order_relaxed);
    }
    return Verdict::complete;
  } catch (const Error& e) {  // from the file: its size, its flags
    error = e;
    return Verdict::failed;
  }
}

}  // namespace outcrop
