// Rows of embedding tables and queries of edges, with any ids, shapes and values: infinite ones, none at all, rows that are
// not there, tables without room for the state. An Error(argument) leaves the table as it was; else sums are those of the
// plainest loops, whatever the number of threads.
#include <fuzzer/FuzzedDataProvider.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "check.h"
#include "embed/queries.h"
#include "embed/row_update.h"

using namespace outcrop;

namespace {

// Exactly as long as it is said to be, so that sanitizers see what goes beyond.
std::vector<float> floats(FuzzedDataProvider& in, size_t n) {
  const bool odd = in.ConsumeBool();
  std::vector<float> made(n);
  for (float& value : made)
    value = odd ? in.ConsumeFloatingPoint<float>() : in.ConsumeFloatingPointInRange<float>(-1, 1);
  return made;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)  // which NaN, nobody promises
    if (std::memcmp(&a[i], &b[i], sizeof(float)) && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

// |found - wanted| within what summing in another order can give; anything where something overflows.
bool near(double found, double wanted, double magnitude) {
  return !std::isfinite(found) || !std::isfinite(wanted) || !(magnitude <= 1e30) ||
         std::abs(found - wanted) <= 1e-4 * magnitude + 1e-30;
}

void steps(FuzzedDataProvider& in) {
  static WorkerPool alone(1), several(3);
  const size_t rows = in.ConsumeIntegralInRange<size_t>(0, 12),
               width = in.ConsumeIntegralInRange<size_t>(0, 9);
  StepOptions options;
  options.kind = static_cast<StepKind>(in.ConsumeIntegralInRange(0, 2));
  options.step = in.ConsumeIntegralInRange<uint64_t>(1, 5);
  // Now and then without room for the state.
  const size_t state = state_width(options.kind, width), most = width + state + 3;
  const size_t stride =
      in.ConsumeProbability<float>() < 0.1f ? in.ConsumeIntegralInRange(width, most) : width + state;
  auto table = floats(in, rows * stride);
  for (size_t r = 0; r < rows; ++r)  // what is a sum of squares is not negative
    for (size_t k = width; k < stride; ++k) table[r * stride + k] = std::abs(table[r * stride + k]);
  std::vector<int64_t> ids;
  bool there = true;
  for (size_t left = in.ConsumeIntegralInRange<size_t>(0, 20); left; --left) {
    ids.push_back(in.ConsumeProbability<float>() < 0.02f || !rows
                      ? in.ConsumeIntegral<int64_t>()
                      : in.ConsumeIntegralInRange<int64_t>(0, static_cast<int64_t>(rows) - 1));
    there &= ids.back() >= 0 && static_cast<size_t>(ids.back()) < rows;
  }
  const auto gradients = floats(in, ids.size() * width), before = table;
  auto again = table;
  std::vector<float> taken(ids.size() * width);
  try {
    take_rows({table.data(), rows, stride, width}, ids.data(), ids.size(), taken.data(), alone);
    holds(there);
    for (size_t i = 0; i < ids.size(); ++i)
      holds(!width || !std::memcmp(&taken[i * width], &table[static_cast<size_t>(ids[i]) * stride],
                                   width * sizeof(float)));
  } catch (const Error& error) {
    holds(!there && error.kind() == ErrorKind::argument);
  }
  try {
    const size_t touched = step_rows({table.data(), rows, stride, width}, ids.data(), gradients.data(),
                                     ids.size(), options, alone);
    holds(there && stride >= width + state);
    auto different = ids;
    std::sort(different.begin(), different.end());
    different.erase(std::unique(different.begin(), different.end()), different.end());
    holds(touched == different.size());
    for (size_t r = 0; r < rows; ++r)
      if (!std::binary_search(different.begin(), different.end(), static_cast<int64_t>(r)))
        for (size_t k = 0; k < stride; ++k)
          holds(!std::memcmp(&table[r * stride + k], &before[r * stride + k], sizeof(float)));
    step_rows({again.data(), rows, stride, width}, ids.data(), gradients.data(), ids.size(), options,
              several);
    holds(same_bits(table, again));
  } catch (const Error& error) {
    holds(error.kind() == ErrorKind::argument && (!there || stride < width + state));
    holds(same_bits(table, before));
  }
}

void queries(FuzzedDataProvider& in) {
  static WorkerPool alone(1), several(3);
  const auto kind = static_cast<ProductKind>(in.ConsumeIntegralInRange(0, 2));
  const size_t n = in.ConsumeIntegralInRange<size_t>(0, 70);
  const size_t width = in.ConsumeIntegralInRange<size_t>(0, 10) * (kind == ProductKind::complex ? 2 : 1);
  const bool inverse = kind != ProductKind::dot && in.ConsumeBool();
  const auto source = floats(in, n * width), target = floats(in, n * width);
  const auto relation = floats(in, kind == ProductKind::dot ? 0 : n * width),
             other = floats(in, inverse ? n * width : 0);
  const EdgeVectors edges{source.data(),
                          target.data(),
                          kind == ProductKind::dot ? nullptr : relation.data(),
                          inverse ? other.data() : nullptr,
                          n,
                          width};
  std::vector<float> made(2 * n * width), scores(2 * n), made_again(made), scores_again(scores);
  make_queries(kind, edges, made.data(), scores.data(), alone);
  make_queries(kind, edges, made_again.data(), scores_again.data(), several);
  holds(same_bits(made, made_again) && same_bits(scores, scores_again));
  for (size_t i = 0; i < n; ++i) {  // the score of an edge is the product of its query and its end
    double forward = 0, backward = 0, magnitude = 0;
    for (size_t k = 0; k < width; ++k) {
      const size_t at = i * width + k;
      const double a = double{made[at]} * target[at], b = double{made[n * width + at]} * source[at];
      forward += a, backward += b, magnitude += std::abs(a) + std::abs(b);
    }
    holds(near(scores[i], forward, magnitude) && near(scores[n + i], backward, magnitude));
  }
  const auto to_queries = floats(in, 2 * n * width), to_scores = floats(in, 2 * n);
  std::vector<std::vector<float>> sums(4, std::vector<float>(n * width)), sums_again(sums);
  const auto add = [&](std::vector<std::vector<float>>& to, WorkerPool& workers) {
    query_gradients(kind, edges, to_queries.data(), to_scores.data(),
                    {to[0].data(), to[1].data(), to[2].data(), to[3].data()}, workers);
  };
  add(sums, alone), add(sums_again, several);
  for (size_t i = 0; i < sums.size(); ++i) holds(same_bits(sums[i], sums_again[i]));
  const bool complex = kind == ProductKind::complex;
  add_size_gradients(source.data(), n, width, complex, {0.5f, 0.25f}, sums[0].data(), alone);
  add_size_gradients(source.data(), n, width, complex, {0.5f, 0.25f}, sums_again[0].data(), several);
  holds(same_bits(sums[0], sums_again[0]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  if (in.ConsumeBool()) {
    steps(in);
  } else {
    queries(in);
  }
  return 0;
}
