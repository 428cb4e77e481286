#include "embed/compare.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.h"
#include "embed/product.h"
#include "embed/softmax.h"

namespace outcrop {
namespace {

constexpr size_t kBlock = 240;  // queries of a task: their number decides the result
constexpr size_t kTile = 48;    // whole rows of tiles of registers

// Queries whose scores are there at a time.
size_t tile_of(const CompareShape& shape) { return std::min(kTile, shape.chunk); }

size_t chunks_of(const CompareShape& shape, size_t edges) { return (edges + shape.chunk - 1) / shape.chunk; }

// Tasks of a chunk in a batch of so many edges.
size_t parts_of(const CompareShape& shape, size_t edges) {
  return 2 * ((std::min(shape.chunk, edges) + kBlock - 1) / kBlock);
}

size_t tasks_of(const CompareShape& shape, size_t edges) {
  return chunks_of(shape, edges) * parts_of(shape, edges);
}

}  // namespace

// Places of the arrays of a slot.
struct SoftmaxCompare::Scratch {
  Scratch(const CompareShape& shape, float* at)
      : k(padded(shape.candidates)),
        width(padded(shape.width)),
        scores(at),
        queries(scores + tile_of(shape) * k),
        to_queries(queries + tile_of(shape) * width),
        to_candidates(to_queries + tile_of(shape) * width) {}
  static size_t floats(const CompareShape& shape) {
    const size_t k = padded(shape.candidates), width = padded(shape.width);
    return tile_of(shape) * (k + 2 * width) + k * width;
  }
  size_t k, width;
  float *scores, *queries, *to_queries, *to_candidates;
};

SoftmaxCompare::SoftmaxCompare(const CompareShape& shape, size_t slots, WorkerPool& workers)
    : shape_(shape), slots_(std::min(slots, tasks_of(shape, shape.edges))), workers_(workers) {
  const size_t chunks = chunks_of(shape, shape.edges);
  scratch_.resize(slots_ * Scratch::floats(shape));
  packed_.resize(chunks * 2 * padded(shape.candidates) * padded(shape.width));
  sorted_.resize(chunks * shape.candidates);
  losses_.resize(2 * shape.edges);
  turns_.resize(chunks);
}

size_t SoftmaxCompare::bytes(const CompareShape& shape, size_t slots) {
  const size_t chunks = (shape.edges + shape.chunk - 1) / shape.chunk;
  const size_t floats =
      slots * Scratch::floats(shape) + chunks * 2 * padded(shape.candidates) * padded(shape.width);
  return sizeof(float) * floats + sizeof(sorted_[0]) * chunks * shape.candidates +
         sizeof(double) * 2 * shape.edges + sizeof(size_t) * chunks;
}

// Rows of candidates of a chunk begin at whole lanes; their ids are sorted.
void SoftmaxCompare::pack(const CompareBatch& batch, size_t chunk) {
  const size_t k = batch.k, width = shape_.width, row = padded(width), column = padded(k);
  float* rows = packed_.data() + chunk * 2 * padded(shape_.candidates) * row;
  float* columns = rows + padded(shape_.candidates) * row;
  const float* from = batch.candidates + chunk * k * width;
  std::fill(columns, columns + width * column, 0.0f);
  for (size_t j = 0; j < k; ++j) {
    std::memcpy(rows + j * row, from + j * width, width * sizeof(float));
    std::fill(rows + j * row + width, rows + (j + 1) * row, 0.0f);
    for (size_t i = 0; i < width; ++i) columns[i * column + j] = from[j * width + i];
  }
  auto* sorted = sorted_.data() + chunk * shape_.candidates;
  for (size_t j = 0; j < k; ++j) sorted[j] = {batch.ids[chunk * k + j], static_cast<uint32_t>(j)};
  std::sort(sorted, sorted + k);
}

void SoftmaxCompare::block(const CompareBatch& batch, size_t chunk, size_t part, size_t slot) {
  const size_t k = batch.k, width = shape_.width, row = padded(width), column = padded(k);
  const Scratch own(shape_, scratch_.data() + slot * Scratch::floats(shape_));
  const float* rows = packed_.data() + chunk * 2 * padded(shape_.candidates) * row;
  const float* columns = rows + padded(shape_.candidates) * row;
  const auto *sorted = sorted_.data() + chunk * shape_.candidates, *sorted_end = sorted + k;
  const size_t first = chunk * shape_.chunk, last = std::min(batch.n, first + shape_.chunk);
  const size_t half = part % 2 * batch.n, begin = first + part / 2 * kBlock;
  const size_t end = std::min(last, begin + kBlock);
  for (size_t at = begin; at < end; at += kTile) {
    const size_t count = std::min(kTile, end - at), query = half + at;
    const float* queries = batch.queries + query * width;
    multiply({queries, width, 1, count}, {columns, column}, width, {own.scores, column}, false);
    for (size_t i = 0; i < count; ++i) {
      const int64_t wanted = batch.wanted[query + i];
      for (auto found = std::lower_bound(sorted, sorted_end, std::pair(wanted, uint32_t{0}));
           found != sorted_end && found->first == wanted; ++found)
        own.scores[i * column + found->second] = -std::numeric_limits<float>::infinity();
    }
    softmax_rows({own.scores, count, k}, column, batch.positive + query, batch.to_positive + query,
                 losses_.data() + query);
    multiply({own.scores, column, 1, count}, {rows, row}, k, {own.to_queries, row}, false);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(batch.to_queries + (query + i) * width, own.to_queries + i * row, width * sizeof(float));
      std::memcpy(own.queries + i * row, queries + i * width, width * sizeof(float));
    }
    multiply({own.scores, 1, column, k}, {own.queries, row}, count, {own.to_candidates, row}, at != begin);
  }
  std::unique_lock lock(mutex_);
  added_.wait(lock, [&] { return turns_[chunk] == part; });  // tasks before this one began before it
  lock.unlock();
  float* to = batch.to_candidates + chunk * k * width;
  for (size_t j = 0; j < k && begin < end; ++j)
    for (size_t i = 0; i < width; ++i) to[j * width + i] += own.to_candidates[j * row + i];
  lock.lock();
  ++turns_[chunk];
  added_.notify_all();
}

double SoftmaxCompare::run(const CompareBatch& batch) {
  if (batch.n > shape_.edges || batch.k > shape_.candidates)
    throw Error(ErrorKind::argument, std::to_string(batch.n) + " edges and " + std::to_string(batch.k) +
                                         " candidates are more than there is room for");
  const size_t chunks = chunks_of(shape_, batch.n), parts = parts_of(shape_, batch.n);
  std::fill(turns_.begin(), turns_.end(), 0);
  workers_.run(chunks, [&](size_t chunk, unsigned) { pack(batch, chunk); });
  std::atomic<size_t> next = 0;
  workers_.run(std::min(slots_, chunks * parts), [&](size_t slot, unsigned) {
    for (size_t task; (task = next++) < chunks * parts;) block(batch, task / parts, task % parts, slot);
  });
  return std::accumulate(losses_.begin(), losses_.begin() + static_cast<ptrdiff_t>(2 * batch.n), 0.0);
}

}  // namespace outcrop
