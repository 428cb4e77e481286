// Cross-entropy of edges against their negatives, loss and gradient in one pass over the scores: each row is
// read from memory once and its gradient written over it while it is in the cache.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/parallel.h"

namespace outcrop {

// Scores of negatives, row by row; -inf marks one that is left out.
struct NegativeScores {
  float* data = nullptr;
  size_t n = 0, k = 0;
};

// data[i][j] = -inf where candidates[j] == wanted[i]. candidates: [k], wanted: [n].
void leave_out(const NegativeScores& scores, const int64_t* candidates, const int64_t* wanted,
               WorkerPool& workers);

// The sum over rows of log(exp(positive[i]) + sum_j exp(scores[i][j])) - positive[i]. Writes the gradient by
// the scores over them and that by positive to to_positive [n]. NaN where a score is NaN or infinite.
double softmax(const NegativeScores& scores, const float* positive, float* to_positive, WorkerPool& workers);

// The same by one thread, of rows that begin `stride` floats after each other; the losses [n] of all rows apart.
void softmax_rows(const NegativeScores& scores, size_t stride, const float* positive, float* to_positive,
                  double* losses);

}  // namespace outcrop
