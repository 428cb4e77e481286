// Entry points of io_queue.h: io_submit, which one block runs, and io_complete.
#include "kernels/io_queue.h"

using namespace outcrop::kernels;

#define OUTCROP_QUEUE_PARAMETERS                                                                         \
  Command *commands, Completion *completions, uint32 *command_doorbell, uint32 *completion_doorbell,     \
      int64 depth, uint16 *free_ids, Landing *landings, int64 num_ids, uint8 *staging, int64 slot_bytes, \
      Progress *progress
#define OUTCROP_QUEUE                                                                                     \
  IoQueue {                                                                                               \
    {commands, completions, command_doorbell, completion_doorbell, static_cast<uint32>(depth)}, free_ids, \
        landings, num_ids, staging, slot_bytes, progress                                                  \
  }

namespace {

__device__ __forceinline__ uint64 now_ns() {
  uint64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Many warps look at the same entry, over PCIe: each looks less and less often while nothing comes.
struct Patience {
  uint64 end;
  uint32 sleep_ns = 500;
  __device__ bool over() {
    __nanosleep(sleep_ns);
    sleep_ns = sleep_ns < 16000 ? 2 * sleep_ns : sleep_ns;
    return now_ns() > end;
  }
};

}  // namespace

extern "C" __global__ void io_submit(OUTCROP_QUEUE_PARAMETERS, uint64 bus, int64 base, int64 stride,
                                     int64 row_bytes, const int64 *wanted, uint8 *out, int64 out_stride,
                                     int64 first, int64 count, int64 submitted, int64 completed, int64 told,
                                     const int32 *places, int64 write, int64 group, int64 group_commands) {
  const Submit s{OUTCROP_QUEUE, bus,       {base, stride, row_bytes}, wanted, out,    out_stride, first, count,
                 submitted,     completed, told,                      places, write,  group,      group_commands};
  if (blockIdx.x > 0 || lost(s.queue)) return;  // the doorbell is rung once, after all commands
  if (write)
    for (int64 i = threadIdx.x / kWarp; i < count; i += blockDim.x / kWarp)
      stage(s, i, static_cast<int>(threadIdx.x % kWarp));
  for (int64 i = threadIdx.x; i < count; i += blockDim.x) submit_one(s, i);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) ring_submitted(s);
}

extern "C" __global__ void io_complete(OUTCROP_QUEUE_PARAMETERS, const uint32 *ended, int64 most,
                                       int64 completed, int64 deadline_ns) {
  const Complete c{OUTCROP_QUEUE, ended, most, completed};
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  Patience patience{now_ns() + static_cast<uint64>(deadline_ns)};
  for (;;) {
    Claim mine{};
    if (lane == 0) mine = claim(c, patience);
    mine.there = __shfl_sync(0xffffffffu, static_cast<int>(mine.there), 0) != 0;
    if (!mine.there) return;
    patience.sleep_ns = 500;
    mine.taken.id = static_cast<uint16>(__shfl_sync(0xffffffffu, static_cast<int>(mine.taken.id), 0));
    mine.taken.status = __shfl_sync(0xffffffffu, mine.taken.status, 0);
    mine.bytes = __shfl_sync(0xffffffffu, mine.bytes, 0);
    __syncwarp();  // what lane 0 has acquired, all may read
    land(c.queue, mine, lane);
    __syncwarp();
    if (lane == 0) settle(c, mine);
  }
}
