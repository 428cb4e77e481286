#include "embed/softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/simd.h"

namespace outcrop {
namespace {

constexpr size_t kGrain = 16;  // rows that a thread takes at least
// Sums that run beside each other: their number decides the result, not the machine.
constexpr size_t kLanes = 16;
// Compilers do not find the maximum of plain lanes.
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

// exp(x) for x <= 0 to two units in the last place, NaN for NaN, 0 below -87.
OUTCROP_INLINE float exp_of_negative(float x) {
  constexpr float kLeast = -87.0f, kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float y = x < kLeast ? kLeast : x;
  const float shifted = y * 1.44269504089f + kRound;
  const float n = shifted - kRound;
  const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;  // y - n log 2, in two parts
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto exponent = std::bit_cast<uint32_t>(shifted) << 23;  // n in its lowest bits; the rest falls out
  const float value = std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
  return x < kLeast ? 0.0f : value;
}

OUTCROP_INLINE float largest_of(const float* x, size_t k, float least) {
  Lanes lanes = Lanes{} + least, some;
  size_t j = 0;
  for (; j + kLanes <= k; j += kLanes) {
    std::memcpy(&some, x + j, sizeof some);
    lanes = lanes < some ? some : lanes;
  }
  for (size_t lane = 0; lane < kLanes; ++lane) least = least < lanes[lane] ? lanes[lane] : least;
  for (; j < k; ++j) least = least < x[j] ? x[j] : least;
  return least;
}

// x[j] = exp(x[j] - shift); their sum.
OUTCROP_INLINE float exponentials(float* x, size_t k, float shift) {
  float lanes[kLanes] = {};
  size_t j = 0;
  for (; j + kLanes <= k; j += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      x[j + lane] = exp_of_negative(x[j + lane] - shift);
      lanes[lane] += x[j + lane];
    }
  for (; j < k; ++j) {
    x[j] = exp_of_negative(x[j] - shift);
    lanes[0] += x[j];
  }
  return std::accumulate(lanes, lanes + kLanes, 0.0f);
}

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
