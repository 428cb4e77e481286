// When is each row of a recorded batch needed next? One walk over the batches, from the last to the first.
#pragma once
#include <cstdint>
#include <span>

namespace outcrop {

// For the ids of batch `now` within [first, first + seen.size()): out[i] = seen[ids[i] - first], then the
// same place of `seen` becomes `now`. Other ids are passed over. `out` may be null. Linear in the ids.
template <class Id>
void next_uses(std::span<const Id> ids, uint32_t now, int64_t first, std::span<uint32_t> seen,
               uint32_t* out) {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) {
      const auto ahead = static_cast<uint64_t>(ids[i + kAhead] - first);
      if (ahead < seen.size()) __builtin_prefetch(&seen[ahead], 1);
    }
    const auto at = static_cast<uint64_t>(ids[i] - first);
    if (at >= seen.size()) continue;
    if (out) out[i] = seen[at];
    seen[at] = now;
  }
}

}  // namespace outcrop
