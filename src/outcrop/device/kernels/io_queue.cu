// Entry points of io_queue.h: io_submit, a block of which submits to a queue, and io_complete.
#include "kernels/io_queue.h"

using namespace outcrop::kernels;

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

// By all threads of a block: what the host has written, from its memory to the device's, where it is looked
// at often.
template <typename Row>
__device__ __forceinline__ void fetch(const Row *from, Row *to, int64 rows) {
  const auto *words = reinterpret_cast<const uint64 *>(from);
  for (int64 i = threadIdx.x; i < rows * static_cast<int64>(sizeof(Row) / 8); i += blockDim.x)
    reinterpret_cast<uint64 *>(to)[i] = words[i];
  __syncthreads();
}

}  // namespace

// `fetched` has room for as many rows as there are queues.
extern "C" __global__ void io_submit(const Submit *table, Submit *fetched, int64 queues) {
  if (blockIdx.x >= queues) return;
  fetch(table + blockIdx.x, fetched + blockIdx.x, 1);
  const Submit &s = fetched[blockIdx.x];
  if (lost(s.queue)) return;
  if (s.write)
    for (int64 i = threadIdx.x / kWarp; i < s.count; i += blockDim.x / kWarp)
      stage(s, i, static_cast<int>(threadIdx.x % kWarp));
  for (int64 i = threadIdx.x; i < s.count; i += blockDim.x) submit_one(s, i);
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) ring_submitted(s);  // once, after all commands of the queue
}

// `fetched` has room for as many rows as there are queues, for each block.
extern "C" __global__ void io_complete(const Complete *table, Complete *fetched, int64 queues,
                                       int64 deadline_ns) {
  const CompleteTable all{fetched + blockIdx.x * queues};
  fetch(table, fetched + blockIdx.x * queues, queues);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  Patience patience{now_ns() + static_cast<uint64>(deadline_ns)};
  for (int64 first = (blockIdx.x * blockDim.x + threadIdx.x) / kWarp;; ++first) {
    Claim mine{};
    if (lane == 0) mine = claim(all, queues, first, patience);
    mine.there = __shfl_sync(0xffffffffu, static_cast<int>(mine.there), 0) != 0;
    if (!mine.there) return;
    patience.sleep_ns = 500;
    mine.queue = __shfl_sync(0xffffffffu, static_cast<int>(mine.queue), 0);
    mine.taken.id = static_cast<uint16>(__shfl_sync(0xffffffffu, static_cast<int>(mine.taken.id), 0));
    mine.taken.status = __shfl_sync(0xffffffffu, mine.taken.status, 0);
    mine.bytes = __shfl_sync(0xffffffffu, mine.bytes, 0);
    __syncwarp();  // what lane 0 has acquired, all may read
    land(all(mine.queue).queue, mine, lane);
    __syncwarp();
    if (lane == 0) settle(all(mine.queue), mine);
  }
}
