// gather_rows: rows of a table in memory, at the speed of copying.
//
// A gather is bound by cache misses on the table: rows are fetched ahead of their copy, and the copy of
// common row sizes is unrolled by the compiler. Large outputs are written past the caches, as a plain big
// copy does.
#include <algorithm>
#include <cstring>
#include <string>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "base/error.h"
#include "io/rows.h"

namespace outcrop {
namespace {

constexpr size_t kGrainRows = 256;
constexpr uint64_t kAheadBytes = 8192;                // of rows fetched ahead
constexpr uint64_t kStreamBytes = uint64_t{8} << 20;  // outputs from here on bypass the caches
constexpr uint64_t kLine = 64;

inline void prefetch(const std::byte* row, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, 0, 0);
  __builtin_prefetch(row + bytes - 1, 0, 0);  // rows need not begin with a line
}

struct CopyAny {
  uint64_t bytes;
  void operator()(std::byte* to, const std::byte* from) const { std::memcpy(to, from, bytes); }
};

template <size_t kBytes>
struct CopyFixed {
  void operator()(std::byte* to, const std::byte* from) const { std::memcpy(to, from, kBytes); }
};

#if defined(__SSE2__)
// Rows of whole 16 bytes to an aligned output.
struct CopyStream {
  uint64_t bytes;
  void operator()(std::byte* to, const std::byte* from) const {
    uint64_t at = 0;
    for (; at + kLine <= bytes; at += kLine) {
      const auto load = [&](uint64_t i) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i));
      };
      const __m128i a = load(0), b = load(16), c = load(32), d = load(48);
      const auto store = [&](uint64_t i, __m128i v) {
        _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i), v);
      };
      store(0, a), store(16, b), store(32, c), store(48, d);
    }
    for (; at < bytes; at += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
  }
};
#endif

template <class Copy>
void gather_block(const RowTable& table, const int64_t* ids, size_t begin, size_t end, std::byte* out,
                  uint64_t out_stride, const Copy& copy) {
  const size_t ahead = std::clamp<uint64_t>(kAheadBytes / table.row_bytes, 2, 32);
  const auto row = [&](size_t i) { return table.data + static_cast<uint64_t>(ids[i]) * table.stride; };
  for (size_t i = begin; i < std::min(end, begin + ahead); ++i) prefetch(row(i), table.row_bytes);
  size_t i = begin;
  for (; i + ahead < end; ++i) {
    prefetch(row(i + ahead), table.row_bytes);
    copy(out + i * out_stride, row(i));
  }
  for (; i < end; ++i) copy(out + i * out_stride, row(i));
}

template <class Copy>
void gather_with(WorkerPool& workers, const RowTable& table, const int64_t* ids, size_t n, std::byte* out,
                 uint64_t out_stride, const Copy& copy) {
  workers.split(n, kGrainRows, [&](size_t begin, size_t end) {
    gather_block(table, ids, begin, end, out, out_stride, copy);
#if defined(__SSE2__)
    _mm_sfence();
#endif
  });
}

}  // namespace

void gather_rows(WorkerPool& workers, const RowTable& table, const int64_t* ids, size_t n, std::byte* out,
                 uint64_t out_stride) {
  if (table.stride < table.row_bytes || out_stride < table.row_bytes)
    throw Error(ErrorKind::argument, "rows of " + std::to_string(table.row_bytes) +
                                         " bytes overlap with strides of " + std::to_string(table.stride) +
                                         " and " + std::to_string(out_stride));
  check_ids(ids, n, table.num_rows);
  if (table.row_bytes == 0) return;
  const auto run = [&](const auto& copy) { gather_with(workers, table, ids, n, out, out_stride, copy); };
#if defined(__SSE2__)
  if (n * table.row_bytes >= kStreamBytes && table.row_bytes >= kLine && table.row_bytes % 16 == 0 &&
      out_stride % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 16 == 0)
    return run(CopyStream{table.row_bytes});
#endif
  switch (table.row_bytes) {
    case 1:
      return run(CopyFixed<1>{});
    case 2:
      return run(CopyFixed<2>{});
    case 4:
      return run(CopyFixed<4>{});
    case 8:
      return run(CopyFixed<8>{});
    case 16:
      return run(CopyFixed<16>{});
    case 32:
      return run(CopyFixed<32>{});
    case 64:
      return run(CopyFixed<64>{});
    case 128:
      return run(CopyFixed<128>{});
    case 200:
      return run(CopyFixed<200>{});
    case 256:
      return run(CopyFixed<256>{});
    case 400:
      return run(CopyFixed<400>{});
    case 512:
      return run(CopyFixed<512>{});
    case 1024:
      return run(CopyFixed<1024>{});
    default:
      return run(CopyAny{table.row_bytes});
  }
}

}  // namespace outcrop
