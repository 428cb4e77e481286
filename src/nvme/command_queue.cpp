#include "nvme/command_queue.h"

#include <cstdio>
#include <iterator>
#include <thread>

#include "base/error.h"

namespace outcrop::nvme {
namespace {

struct StatusText {
  uint32_t status;
  const char* text;
};
// Status type (3 bits) and code (8 bits), base specification, figures "Status Code".
constexpr StatusText kStatusTexts[] = {
    {0x001, "invalid opcode"},
    {0x002, "invalid field"},
    {0x004, "data transfer error"},
    {0x006, "internal error"},
    {0x007, "aborted on request"},
    {0x00b, "invalid namespace or format"},
    {0x013, "invalid PRP offset"},
    {0x080, "block out of range"},
    {0x081, "capacity exceeded"},
    {0x082, "namespace not ready"},
    {0x100, "invalid completion queue"},
    {0x101, "invalid queue identifier"},
    {0x102, "invalid queue size"},
    {0x281, "unrecovered read error"},
    {0x282, "guard check error"},
    {0x285, "compare failure"},
    {0x286, "access denied"},
    {0x287, "deallocated or unwritten block"},
};
constexpr const char* kTypes[] = {"generic",  "command",  "media",    "path",
                                  "reserved", "reserved", "reserved", "vendor"};

}  // namespace

std::string status_name(uint32_t status) {
  const uint32_t code = status & 0x7ff;  // without the hints whether to try again
  if (code == 0) return "0x0 (done)";
  const char* text = "see the specification";
  for (const auto& known : kStatusTexts)
    if (known.status == code) text = known.text;
  char name[96];
  std::snprintf(name, sizeof name, "0x%x (%s: %s)", code, kTypes[code >> 8], text);
  return name;
}

CommandQueue::CommandQueue(kernels::QueuePair pair, std::chrono::milliseconds deadline, std::string name)
    : pair_(pair), deadline_(deadline), name_(std::move(name)), out_(pair.depth) {
  if (pair.depth < 2 || pair.depth > 65536)
    fail("a ring has 2 to 65536 entries, not " + std::to_string(pair.depth));
  for (uint32_t id = pair.depth - 1; id-- > 0;) free_.push_back(static_cast<uint16_t>(id));
}

void CommandQueue::fail(const std::string& what) const { throw Error(ErrorKind::io, name_ + ": " + what); }

uint16_t CommandQueue::put(const kernels::Command& command) {
  if (full())
    throw Error(ErrorKind::argument, name_ + ": all " + std::to_string(pair_.depth - 1) +
                                         " commands are in flight: take completions first");
  const uint16_t id = free_.back();
  free_.pop_back();
  out_[id] = true;
  pair_.commands[tail_] = command;
  pair_.commands[tail_].id = id;
  tail_ = tail_ + 1 == pair_.depth ? 0 : tail_ + 1;
  ++counters_.submitted;
  return id;
}

void CommandQueue::ring() {
  if (tail_ == rung_) return;
  rung_ = tail_;
  ++counters_.doorbells;
  kernels::ring(pair_.command_doorbell, tail_);
}

uint32_t CommandQueue::take(std::vector<Finished>& into, uint32_t most) {
  uint32_t taken = 0;
  for (; taken < most; ++taken) {
    const kernels::Completion* entry = pair_.completions + head_;
    const kernels::Taken seen = kernels::look(entry, phase_);
    if (!seen.ready) break;
    if (seen.id >= out_.size() || !out_[seen.id])
      fail("the controller completed command " + std::to_string(seen.id) +
           ", which is not in flight; reset the device before it is used again");
    out_[seen.id] = false;
    free_.push_back(seen.id);
    into.push_back({seen.id, seen.status, entry->result});
    ++counters_.completed;
    if (seen.status != 0) {
      ++counters_.failed;
      ++counters_.by_status[seen.status];
    }
    if (++head_ == pair_.depth) {
      head_ = 0;
      phase_ ^= 1;
    }
  }
  if (taken) kernels::ring(pair_.completion_doorbell, head_);
  return taken;
}

uint32_t CommandQueue::wait(std::vector<Finished>& into, uint32_t most) {
  if (in_flight() == 0) return 0;
  const auto end = std::chrono::steady_clock::now() + deadline_;
  for (;;) {
    if (const uint32_t taken = take(into, most)) return taken;
    if (std::chrono::steady_clock::now() > end)
      fail(std::to_string(in_flight()) + " commands in flight and no completion for " +
           std::to_string(deadline_.count()) + " ms; the controller or its link is stuck (dmesg says more)");
    std::this_thread::yield();
  }
}

}  // namespace outcrop::nvme
