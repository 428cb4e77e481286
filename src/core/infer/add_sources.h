// What a layer adds up for its targets, some columns of all sources at a time: sums of rows, and means of rows weighted
// by the softmax of scores. A target's sources are added one after the other in the order of its list: results depend
// neither on which columns a table has nor on the number of threads.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/parallel.h"

namespace outcrop {

// Columns of what all sources give, row by row; behind the columns of a row there may be scores.
struct SourceTable {
  const float* data = nullptr;
  size_t rows = 0, width = 0;  // columns
  size_t stride = 0;           // floats of a row
};

// The lists of consecutive targets, the first of which is node `first`; sources are rows of a table.
struct TargetLists {
  const int32_t *rowptr = nullptr, *col = nullptr;  // CSR, from 0 on
  size_t targets = 0;
  int32_t first = 0;
  bool without_loops = false;  // edges from a node to itself count for nothing
};

// sums[t] += sum of the rows of the sources of target t. sums: [targets, width].
void add_sources(const SourceTable& table, const TargetLists& lists, float* sums, WorkerPool& workers);

// Scores of targets, [heads, targets]; those of sources lie behind the columns of their rows, one for each head. That of
// an edge is the leaky ReLU of their sum.
struct HeadScores {
  const float* target = nullptr;
  size_t heads = 0;
  float slope = 0;  // below zero

  float of_edge(float of_source, float of_target) const {
    const float sum = of_source + of_target;
    return sum > 0 ? sum : sum * slope;
  }
};

// Of each target: the largest score so far and the sum of exp(score - largest), [targets, heads] each, and the sum of
// exp(score - largest) * row, [targets, width].
struct SoftmaxTotals {
  float *largest = nullptr, *mass = nullptr, *total = nullptr;
};

// Begins the totals of targets from node `first` on with the edge of each from itself.
void begin_softmax(const SourceTable& table, size_t first, size_t targets, const HeadScores& scores,
                   const SoftmaxTotals& totals, WorkerPool& workers);

// Adds the sources of each target to its totals. The columns of the table are those of its heads, equally many each.
void add_sources_by_softmax(const SourceTable& table, const TargetLists& lists, const HeadScores& scores,
                            const SoftmaxTotals& totals, WorkerPool& workers);

}  // namespace outcrop
