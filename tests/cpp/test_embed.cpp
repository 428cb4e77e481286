// Edges in buckets and steps of rows against the plainest loops; run under the sanitizers for races and
// bounds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/random.h"
#include "embed/bucket_sort.h"
#include "embed/compare.h"
#include "embed/row_update.h"
#include "embed/softmax.h"

namespace outcrop {
namespace {

TEST(Division, SizesDifferByOne) {
  for (uint64_t rows = 1; rows < 40; ++rows)
    for (uint64_t parts = 1; parts <= rows; ++parts) {
      const Division division(rows, parts);
      std::vector<uint64_t> sizes(parts);
      uint64_t last = 0;
      for (uint64_t row = 0; row < rows; ++row) {
        const auto place = division.place(row);
        ASSERT_LT(place.partition, parts);
        ASSERT_GE(place.partition, last);
        ASSERT_EQ(place.local, sizes[place.partition]++);
        last = place.partition;
      }
      EXPECT_LE(sizes.front() - sizes.back(), 1u);
    }
}

// Found by fuzzing: a copy of no floats, from a table that has none.
TEST(RowUpdate, VectorsMayBeEmpty) {
  WorkerPool workers(1);
  const std::vector<int64_t> ids{0, 2};
  take_rows({nullptr, 3, 0, 0}, ids.data(), ids.size(), nullptr, workers);
  EXPECT_EQ(step_rows({nullptr, 3, 0, 0}, ids.data(), nullptr, ids.size(), {StepKind::sgd}, workers), 2u);
}

TEST(BucketSort, SpillsAndKeepsOrder) {
  const auto folder = std::filesystem::temp_directory_path().string();
  auto budget = Budget::create(UINT64_MAX);
  auto io = BlockIo::create({}, budget);
  WorkerPool workers(3);
  BucketSorter sorter(io, *budget, {folder, BucketSorter::kMinMemoryBytes, &workers}, 103, 5, 7);
  RandomStream random(1, 2);
  std::vector<EdgeRecord> expected;
  const Division division(103, 5);
  for (int block = 0; block < 20; ++block) {
    std::vector<int64_t> s(1500), r(1500), t(1500);
    for (size_t i = 0; i < s.size(); ++i) {
      s[i] = static_cast<int64_t>(random.below(103));
      r[i] = static_cast<int64_t>(random.below(7));
      t[i] = static_cast<int64_t>(random.below(103));
      const auto from = division.place(static_cast<uint64_t>(s[i]));
      const auto to = division.place(static_cast<uint64_t>(t[i]));
      expected.push_back({static_cast<uint32_t>(from.partition * 5 + to.partition),
                          static_cast<uint32_t>(from.local), static_cast<uint32_t>(r[i]),
                          static_cast<uint32_t>(to.local)});
    }
    sorter.add(s.data(), r.data(), t.data(), s.size());
  }
  std::stable_sort(expected.begin(), expected.end(),
                   [](const auto& a, const auto& b) { return a.bucket < b.bucket; });
  size_t at = 0;
  sorter.finish([&](const EdgeRecord* records, size_t n) {
    for (size_t i = 0; i < n; ++i, ++at) {
      ASSERT_LT(at, expected.size());
      ASSERT_EQ(records[i].bucket, expected[at].bucket);
      ASSERT_EQ(records[i].source, expected[at].source);
      ASSERT_EQ(records[i].relation, expected[at].relation);
      ASSERT_EQ(records[i].target, expected[at].target);
    }
  });
  EXPECT_EQ(at, expected.size());
  EXPECT_GT(sorter.stats().spilled_bytes, 0u);
  const int64_t bad = 103, good = 0;
  EXPECT_THROW(sorter.add(&bad, nullptr, &good, 1), Error);
  EXPECT_THROW(BucketSorter(io, *budget, {folder, 1 << 20, &workers}, 4, 5, 1), Error);
}

TEST(RowUpdate, AdagradInTheOrderOfTheBatch) {
  WorkerPool workers(4);
  constexpr size_t kRows = 300, kWidth = 5, kTouches = 4000;
  std::vector<float> table(kRows * 2 * kWidth, 0.5f), expected = table, gradients(kTouches * kWidth);
  std::vector<int64_t> ids(kTouches);
  RandomStream random(3, 4);
  for (auto& id : ids) id = static_cast<int64_t>(random.below(kRows));
  for (auto& g : gradients) g = static_cast<float>(random.uniform() - 0.5);
  const EmbeddingTable rows{table.data(), kRows, 2 * kWidth, kWidth};
  StepOptions options;
  std::vector<std::vector<float>> sums(kRows, std::vector<float>(kWidth));
  std::vector<bool> touched(kRows);
  for (size_t i = 0; i < kTouches; ++i) {
    touched[static_cast<size_t>(ids[i])] = true;
    for (size_t k = 0; k < kWidth; ++k) sums[static_cast<size_t>(ids[i])][k] += gradients[i * kWidth + k];
  }
  for (size_t r = 0; r < kRows; ++r)
    for (size_t k = 0; touched[r] && k < kWidth; ++k) {
      float& square = expected[r * 2 * kWidth + kWidth + k];
      square += sums[r][k] * sums[r][k];
      expected[r * 2 * kWidth + k] -= options.rate * sums[r][k] / (std::sqrt(square) + options.epsilon);
    }
  const size_t count = step_rows(rows, ids.data(), gradients.data(), kTouches, options, workers);
  EXPECT_EQ(count, static_cast<size_t>(std::count(touched.begin(), touched.end(), true)));
  for (size_t i = 0; i < table.size(); ++i) ASSERT_FLOAT_EQ(table[i], expected[i]);
  std::vector<float> taken(kTouches * kWidth);
  take_rows(rows, ids.data(), kTouches, taken.data(), workers);
  for (size_t i = 0; i < kTouches; ++i)
    for (size_t k = 0; k < kWidth; ++k)
      ASSERT_EQ(taken[i * kWidth + k], table[static_cast<size_t>(ids[i]) * 2 * kWidth + k]);
  ids[7] = kRows;
  EXPECT_THROW(step_rows(rows, ids.data(), gradients.data(), kTouches, options, workers), Error);
  EXPECT_EQ(step_rows(rows, ids.data(), gradients.data(), 0, options, workers), 0u);
}

TEST(Softmax, OnePassIsTheFormula) {
  WorkerPool workers(3);
  RandomStream random(5, 6);
  for (const size_t k : {size_t{1}, size_t{15}, size_t{16}, size_t{133}}) {
    constexpr size_t kRows = 70;
    std::vector<float> scores(kRows * k), positive(kRows), to_positive(kRows);
    std::vector<int64_t> candidates(k), wanted(kRows);
    for (float& x : scores) x = static_cast<float>(random.below(2000)) / 100 - 10;
    for (float& x : positive) x = static_cast<float>(random.below(2000)) / 100 - 10;
    for (int64_t& c : candidates) c = static_cast<int64_t>(random.below(9));
    for (int64_t& w : wanted) w = static_cast<int64_t>(random.below(9));
    const std::vector<float> before = scores;
    const NegativeScores negatives{scores.data(), kRows, k};
    leave_out(negatives, candidates.data(), wanted.data(), workers);
    const double loss = softmax(negatives, positive.data(), to_positive.data(), workers);
    double expected = 0;
    for (size_t i = 0; i < kRows; ++i) {
      double total = std::exp(double{positive[i]});
      for (size_t j = 0; j < k; ++j)
        if (candidates[j] != wanted[i]) total += std::exp(double{before[i * k + j]});
      expected += std::log(total) - double{positive[i]};
      EXPECT_NEAR(to_positive[i], std::exp(double{positive[i]}) / total - 1, 1e-5);
      for (size_t j = 0; j < k; ++j)
        EXPECT_NEAR(scores[i * k + j],
                    candidates[j] == wanted[i] ? 0 : std::exp(double{before[i * k + j]}) / total, 1e-5);
    }
    EXPECT_NEAR(loss, expected, 1e-4 * expected + 1e-6);
  }
}

// Several blocks of a chunk, several tiles of a block, a chunk that is not full.
TEST(Compare, OnePassIsTheFormulaForAnyThreads) {
  constexpr size_t kEdges = 700, kChunk = 300, kCandidates = 37, kWidth = 19, kChunks = 3;
  RandomStream random(7, 8);
  std::vector<float> queries(2 * kEdges * kWidth), candidates(kChunks * kCandidates * kWidth);
  std::vector<float> positive(2 * kEdges);
  std::vector<int64_t> ids(kChunks * kCandidates), wanted(2 * kEdges);
  for (float& x : queries) x = static_cast<float>(random.below(2000)) / 1000 - 1;
  for (float& x : candidates) x = static_cast<float>(random.below(2000)) / 1000 - 1;
  for (float& x : positive) x = static_cast<float>(random.below(2000)) / 500 - 2;
  for (int64_t& id : ids) id = static_cast<int64_t>(random.below(30));
  for (int64_t& w : wanted) w = static_cast<int64_t>(random.below(30));

  double loss = 0;
  std::vector<double> to_queries(queries.size()), to_candidates(candidates.size(), 1),
      to_positive(positive.size());
  for (size_t i = 0; i < 2 * kEdges; ++i) {
    const size_t chunk = i % kEdges / kChunk;
    double total = std::exp(double{positive[i]});
    std::vector<double> weights(kCandidates);
    for (size_t j = 0; j < kCandidates; ++j) {
      const size_t row = chunk * kCandidates + j;
      double score = 0;
      for (size_t w = 0; w < kWidth; ++w)
        score += double{queries[i * kWidth + w]} * double{candidates[row * kWidth + w]};
      weights[j] = ids[row] == wanted[i] ? 0 : std::exp(score);
      total += weights[j];
    }
    loss += std::log(total) - double{positive[i]};
    to_positive[i] = std::exp(double{positive[i]}) / total - 1;
    for (size_t j = 0; j < kCandidates; ++j)
      for (size_t w = 0; w < kWidth; ++w) {
        const size_t row = (chunk * kCandidates + j) * kWidth + w;
        to_queries[i * kWidth + w] += weights[j] / total * double{candidates[row]};
        to_candidates[row] += weights[j] / total * double{queries[i * kWidth + w]};
      }
  }

  std::vector<float> first;
  for (const unsigned threads : {1u, 3u}) {
    for (const size_t slots : {size_t{1}, size_t{2}, size_t{9}}) {
      WorkerPool workers(threads);
      SoftmaxCompare compare({kEdges + 50, kChunk, kCandidates + 3, kWidth}, slots, workers);
      for (int round = 0; round < 2; ++round) {
        std::vector<float> q(queries.size()), p(positive.size()), c(candidates.size(), 1);
        const double found =
            compare.run({kEdges, kCandidates, queries.data(), positive.data(), candidates.data(), ids.data(),
                         wanted.data(), q.data(), p.data(), c.data()});
        EXPECT_NEAR(found, loss, 1e-5 * loss);
        for (size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(q[i], to_queries[i], 1e-5);
        for (size_t i = 0; i < p.size(); ++i) ASSERT_NEAR(p[i], to_positive[i], 1e-5);
        for (size_t i = 0; i < c.size(); ++i) ASSERT_NEAR(c[i], to_candidates[i], 1e-3);
        if (first.empty()) first = c;
        EXPECT_EQ(c, first);
      }
    }
  }
  WorkerPool workers(1);
  SoftmaxCompare small({10, 4, 5, kWidth}, 1, workers);
  EXPECT_THROW(small.run({11, 5}), Error);
  EXPECT_THROW(small.run({1, 6}), Error);
  EXPECT_EQ(small.run({}), 0);
}

}  // namespace
}  // namespace outcrop
