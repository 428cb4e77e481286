// Queries of edges for scores that are products, their own scores, and the gradients that come back through
// both: what torch does in two dozen passes over small matrices, in one (embed/scores.py has the formulas).
#pragma once
#include <cstddef>

#include "base/parallel.h"

namespace outcrop {

// dot: <s, t>; real: <s r, t>; complex: Re <s r, conj t>, vectors of width / 2 real and as many imaginary
// parts.
enum class ProductKind { dot, real, complex };

// Rows of `width` floats for each of n edges. relation: nullptr for dot. inverse: the relations for looking
// for sources, or nullptr: then it is the adjoint of `relation`.
struct EdgeVectors {
  const float *source = nullptr, *target = nullptr, *relation = nullptr, *inverse = nullptr;
  size_t n = 0, width = 0;
};

// queries [2n, width]: looking for the targets, then for the sources; scores [2n] of the edges themselves.
void make_queries(ProductKind kind, const EdgeVectors& edges, float* queries, float* scores,
                  WorkerPool& workers);

// Rows like those of EdgeVectors, which are filled.
struct EdgeGradients {
  float *source = nullptr, *target = nullptr, *relation = nullptr, *inverse = nullptr;
};

// Of a loss with gradients to_queries [2n, width] and to_scores [2n].
void query_gradients(ProductKind kind, const EdgeVectors& edges, const float* to_queries,
                     const float* to_scores, const EdgeGradients& out, WorkerPool& workers);

// What the sizes of vectors add to a loss: cubes * sum |x|^3 + squares * sum x^2.
struct SizeWeights {
  float cubes = 0, squares = 0;
};

// out [n, width] += the gradient of that. complex: |x| are those of complex numbers, width / 2 real and as many
// imaginary parts.
void add_size_gradients(const float* x, size_t n, size_t width, bool complex, const SizeWeights& weights,
                        float* out, WorkerPool& workers);

}  // namespace outcrop
