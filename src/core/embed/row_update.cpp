#include "embed/row_update.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/simd.h"
#include "graph/radix_sort.h"

namespace outcrop {
namespace {

constexpr size_t kGrain = 256;  // rows that a thread takes at least

constexpr size_t kAhead = 8;  // rows whose memory is asked for before it is needed

OUTCROP_INLINE void prefetch(const float* row, size_t floats) {
  constexpr size_t kLineFloats = 16;
  for (size_t k = 0; k < floats; k += kLineFloats) __builtin_prefetch(row + k, 1);
}

struct Touch {
  static constexpr unsigned kKeyWords = 1;
  uint64_t row, position;
  uint64_t word(unsigned) const { return row; }
};

void check(const EmbeddingTable& table, const int64_t* ids, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (static_cast<uint64_t>(ids[i]) >= table.rows)
      throw Error(ErrorKind::argument, "row " + std::to_string(ids[i]) + " was asked for of a table of " +
                                           std::to_string(table.rows));
}

OUTCROP_INLINE void sgd(float* row, const float* g, size_t width, const StepOptions& o) {
  for (size_t k = 0; k < width; ++k) row[k] -= o.rate * g[k];
}

OUTCROP_INLINE void adagrad(float* row, const float* g, size_t width, const StepOptions& o) {
  float* sum = row + width;
  for (size_t k = 0; k < width; ++k) {
    sum[k] += g[k] * g[k];
    row[k] -= o.rate * g[k] / (std::sqrt(sum[k]) + o.epsilon);
  }
}

OUTCROP_INLINE void adam(float* row, const float* g, size_t width, const StepOptions& o) {
  float* mean = row + width;
  float& square = row[2 * width];
  double squares = 0;
  for (size_t k = 0; k < width; ++k) squares += double{g[k]} * g[k];
  square = o.beta2 * square + (1 - o.beta2) * static_cast<float>(squares / static_cast<double>(width));
  const double step = static_cast<double>(o.step);
  const float first = static_cast<float>(1 - std::pow(double{o.beta1}, step));
  const float second = static_cast<float>(1 - std::pow(double{o.beta2}, step));
  const float rate = o.rate / first / (std::sqrt(square / second) + o.epsilon);
  for (size_t k = 0; k < width; ++k) {
    mean[k] = o.beta1 * mean[k] + (1 - o.beta1) * g[k];
    row[k] -= rate * mean[k];
  }
}

// Touches of one row follow each other; starts: where each row's begin, and the end.
struct Touched {
  const Touch* touches;
  const size_t* starts;
};

template <void (*kStep)(float*, const float*, size_t, const StepOptions&)>
OUTCROP_INLINE void step_range(const EmbeddingTable& table, const Touched& touched, const float* gradients,
                               const StepOptions& options, float* sum, size_t begin, size_t end) {
  const size_t width = table.width;
  for (size_t r = begin; r < end; ++r) {
    const Touch *first = touched.touches + touched.starts[r], *last = touched.touches + touched.starts[r + 1];
    const float* g = gradients + first->position * width;
    if (r + kAhead < end)
      prefetch(table.data + touched.touches[touched.starts[r + kAhead]].row * table.stride, table.stride);
    if (last - first > 1) {
      std::copy_n(g, width, sum);
      for (const Touch* t = first + 1; t < last; ++t) {
        const float* more = gradients + t->position * width;
        for (size_t k = 0; k < width; ++k) sum[k] += more[k];
      }
      g = sum;
    }
    kStep(table.data + first->row * table.stride, g, width, options);
  }
}

OUTCROP_EVERY_ISA
void step_range(const EmbeddingTable& table, const Touched& touched, const float* gradients,
                const StepOptions& options, float* sum, size_t begin, size_t end) {
  switch (options.kind) {
    case StepKind::sgd:
      return step_range<sgd>(table, touched, gradients, options, sum, begin, end);
    case StepKind::adagrad:
      return step_range<adagrad>(table, touched, gradients, options, sum, begin, end);
    case StepKind::adam:
      return step_range<adam>(table, touched, gradients, options, sum, begin, end);
  }
}

}  // namespace

void start_rows(const EmbeddingTable& table, const int64_t* names, size_t n, float bound, uint64_t key,
                WorkerPool& workers) {
  if (n > table.rows) throw Error(ErrorKind::argument, "more rows were named than the table has");
  workers.split(n, kGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float* row = table.data + i * table.stride;
      RandomStream random(key, static_cast<uint64_t>(names[i]));
      for (size_t k = 0; k < table.width; ++k)
        row[k] = (static_cast<float>(random.next32() >> 8) * 0x1.0p-23f - 1.0f) * bound;
      std::fill(row + table.width, row + table.stride, 0.0f);
    }
  });
}

void take_rows(const EmbeddingTable& table, const int64_t* ids, size_t n, float* out, WorkerPool& workers) {
  check(table, ids, n);
  workers.split(n, kGrain, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end)
        prefetch(table.data + static_cast<size_t>(ids[i + kAhead]) * table.stride, table.width);
      std::copy_n(table.data + static_cast<size_t>(ids[i]) * table.stride, table.width,
                  out + i * table.width);
    }
  });
}

size_t step_rows(const EmbeddingTable& table, const int64_t* ids, const float* gradients, size_t n,
                 const StepOptions& options, WorkerPool& workers) {
  check(table, ids, n);
  if (table.stride < table.width + state_width(options.kind, table.width))
    throw Error(ErrorKind::argument, "rows of " + std::to_string(table.stride) + " floats have no room for " +
                                         std::to_string(table.width) + " and the optimizer's state");
  std::vector<Touch> touches(n), scratch(n);
  for (size_t i = 0; i < n; ++i) touches[i] = {static_cast<uint64_t>(ids[i]), i};
  const Touch* sorted = radix_sort(touches.data(), scratch.data(), n, &workers);
  std::vector<size_t> starts;  // of the touches of each row
  for (size_t i = 0; i < n; ++i)
    if (i == 0 || sorted[i].row != sorted[i - 1].row) starts.push_back(i);
  const size_t rows = starts.size();
  starts.push_back(n);

  workers.split(rows, kGrain, [&](size_t begin, size_t end) {
    std::vector<float> sum(table.width);
    step_range(table, {sorted, starts.data()}, gradients, options, sum.data(), begin, end);
  });
  return rows;
}

}  // namespace outcrop
