#include "infer/add_sources.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/exponentials.h"
#include "base/simd.h"

namespace outcrop {
namespace {

constexpr size_t kGrain = 256;       // targets that a thread takes at a time
constexpr size_t kMostColumns = 64;  // that are summed up at a time, four vectors of 16
constexpr size_t kAhead = 40;        // edges whose rows are fetched before they are added
constexpr size_t kAheadLines = 4;    // of a row; what follows them the processor fetches by itself
constexpr size_t kLine = 64;
constexpr size_t kChunk =
    512;  // edges of a target whose scores are there at a time: their number decides the result

template <size_t L>
struct Lanes {
  // GCC forgets the attributes of `using` with a parameter.
  typedef float Vector __attribute__((vector_size(L * sizeof(float)), aligned(alignof(float)), may_alias));
  static_assert(sizeof(Vector) == L * sizeof(float) && alignof(Vector) == alignof(float));
};

OUTCROP_INLINE const float* row_of(const SourceTable& table, int32_t source) {
  return table.data + static_cast<size_t>(source) * table.stride;
}

// Into the second cache, which waits for more lines at a time than the first.
OUTCROP_INLINE void fetch(const void* at) { __builtin_prefetch(at, 0, 2); }

OUTCROP_INLINE void fetch_row(const SourceTable& table, int32_t source) {
  const auto* at = reinterpret_cast<const char*>(row_of(table, source));
  const size_t bytes = std::min(table.stride * sizeof(float), kAheadLines * kLine);
  for (size_t line = 0; line < bytes; line += kLine) fetch(at + line);
  fetch(at + bytes - 1);
  if (table.stride != table.width) fetch(at + table.stride * sizeof(float) - 1);  // scores
}

// Edges of a target, in order: their sources, and what their rows are multiplied with, if anything; the sources whose
// rows are fetched meanwhile, one for each of the first edges.
struct Edges {
  const int32_t* col = nullptr;
  size_t n = 0;
  const float* weights = nullptr;
  int32_t but = -1;  // a source that is left out, where there are no weights
  const int32_t* next = nullptr;
  size_t fetched = 0;
};

// out[0 .. width) += sum over edges of weight * row[column .. column + width), width at most V vectors of L and more
// than V - 1, at least L. The last vector ends where the columns end, and has again what the one before it has: no byte
// is touched that is not of the row, which would be one more line of the cache to wait for.
template <size_t L, size_t V, bool Weighted>
OUTCROP_INLINE void add_columns(const SourceTable& table, size_t column, size_t width, const Edges& edges,
                                float* out) {
  using Vector = typename Lanes<L>::Vector;
  const auto begin = [&](size_t v) { return v + 1 < V ? v * L : width - L; };
  Vector sums[V];
  for (size_t v = 0; v < V; ++v) std::memcpy(&sums[v], out + begin(v), sizeof(Vector));
  for (size_t i = 0; i < edges.n; ++i) {
    if (i < edges.fetched) fetch_row(table, edges.next[i]);
    if (!Weighted && edges.col[i] == edges.but) continue;
    const float* row = row_of(table, edges.col[i]) + column;
    for (size_t v = 0; v < V; ++v) {
      const Vector some = *reinterpret_cast<const Vector*>(row + begin(v));
      sums[v] += Weighted ? some * edges.weights[i] : some;
    }
  }
  for (size_t v = 0; v < V; ++v) std::memcpy(out + begin(v), &sums[v], sizeof(Vector));
}

template <size_t L, bool Weighted>
OUTCROP_INLINE void add_vectors(const SourceTable& table, size_t column, size_t width, const Edges& edges,
                                float* out) {
  switch ((width + L - 1) / L) {
    case 1:
      return add_columns<L, 1, Weighted>(table, column, width, edges, out);
    case 2:
      return add_columns<L, 2, Weighted>(table, column, width, edges, out);
    case 3:
      return add_columns<L, 3, Weighted>(table, column, width, edges, out);
    default:
      return add_columns<L, 4, Weighted>(table, column, width, edges, out);
  }
}

// The same of any number of columns, `begin .. end` of the table.
template <bool Weighted>
OUTCROP_INLINE void add_all(const SourceTable& table, size_t begin, size_t end, Edges edges, float* out) {
  for (size_t at = begin; at < end; at += kMostColumns) {
    const size_t width = std::min(end - at, kMostColumns);
    float* const to = out + (at - begin);
    if (width >= 16)
      add_vectors<16, Weighted>(table, at, width, edges, to);
    else if (width >= 8)
      add_vectors<8, Weighted>(table, at, width, edges, to);
    else if (width >= 4)
      add_vectors<4, Weighted>(table, at, width, edges, to);
    else
      add_vectors<1, Weighted>(table, at, width, edges, to);
    edges.fetched = 0;  // whole rows are fetched
  }
}

// The list of edges has `all`; those that follow the one at `from` by kAhead are there for so many of them.
size_t ahead_of(size_t from, size_t all) { return all > from + kAhead ? all - from - kAhead : 0; }

OUTCROP_EVERY_ISA
void sums_of(const SourceTable& table, const TargetLists& lists, size_t begin, size_t end, float* sums) {
  const auto all = static_cast<size_t>(lists.rowptr[lists.targets]);
  for (size_t t = begin; t < end; ++t) {
    const auto from = static_cast<size_t>(lists.rowptr[t]), to = static_cast<size_t>(lists.rowptr[t + 1]);
    const int32_t* col = lists.col + from;
    const int32_t but = lists.without_loops ? lists.first + static_cast<int32_t>(t) : -1;
    const Edges edges{col, to - from, nullptr, but, col + kAhead, ahead_of(from, all)};
    add_all<false>(table, 0, table.width, edges, sums + t * table.width);
  }
}

OUTCROP_EVERY_ISA
void softmaxes_of(const SourceTable& table, const TargetLists& lists, const HeadScores& scores,
                  const SoftmaxTotals& totals, size_t begin, size_t end) {
  const size_t each = table.width / scores.heads;
  const auto all = static_cast<size_t>(lists.rowptr[lists.targets]);
  int32_t sources[kChunk];
  float weights[kChunk];
  for (size_t t = begin; t < end; ++t) {
    const int32_t but = lists.without_loops ? lists.first + static_cast<int32_t>(t) : -1;
    auto at = static_cast<size_t>(lists.rowptr[t]);
    const auto stop = static_cast<size_t>(lists.rowptr[t + 1]);
    while (at < stop) {
      size_t n = 0;
      const size_t from = at;
      // Loops count here, too: a list in pieces of whole chunks has the chunks of the whole list.
      for (const size_t until = std::min(stop, at + kChunk); at < until; ++at) {
        sources[n] = lists.col[at];
        n += lists.col[at] != but;
      }
      for (size_t h = 0; h < scores.heads; ++h) {
        const float target = scores.target[h * lists.targets + t];
        for (size_t i = 0; i < n; ++i) {
          weights[i] = scores.of_edge(row_of(table, sources[i])[table.width + h], target);
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
        const Edges edges{
            sources, n, weights, -1, lists.col + from + kAhead, h == 0 ? ahead_of(from, all) : 0};
        add_all<true>(table, h * each, (h + 1) * each, edges, total);
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
  by_targets(lists.targets, workers,
             [&](size_t begin, size_t end) { sums_of(table, lists, begin, end, sums); });
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
  by_targets(lists.targets, workers,
             [&](size_t begin, size_t end) { softmaxes_of(table, lists, scores, totals, begin, end); });
}

}  // namespace outcrop
