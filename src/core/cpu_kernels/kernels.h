// Kernels on the CPU: the code of src/outcrop/device/kernels, lane by lane. What the GPU is tested against where
// there is one, and what sanitizers and property tests see where there is none. Not fast.
#pragma once
#include <cstddef>
#include <cstdint>

namespace outcrop {

struct CpuRows {
  const std::byte* table;
  int64_t table_stride, num_rows;
  std::byte* out;
  int64_t out_stride, row_bytes;
};

// out[i] = table[index[i]] by kernels/gather.h with words of `word_bytes` (1, 2, 4, 8, 16), by `warps` warps;
// an index has 4 or 8 bytes. Returns -1, or a place in `index` that is no row of the table.
int64_t cpu_gather(const CpuRows& rows, const void* index, int index_bytes, int64_t count, int word_bytes,
                   int64_t warps);

struct CpuTable {
  const std::byte* rows;
  int64_t stride, count;
};

// out[i] = the row that place[i] names, by kernels/assemble.h. `tables` are 3. Returns -1, or a place that is
// none.
int64_t cpu_assemble(const CpuTable* tables, const uint64_t* place, int64_t count, std::byte* out,
                     int64_t row_bytes, int word_bytes, int64_t warps);

// Requests of kernels/gather.h for one row at `address`: lines of 128 bytes that each round of the warp
// touches.
int64_t cpu_gather_requests(uint64_t address, int64_t row_bytes);

}  // namespace outcrop
