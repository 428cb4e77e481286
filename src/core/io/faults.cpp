#include "io/faults.h"

#include <algorithm>
#include <cerrno>

#include "base/buffer.h"
#include "base/random.h"

namespace outcrop {
namespace {

enum class Draw : uint64_t { short_transfer = 1, how_short, again, which_again, error };

// Uniform in [0, 1), a pure function of its arguments.
double draw(const FaultPlan& plan, uint64_t number, unsigned attempt, Draw what) {
  const uint64_t key =
      mix64(mix64(mix64(plan.seed) ^ number) ^ (uint64_t{attempt} << 8 | static_cast<uint64_t>(what)));
  return static_cast<double>(key >> 11) * 0x1.0p-53;
}

constexpr uint64_t kSectorBytes = 512;

}  // namespace

bool FaultPlan::any() const {
  return short_probability > 0 || eagain_probability > 0 || error_probability > 0 ||
         fail_at_op != UINT64_MAX || disk_full_after_bytes != UINT64_MAX || delay_us > 0;
}

Fault decide_fault(const FaultPlan& plan, IoOp op, uint64_t number, unsigned attempt, uint64_t length,
                   bool direct, uint64_t written) {
  if (number == plan.fail_at_op && attempt < plan.fail_attempts) return {plan.error_number, length};
  if (attempt == 0) {
    if (draw(plan, number, 0, Draw::error) < plan.error_probability) return {plan.error_number, length};
    if (draw(plan, number, 0, Draw::again) < plan.eagain_probability)
      return {draw(plan, number, 0, Draw::which_again) < 0.5 ? EAGAIN : EINTR, length};
  }
  if (op == IoOp::write && plan.disk_full_after_bytes != UINT64_MAX) {
    const uint64_t room = plan.disk_full_after_bytes - std::min(written, plan.disk_full_after_bytes);
    length = std::min(length, direct ? align_down(room, kSectorBytes) : room);
    if (length == 0) return {ENOSPC, length};
  }
  if (draw(plan, number, attempt, Draw::short_transfer) < plan.short_probability) {
    const double part = draw(plan, number, attempt, Draw::how_short) * static_cast<double>(length);
    const uint64_t unit = direct ? kSectorBytes : 1;
    length = std::clamp(align_down(static_cast<uint64_t>(part), unit), std::min(unit, length), length);
  }
  return {0, length};
}

}  // namespace outcrop
