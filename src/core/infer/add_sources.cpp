#include "infer/add_sources.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/exponentials.h"
#include "base/simd.h"

namespace outcrop {
namespace {

constexpr size_t kGrain = 256;     // targets that a thread takes at a time
constexpr size_t kLanes = 16;      // floats of a vector
constexpr size_t kVectors = 4;     // that are summed up at a time
constexpr size_t kAhead = 24;      // edges whose rows are fetched before they are added
constexpr size_t kAheadLines = 4;  // of a row; what follows them the processor fetches by itself
constexpr size_t kLine = 64;
constexpr size_t kChunk =
    512;  // edges of a target whose scores are there at a time: their number decides the result

using Vector = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(alignof(float)), may_alias));

// Rows of a table, each of which may be read in whole vectors: the last ones are copied to where that leads nowhere.
class PaddedRows {
 public:
  explicit PaddedRows(const SourceTable& table) : data_(table.data), stride_(table.stride) {
    const size_t behind = std::min(table.rows, (kLanes - 1 + table.width - 1) / stride_);
    inside_ = table.rows - behind;
    last_.resize(behind * stride_ + kLanes);
    std::copy(data_ + inside_ * stride_, data_ + table.rows * stride_, last_.begin());
  }
  const float* row(int32_t source) const {
    const auto at = static_cast<size_t>(source);
    return at < inside_ ? data_ + at * stride_ : last_.data() + (at - inside_) * stride_;
  }
  void fetch(int32_t source) const {
    const auto* at = reinterpret_cast<const char*>(data_ + static_cast<size_t>(source) * stride_);
    const size_t bytes = stride_ * sizeof(float);
    for (size_t line = 0; line < std::min(bytes, kAheadLines * kLine); line += kLine)
      __builtin_prefetch(at + line);
    __builtin_prefetch(at + std::min(bytes, kAheadLines * kLine) - 1);
  }
  void fetch_with_scores(int32_t source) const {
    fetch(source);
    __builtin_prefetch(data_ + (static_cast<size_t>(source) + 1) * stride_ - 1);
  }

 private:
  const float* data_;
  size_t stride_, inside_ = 0;
  std::vector<float> last_;
};

// out[0 .. width) += sum over edges of weight[i] * row(col[i])[column .. column + width), width at most V vectors and
// more than V - 1. Weighted: by `weights`; else by ones, leaving out `but`.
template <size_t V, bool Weighted>
OUTCROP_INLINE void add_columns(const PaddedRows& rows, size_t column, size_t width, const int32_t* col,
                                size_t n, const float* weights, int32_t but, size_t ahead, float* out) {
  float room[V * kLanes];
  for (size_t i = 0; i < V * kLanes; ++i) room[i] = i < width ? out[i] : 0.0f;
  Vector sums[V];
  for (size_t v = 0; v < V; ++v) std::memcpy(&sums[v], room + v * kLanes, sizeof(Vector));
  for (size_t i = 0; i < n; ++i) {
    if (i < ahead) rows.fetch(col[i + kAhead]);
    if (!Weighted && col[i] == but) continue;
    const float* row = rows.row(col[i]) + column;
    for (size_t v = 0; v < V; ++v) {
      const Vector some = *reinterpret_cast<const Vector*>(row + v * kLanes);
      sums[v] += Weighted ? some * weights[i] : some;
    }
  }
  for (size_t v = 0; v < V; ++v) std::memcpy(room + v * kLanes, &sums[v], sizeof(Vector));
  for (size_t i = 0; i < V * kLanes; ++i)
    if (i < width) out[i] = room[i];
}

// The same of any number of columns, `begin .. end` of the table. `ahead`: of so many edges the one kAhead behind it is
// there.
template <bool Weighted>
OUTCROP_INLINE void add_all(const PaddedRows& rows, size_t begin, size_t end, const int32_t* col, size_t n,
                            const float* weights, int32_t but, size_t ahead, float* out) {
  for (size_t at = begin; at < end; at += kVectors * kLanes) {
    const size_t width = std::min(end - at, kVectors * kLanes);
    float* const to = out + (at - begin);
    const size_t fetched = at == begin ? ahead : 0;  // whole rows are fetched
    switch ((width + kLanes - 1) / kLanes) {
      case 1:
        add_columns<1, Weighted>(rows, at, width, col, n, weights, but, fetched, to);
        break;
      case 2:
        add_columns<2, Weighted>(rows, at, width, col, n, weights, but, fetched, to);
        break;
      case 3:
        add_columns<3, Weighted>(rows, at, width, col, n, weights, but, fetched, to);
        break;
      default:
        add_columns<4, Weighted>(rows, at, width, col, n, weights, but, fetched, to);
    }
  }
}

OUTCROP_EVERY_ISA
void sums_of(const PaddedRows& rows, size_t width, const TargetLists& lists, size_t begin, size_t end,
             float* sums) {
  const auto edges = static_cast<size_t>(lists.rowptr[lists.targets]);
  for (size_t t = begin; t < end; ++t) {
    const auto from = static_cast<size_t>(lists.rowptr[t]), to = static_cast<size_t>(lists.rowptr[t + 1]);
    const int32_t but = lists.without_loops ? lists.first + static_cast<int32_t>(t) : -1;
    const size_t ahead = edges > from + kAhead ? edges - from - kAhead : 0;
    add_all<false>(rows, 0, width, lists.col + from, to - from, nullptr, but, ahead, sums + t * width);
  }
}

OUTCROP_EVERY_ISA
void softmaxes_of(const PaddedRows& rows, const SourceTable& table, const TargetLists& lists,
                  const HeadScores& scores, const SoftmaxTotals& totals, size_t begin, size_t end) {
  const size_t each = table.width / scores.heads;
  const auto edges = static_cast<size_t>(lists.rowptr[lists.targets]);
  int32_t sources[kChunk];
  float weights[kChunk];
  for (size_t t = begin; t < end; ++t) {
    const int32_t but = lists.without_loops ? lists.first + static_cast<int32_t>(t) : -1;
    auto at = static_cast<size_t>(lists.rowptr[t]);
    const auto stop = static_cast<size_t>(lists.rowptr[t + 1]);
    while (at < stop) {
      size_t n = 0;
      // Loops count here, too: a list in pieces of whole chunks has the chunks of the whole list.
      for (const size_t until = std::min(stop, at + kChunk); at < until; ++at) {
        if (at + kAhead < edges) rows.fetch_with_scores(lists.col[at + kAhead]);
        sources[n] = lists.col[at];
        n += lists.col[at] != but;
      }
      for (size_t h = 0; h < scores.heads; ++h) {
        const float target = scores.target[h * lists.targets + t];
        for (size_t i = 0; i < n; ++i) {
          weights[i] = scores.of_edge(rows.row(sources[i])[table.width + h], target);
        }
        // Whole vectors: what is behind the last edge counts for nothing.
        const size_t whole = (n + kSumLanes - 1) / kSumLanes * kSumLanes;
        std::fill(weights + n, weights + whole, -std::numeric_limits<float>::infinity());
        float& largest = totals.largest[t * scores.heads + h];
        float& mass = totals.mass[t * scores.heads + h];
        float* total = totals.total + t * table.width + h * each;
        const float before = largest;
        largest = largest_of(weights, whole, before);
        const float added = exponentials(weights, whole, largest);
        if (largest != before) {
          const float shrink = exp_of_negative(before - largest);
          mass *= shrink;
          for (size_t i = 0; i < each; ++i) total[i] *= shrink;
        }
        mass += added;
        add_all<true>(rows, h * each, (h + 1) * each, sources, n, weights, -1, 0, total);
      }
    }
  }
}

template <class Body>
void by_targets(size_t targets, WorkerPool& workers, const Body& body) {
  workers.run((targets + kGrain - 1) / kGrain,
              [&](size_t block, unsigned) { body(block * kGrain, std::min(targets, (block + 1) * kGrain)); });
}

}  // namespace

void add_sources(const SourceTable& table, const TargetLists& lists, float* sums, WorkerPool& workers) {
  if (table.width == 0 || table.rows == 0) return;
  const PaddedRows rows(table);
  by_targets(lists.targets, workers,
             [&](size_t begin, size_t end) { sums_of(rows, table.width, lists, begin, end, sums); });
}

void begin_softmax(const SourceTable& table, size_t first, size_t targets, const HeadScores& scores,
                   const SoftmaxTotals& totals, WorkerPool& workers) {
  by_targets(targets, workers, [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      const float* row = table.data + (first + t) * table.stride;
      for (size_t h = 0; h < scores.heads; ++h) {
        totals.largest[t * scores.heads + h] =
            scores.of_edge(row[table.width + h], scores.target[h * targets + t]);
        totals.mass[t * scores.heads + h] = 1;
      }
      std::copy(row, row + table.width, totals.total + t * table.width);
    }
  });
}

void add_sources_by_softmax(const SourceTable& table, const TargetLists& lists, const HeadScores& scores,
                            const SoftmaxTotals& totals, WorkerPool& workers) {
  if (table.rows == 0 || scores.heads == 0) return;
  const PaddedRows rows(table);
  by_targets(lists.targets, workers,
             [&](size_t begin, size_t end) { softmaxes_of(rows, table, lists, scores, totals, begin, end); });
}

}  // namespace outcrop
