// What kernels need from the compiler, the same under NVRTC and under a C++ compiler: a kernel on the CPU
// (core/cpu_kernels) runs the code of its header lane by lane. Headers of kernels include nothing else.
#pragma once

#if defined(__CUDACC__)
#define OUTCROP_DEVICE __device__ __forceinline__
#define OUTCROP_POPCOUNT __popcll
#define OUTCROP_UNROLL _Pragma("unroll")
#else
#define OUTCROP_DEVICE inline
#define OUTCROP_POPCOUNT __builtin_popcountll
#define OUTCROP_UNROLL
#endif

namespace outcrop::kernels {

using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using int32 = int;
using int64 = long long;
struct alignas(16) Word16 {
  uint32 parts[4];
};

constexpr int kWarp = 32;        // lanes
constexpr int kLineBytes = 128;  // of one request over PCIe

// A thread, as kernels see it.
struct Lane {
  int lane;     // in its warp
  int64 warp;   // of the whole grid
  int64 warps;  // in it
};

}  // namespace outcrop::kernels
