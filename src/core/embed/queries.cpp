#include "embed/queries.h"

#include <cmath>
#include <vector>

#include "base/simd.h"

namespace outcrop {
namespace {

constexpr size_t kGrain = 32;  // edges that a thread takes at least

// Products of vectors by kind: out = a b, or with the adjoint of one of them.
struct Real {
  explicit Real(size_t width) : width_(width) {}
  OUTCROP_INLINE void product(const float* a, const float* b, float* out) const {
    for (size_t k = 0; k < width_; ++k) out[k] = a[k] * b[k];
  }
  OUTCROP_INLINE void adjoint_product(const float* a, const float* b, float* out) const {
    product(a, b, out);
  }
  OUTCROP_INLINE void add_product(const float* a, const float* b, float* out) const {
    for (size_t k = 0; k < width_; ++k) out[k] += a[k] * b[k];
  }
  OUTCROP_INLINE void add_adjoint_product(const float* a, const float* b, float* out) const {
    add_product(a, b, out);
  }
  const size_t width_;
};

struct Complex {
  explicit Complex(size_t width) : half_(width / 2) {}
  OUTCROP_INLINE void product(const float* a, const float* b, float* out) const {
    const float *ai = a + half_, *bi = b + half_;
    for (size_t k = 0; k < half_; ++k) {
      out[k] = a[k] * b[k] - ai[k] * bi[k];
      out[half_ + k] = a[k] * bi[k] + ai[k] * b[k];
    }
  }
  // conj(a) b
  OUTCROP_INLINE void adjoint_product(const float* a, const float* b, float* out) const {
    const float *ai = a + half_, *bi = b + half_;
    for (size_t k = 0; k < half_; ++k) {
      out[k] = a[k] * b[k] + ai[k] * bi[k];
      out[half_ + k] = a[k] * bi[k] - ai[k] * b[k];
    }
  }
  OUTCROP_INLINE void add_product(const float* a, const float* b, float* out) const {
    const float *ai = a + half_, *bi = b + half_;
    for (size_t k = 0; k < half_; ++k) {
      out[k] += a[k] * b[k] - ai[k] * bi[k];
      out[half_ + k] += a[k] * bi[k] + ai[k] * b[k];
    }
  }
  OUTCROP_INLINE void add_adjoint_product(const float* a, const float* b, float* out) const {
    const float *ai = a + half_, *bi = b + half_;
    for (size_t k = 0; k < half_; ++k) {
      out[k] += a[k] * b[k] + ai[k] * bi[k];
      out[half_ + k] += a[k] * bi[k] - ai[k] * b[k];
    }
  }
  const size_t half_;
};

OUTCROP_INLINE float dot(const float* a, const float* b, size_t width) {
  constexpr size_t kLanes = 8;
  float lanes[kLanes] = {};
  size_t k = 0;
  for (; k + kLanes <= width; k += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[k + lane] * b[k + lane];
  float sum = 0;
  for (; k < width; ++k) sum += a[k] * b[k];
  for (const float lane : lanes) sum += lane;
  return sum;
}

// out = a + scale * b
OUTCROP_INLINE void add_scaled(const float* a, float scale, const float* b, float* out, size_t width) {
  for (size_t k = 0; k < width; ++k) out[k] = a[k] + scale * b[k];
}

// out = scale * b
OUTCROP_INLINE void scaled(float scale, const float* b, float* out, size_t width) {
  for (size_t k = 0; k < width; ++k) out[k] = scale * b[k];
}

// Those of edges begin .. end, as are the others here.
template <class Kind>
OUTCROP_INLINE void queries_of(const Kind& kind, const EdgeVectors& e, float* queries, float* scores,
                               size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const size_t at = i * e.width;
    float *q = queries + at, *p = queries + e.n * e.width + at;
    kind.product(e.source + at, e.relation + at, q);
    if (e.inverse) {
      kind.product(e.target + at, e.inverse + at, p);
    } else {
      kind.adjoint_product(e.relation + at, e.target + at, p);
    }
    scores[i] = dot(q, e.target + at, e.width);
    scores[e.n + i] = dot(p, e.source + at, e.width);
  }
}

// With G the gradient of y, written as a complex number: y = a b gives b the gradient conj(a) G, and
// y = a conj(b) gives b a conj(G) = conj(conj(a) G).
template <class Kind>
OUTCROP_INLINE void gradients_of(const Kind& kind, const EdgeVectors& e, const float* to_queries,
                                 const float* to_scores, const EdgeGradients& out, size_t begin, size_t end) {
  std::vector<float> query(e.width), whole(e.width);
  for (size_t i = begin; i < end; ++i) {
    const size_t at = i * e.width, other = e.n * e.width + at;
    const float *s = e.source + at, *t = e.target + at, *r = e.relation + at;
    // Looking for the target: q = s r, score <q, t>.
    add_scaled(to_queries + at, to_scores[i], t, whole.data(), e.width);
    kind.product(s, r, query.data());
    scaled(to_scores[i], query.data(), out.target + at, e.width);
    kind.adjoint_product(r, whole.data(), out.source + at);
    kind.adjoint_product(s, whole.data(), out.relation + at);
    // Looking for the source: p = t r' or conj(r) t, score <p, s>.
    const float scale = to_scores[e.n + i];
    add_scaled(to_queries + other, scale, s, whole.data(), e.width);
    if (e.inverse) {
      const float* v = e.inverse + at;
      kind.product(t, v, query.data());
      kind.add_adjoint_product(v, whole.data(), out.target + at);
      kind.adjoint_product(t, whole.data(), out.inverse + at);
    } else {
      kind.adjoint_product(r, t, query.data());
      kind.add_product(r, whole.data(), out.target + at);
      kind.add_adjoint_product(whole.data(), t, out.relation + at);
    }
    add_scaled(out.source + at, scale, query.data(), out.source + at, e.width);
  }
}

OUTCROP_INLINE void dot_queries(const EdgeVectors& e, float* queries, float* scores, size_t begin,
                                size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const size_t at = i * e.width, other = e.n * e.width + at;
    for (size_t k = 0; k < e.width; ++k)
      queries[at + k] = e.source[at + k], queries[other + k] = e.target[at + k];
    scores[i] = scores[e.n + i] = dot(e.source + at, e.target + at, e.width);
  }
}

OUTCROP_INLINE void dot_gradients(const EdgeVectors& e, const float* to_queries, const float* to_scores,
                                  const EdgeGradients& out, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const size_t at = i * e.width, other = e.n * e.width + at;
    const float both = to_scores[i] + to_scores[e.n + i];
    for (size_t k = 0; k < e.width; ++k) {
      out.source[at + k] = to_queries[at + k] + both * e.target[at + k];
      out.target[at + k] = to_queries[other + k] + both * e.source[at + k];
    }
  }
}

OUTCROP_EVERY_ISA
void queries_between(ProductKind kind, const EdgeVectors& e, float* queries, float* scores, size_t begin,
                     size_t end) {
  if (kind == ProductKind::dot) return dot_queries(e, queries, scores, begin, end);
  if (kind == ProductKind::real) return queries_of(Real(e.width), e, queries, scores, begin, end);
  queries_of(Complex(e.width), e, queries, scores, begin, end);
}

OUTCROP_EVERY_ISA
void gradients_between(ProductKind kind, const EdgeVectors& e, const float* to_queries,
                       const float* to_scores, const EdgeGradients& out, size_t begin, size_t end) {
  if (kind == ProductKind::dot) return dot_gradients(e, to_queries, to_scores, out, begin, end);
  if (kind == ProductKind::real)
    return gradients_of(Real(e.width), e, to_queries, to_scores, out, begin, end);
  gradients_of(Complex(e.width), e, to_queries, to_scores, out, begin, end);
}

OUTCROP_EVERY_ISA
void complex_size_gradients(const float* x, size_t width, const SizeWeights& weights, float* out,
                            size_t begin, size_t end) {
  const size_t half = width / 2;
  const float cubes = 3 * weights.cubes, squares = 2 * weights.squares;
  for (size_t i = begin; i < end; ++i) {
    const float *a = x + i * width, *b = a + half;
    float *to_a = out + i * width, *to_b = to_a + half;
    for (size_t k = 0; k < half; ++k) {
      const float scale = cubes * std::sqrt(a[k] * a[k] + b[k] * b[k]) + squares;
      to_a[k] += scale * a[k];
      to_b[k] += scale * b[k];
    }
  }
}

OUTCROP_EVERY_ISA
void size_gradients(const float* x, const SizeWeights& weights, float* out, size_t begin, size_t end) {
  const float cubes = 3 * weights.cubes, squares = 2 * weights.squares;
  for (size_t k = begin; k < end; ++k) out[k] += (cubes * std::abs(x[k]) + squares) * x[k];
}

}  // namespace

void make_queries(ProductKind kind, const EdgeVectors& edges, float* queries, float* scores,
                  WorkerPool& workers) {
  workers.split(edges.n, kGrain,
                [&](size_t begin, size_t end) { queries_between(kind, edges, queries, scores, begin, end); });
}

void query_gradients(ProductKind kind, const EdgeVectors& edges, const float* to_queries,
                     const float* to_scores, const EdgeGradients& out, WorkerPool& workers) {
  workers.split(edges.n, kGrain, [&](size_t begin, size_t end) {
    gradients_between(kind, edges, to_queries, to_scores, out, begin, end);
  });
}

void add_size_gradients(const float* x, size_t n, size_t width, bool complex, const SizeWeights& weights,
                        float* out, WorkerPool& workers) {
  workers.split(n, kGrain, [&](size_t begin, size_t end) {
    if (complex) return complex_size_gradients(x, width, weights, out, begin, end);
    size_gradients(x, weights, out, begin * width, end * width);
  });
}

}  // namespace outcrop
