// Entry points of gather.h: gather_<bytes of a word>_<bits of an index>.
#include "kernels/gather.h"

using namespace outcrop::kernels;

#define OUTCROP_GATHER(NAME, WORD, INDEX)                                                                 \
  extern "C" __global__ void NAME(const uint8* table, int64 table_stride, int64 num_rows, const INDEX* index,  \
                                  int64 count, uint8* out, int64 out_stride, int64 row_words, int64* wrong) {  \
    const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;                            \
    const int64 threads = static_cast<int64>(gridDim.x) * blockDim.x;                                          \
    const Gather<INDEX> g{table, table_stride, num_rows, index, count, out, out_stride, row_words, wrong};     \
    gather<WORD>(g, Lane{static_cast<int>(threadIdx.x % kWarp), thread / kWarp, threads / kWarp});             \
  }

OUTCROP_GATHER(gather_1_32, uint8, int32)
OUTCROP_GATHER(gather_2_32, uint16, int32)
OUTCROP_GATHER(gather_4_32, uint32, int32)
OUTCROP_GATHER(gather_8_32, uint64, int32)
OUTCROP_GATHER(gather_16_32, Word16, int32)
OUTCROP_GATHER(gather_1_64, uint8, int64)
OUTCROP_GATHER(gather_2_64, uint16, int64)
OUTCROP_GATHER(gather_4_64, uint32, int64)
OUTCROP_GATHER(gather_8_64, uint64, int64)
OUTCROP_GATHER(gather_16_64, Word16, int64)
