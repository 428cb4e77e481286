// The sampling kernels on the CPU, lane by lane, called as they are launched.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace outcrop {

// Runs an entry point of kernels/sample.cu with `warps` warps, in either order of its lanes. `arguments` are
// those of the launch: addresses and numbers, not checked. Throws Error(argument) for an entry that is none,
// or another number of arguments.
void cpu_sample(const std::string& entry, int64_t warps, std::span<const int64_t> arguments, bool backwards);

}  // namespace outcrop
