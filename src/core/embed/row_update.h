// Rows of an embedding table taken out, and one step of the optimizer for each row that a batch touched.
//
// A row of the table is its vector and then the optimizer's state: `width` floats of vector in `stride`
// floats of row. Gradients of a row that came several times are added in the order in which they came, so
// that the result depends neither on the number of threads nor on where the rows lie.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/parallel.h"

namespace outcrop {

enum class StepKind { sgd, adagrad, adam };

struct StepOptions {
  StepKind kind = StepKind::adagrad;
  float rate = 0.1f;
  float epsilon = 1e-10f;
  float beta1 = 0.9f, beta2 = 0.999f;  // adam
  uint64_t step = 1;                   // adam: of the whole training, from 1
};

// Floats of state that a row of `width` needs: adagrad one sum of squares each; adam a mean of each and one
// mean square for the row.
constexpr size_t state_width(StepKind kind, size_t width) {
  return kind == StepKind::sgd ? 0 : kind == StepKind::adagrad ? width : width + 1;
}

struct EmbeddingTable {
  float* data = nullptr;
  size_t rows = 0, stride = 0, width = 0;
};

// Vectors of rows 0 .. n - 1: uniform in [-bound, bound), keyed by (key, names[i]) alone; the state is 0.
void start_rows(const EmbeddingTable& table, const int64_t* names, size_t n, float bound, uint64_t key,
                WorkerPool& workers);

// out[i] = vector of row ids[i]; out: [n, width]. Throws Error(argument) for a row that is not there.
void take_rows(const EmbeddingTable& table, const int64_t* ids, size_t n, float* out, WorkerPool& workers);

// One step for each different row of ids [n], with the sum of its gradients [n, width]; the rows touched.
// Throws Error(argument) for a row that is not there, and for a table whose stride has no room for the state;
// nothing is changed then.
size_t step_rows(const EmbeddingTable& table, const int64_t* ids, const float* gradients, size_t n,
                 const StepOptions& options, WorkerPool& workers);

}  // namespace outcrop
