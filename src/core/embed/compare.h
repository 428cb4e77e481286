// Scores of queries against the candidates of their chunk, the cross-entropy of each edge among itself and those, and
// all gradients, in one pass: scores stay in the cache of the core that made them.
//
// A task takes up to kBlock queries of one chunk and goes over them kTile at a time: scores = Q C^T, their softmax,
// gradients of queries = G C, gradients of candidates += G^T Q. The last is a sum over tasks: each adds what it has when
// those before it in its chunk have, so that the result does not depend on the number of threads. Every element of a
// product is a sum in the order of its terms: tiles of registers of any shape give the same bits.
#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/parallel.h"

namespace outcrop {

struct CompareShape {
  size_t edges = 0;       // of a batch, at most; each has two queries
  size_t chunk = 1;       // edges that share candidates; not 0
  size_t candidates = 0;  // of a chunk, at most
  size_t width = 0;       // floats of a vector
};

// Queries [2 n, width]: those of edge i are rows i and n + i. Candidates of chunk j, which has the edges from
// j * chunk on, are rows [j k, (j + 1) k) of `candidates`.
struct CompareBatch {
  size_t n = 0, k = 0;
  const float *queries = nullptr, *positive = nullptr, *candidates = nullptr;
  const int64_t *ids = nullptr, *wanted = nullptr;  // of candidates; of what each query looks for
  float *to_queries = nullptr, *to_positive = nullptr, *to_candidates = nullptr;
};

class SoftmaxCompare {
 public:
  // `slots`: how many tasks run at a time, at most.
  SoftmaxCompare(const CompareShape& shape, size_t slots, WorkerPool& workers);

  // Bytes that it holds.
  static size_t bytes(const CompareShape& shape, size_t slots);

  // The sum over queries of log(exp(positive) + sum over candidates of exp(score)) - positive, where a candidate that
  // the query looks for counts for nothing. Writes the gradients by queries and positive, adds those by candidates.
  // NaN where a score is NaN or infinite. Throws Error(argument) for a batch that exceeds the shape.
  double run(const CompareBatch& batch);
  const CompareShape& shape() const { return shape_; }

 private:
  struct Scratch;
  void pack(const CompareBatch& batch, size_t chunk);
  void block(const CompareBatch& batch, size_t chunk, size_t part, size_t slot);

  CompareShape shape_;
  size_t slots_;
  WorkerPool& workers_;
  std::vector<float> scratch_;  // of every slot: scores, queries, gradients of both
  std::vector<float> packed_;   // of every chunk: candidates, and candidates transposed
  std::vector<std::pair<int64_t, uint32_t>>
      sorted_;                  // of every chunk: ids and numbers of candidates, ascending
  std::vector<double> losses_;  // of every query
  std::vector<size_t> turns_;   // of every chunk: tasks that have added their gradients
  std::mutex mutex_;
  std::condition_variable added_;
};

}  // namespace outcrop
