// Entry points of io_queue.h: io_submit, which one block runs, and io_complete_<bytes of a word>.
#include "kernels/io_queue.h"

using namespace outcrop::kernels;

#define OUTCROP_QUEUE_PARAMETERS                                                                              \
  Command *commands, Completion *completions, uint32 *command_doorbell, uint32 *completion_doorbell,          \
      int64 depth, uint16 *free_ids, Landing *landings, int64 num_ids, uint8 *staging, int64 slot_bytes,       \
      uint32 *counts
#define OUTCROP_QUEUE                                                                                         \
  IoQueue {                                                                                                    \
    {commands, completions, command_doorbell, completion_doorbell, static_cast<uint32>(depth)}, free_ids,      \
        landings, num_ids, staging, slot_bytes, counts                                                         \
  }

namespace {

__device__ __forceinline__ uint64 now_ns() {
  uint64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

struct Patience {
  uint64 end;
  __device__ bool over() {
    __nanosleep(500);
    return now_ns() > end;
  }
};

template <typename Word>
__device__ __forceinline__ void complete(const Complete& c, int64 deadline_ns) {
  const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64 warps = static_cast<int64>(gridDim.x) * blockDim.x / kWarp;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  Patience patience{now_ns() + static_cast<uint64>(deadline_ns)};
  for (int64 i = thread / kWarp; i < c.count; i += warps) {
    Taken taken{};
    if (lane == 0) taken = await(c, i, patience);
    taken.ready = __shfl_sync(0xffffffffu, static_cast<int>(taken.ready), 0) != 0;
    taken.id = static_cast<uint16>(__shfl_sync(0xffffffffu, static_cast<int>(taken.id), 0));
    taken.status = __shfl_sync(0xffffffffu, taken.status, 0);
    __syncwarp();  // what lane 0 has acquired, all may read
    land<Word>(c.queue, taken, lane);
    __syncwarp();
    if (lane == 0) settle(c, i, taken);
  }
}

}  // namespace

extern "C" __global__ void io_submit(OUTCROP_QUEUE_PARAMETERS, uint64 bus, int64 base, int64 stride,
                                     int64 row_bytes, const int64* wanted, uint8* out, int64 out_stride,
                                     int64 first, int64 count, int64 submitted, int64 completed, int64 told,
                                     const int32* places) {
  const Submit s{OUTCROP_QUEUE, bus,   {base, stride, row_bytes}, wanted,    out,  out_stride,
                 first,         count, submitted,                 completed, told, places};
  if (blockIdx.x > 0 || lost(s.queue)) return;  // the doorbell is rung once, after all commands
  for (int64 i = threadIdx.x; i < count; i += blockDim.x) submit_one(s, i);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) ring_submitted(s);
}

#define OUTCROP_COMPLETE(NAME, WORD)                                                                          \
  extern "C" __global__ void NAME(OUTCROP_QUEUE_PARAMETERS, const uint32* ended, int64 count, int64 completed, \
                                  int64 deadline_ns) {                                                         \
    complete<WORD>(Complete{OUTCROP_QUEUE, ended, count, completed}, deadline_ns);                             \
  }

OUTCROP_COMPLETE(io_complete_1, uint8)
OUTCROP_COMPLETE(io_complete_2, uint16)
OUTCROP_COMPLETE(io_complete_4, uint32)
OUTCROP_COMPLETE(io_complete_8, uint64)
OUTCROP_COMPLETE(io_complete_16, Word16)
