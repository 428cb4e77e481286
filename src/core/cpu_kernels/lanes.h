// The lanes of a grid, one after the other.
#pragma once
#include <cstdint>

#include "kernels/portable.h"

namespace outcrop {

template <typename Body>
void every_lane(int64_t warps, const Body& body) {
  for (int64_t warp = 0; warp < warps; ++warp) {
    for (int lane = 0; lane < kernels::kWarp; ++lane) body(kernels::Lane{lane, warp, warps});
  }
}

}  // namespace outcrop
