// Entry points of assemble.h: assemble_<bytes of a word>.
#include "kernels/assemble.h"

using namespace outcrop::kernels;

#define OUTCROP_ASSEMBLE(NAME, WORD)                                                                            \
  extern "C" __global__ void NAME(const uint8* rows0, int64 stride0, int64 count0, const uint8* rows1,          \
                                  int64 stride1, int64 count1, const uint8* rows2, int64 stride2, int64 count2, \
                                  const uint64* place, int64 count, uint8* out, int64 out_stride,               \
                                  int64 row_words, int64* wrong) {                                              \
    const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;                             \
    const int64 threads = static_cast<int64>(gridDim.x) * blockDim.x;                                           \
    const Assemble a{{{rows0, stride0, count0}, {rows1, stride1, count1}, {rows2, stride2, count2}},            \
                     place, count, out, out_stride, row_words, wrong};                                          \
    assemble<WORD>(a, Lane{static_cast<int>(threadIdx.x % kWarp), thread / kWarp, threads / kWarp});            \
  }

OUTCROP_ASSEMBLE(assemble_1, uint8)
OUTCROP_ASSEMBLE(assemble_2, uint16)
OUTCROP_ASSEMBLE(assemble_4, uint32)
OUTCROP_ASSEMBLE(assemble_8, uint64)
OUTCROP_ASSEMBLE(assemble_16, Word16)
