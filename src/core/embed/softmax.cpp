#include "embed/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/exponentials.h"
#include "base/simd.h"

namespace outcrop {
namespace {

constexpr size_t kGrain = 16;  // rows that a thread takes at least

OUTCROP_EVERY_ISA
void rows_of(float* scores, size_t n, size_t k, size_t stride, const float* positive, float* to_positive,
             double* losses) {
  for (size_t i = 0; i < n; ++i) {
    float* row = scores + i * stride;
    const float mine = positive[i];
    const float largest = largest_of(row, k, mine);
    const float others = exponentials(row, k, largest), own = std::exp(mine - largest), total = others + own;
    losses[i] = std::log(double{total}) + (double{largest} - double{mine});
    const float scale = 1.0f / total;
    for (size_t j = 0; j < k; ++j) row[j] *= scale;
    to_positive[i] = -(others * scale);
  }
}

}  // namespace

void leave_out(const NegativeScores& scores, const int64_t* candidates, const int64_t* wanted,
               WorkerPool& workers) {
  std::vector<uint32_t> order(scores.k);
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return candidates[a] < candidates[b]; });
  std::vector<int64_t> sorted(scores.k);
  for (size_t j = 0; j < scores.k; ++j) sorted[j] = candidates[order[j]];
  workers.split(scores.n, 512, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      auto at = std::lower_bound(sorted.begin(), sorted.end(), wanted[i]);
      for (; at != sorted.end() && *at == wanted[i]; ++at)
        scores.data[i * scores.k + order[static_cast<size_t>(at - sorted.begin())]] =
            -std::numeric_limits<float>::infinity();
    }
  });
}

double softmax(const NegativeScores& scores, const float* positive, float* to_positive, WorkerPool& workers) {
  std::vector<double> losses(scores.n);
  workers.split(scores.n, kGrain, [&](size_t begin, size_t end) {
    rows_of(scores.data + begin * scores.k, end - begin, scores.k, scores.k, positive + begin,
            to_positive + begin, losses.data() + begin);
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

void softmax_rows(const NegativeScores& scores, size_t stride, const float* positive, float* to_positive,
                  double* losses) {
  rows_of(scores.data, scores.n, scores.k, stride, positive, to_positive, losses);
}

}  // namespace outcrop
