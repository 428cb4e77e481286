// Stable LSD radix sort of fixed-size records, one byte of the key at a time; bytes that are the same in all
// records are skipped. Work is split over a pool by index, so the result does not depend on the thread count.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/parallel.h"

namespace outcrop {

// A record tells its key as kKeyWords words, word 0 the least significant. What it holds besides is payload.
template <class R>
concept SortRecord = std::is_trivially_copyable_v<R> && requires(const R& r) {
  { R::kKeyWords } -> std::convertible_to<unsigned>;
  { r.word(0u) } -> std::same_as<uint64_t>;
};

template <SortRecord R>
bool key_less(const R& a, const R& b) {
  for (unsigned w = R::kKeyWords; w-- > 0;)
    if (a.word(w) != b.word(w)) return a.word(w) < b.word(w);
  return false;
}

namespace radix_detail {
using Histogram = std::array<size_t, 256>;
inline constexpr size_t kMinBlockRecords = 1 << 14;

inline void run_blocks(WorkerPool* pool, size_t blocks, const std::function<void(size_t)>& fn) {
  if (pool && blocks > 1) return pool->run(blocks, [&](size_t i, unsigned) { fn(i); });
  for (size_t i = 0; i < blocks; ++i) fn(i);
}
}  // namespace radix_detail

// Sorts `a`; `b` is scratch of the same size. Returns whichever of the two holds the result.
template <SortRecord R>
R* radix_sort(R* a, R* b, size_t n, WorkerPool* pool) {
  using radix_detail::Histogram;
  if (n < 2) return a;
  const size_t threads = pool ? pool->threads() : 1;
  const size_t blocks = n < 2 * radix_detail::kMinBlockRecords ? 1 : threads;
  const auto begin = [&](size_t i) { return n / blocks * i + std::min(i, n % blocks); };
  std::vector<std::array<uint64_t, R::kKeyWords>> differs(blocks);
  radix_detail::run_blocks(pool, blocks, [&](size_t i) {
    std::array<uint64_t, R::kKeyWords> mask{};
    for (size_t k = begin(i); k < begin(i + 1); ++k)
      for (unsigned w = 0; w < R::kKeyWords; ++w) mask[w] |= a[k].word(w) ^ a[0].word(w);
    differs[i] = mask;
  });
  std::vector<Histogram> counts(blocks);
  for (unsigned w = 0; w < R::kKeyWords; ++w)
    for (unsigned shift = 0; shift < 64; shift += 8) {
      bool constant = true;
      for (const auto& mask : differs) constant &= (mask[w] >> shift & 0xff) == 0;
      if (constant) continue;
      radix_detail::run_blocks(pool, blocks, [&](size_t i) {
        Histogram h{};
        for (size_t k = begin(i); k < begin(i + 1); ++k) ++h[a[k].word(w) >> shift & 0xff];
        counts[i] = h;
      });
      size_t at = 0;  // counts become the position of the first record of each (digit, block)
      for (unsigned digit = 0; digit < 256; ++digit)
        for (auto& h : counts) at += std::exchange(h[digit], at);
      radix_detail::run_blocks(pool, blocks, [&](size_t i) {
        Histogram h = counts[i];
        for (size_t k = begin(i); k < begin(i + 1); ++k) b[h[a[k].word(w) >> shift & 0xff]++] = a[k];
      });
      std::swap(a, b);
    }
  return a;
}

}  // namespace outcrop
