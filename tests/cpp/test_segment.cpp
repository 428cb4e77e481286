// The shared rows of a segment and the sketch against brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/error.h"
#include "pack/segment.h"
#include "pack/sketch.h"

namespace outcrop {
namespace {

std::vector<std::vector<int32_t>> random_batches(int batches, int nodes, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::vector<int32_t>> out(static_cast<size_t>(batches));
  for (auto& ids : out)
    for (int32_t v = 0; v < nodes; ++v)
      if (rng() % static_cast<uint64_t>(v % 7 + 2) == 0) ids.push_back(v);
  return out;
}

class SegmentTest : public ::testing::TestWithParam<int> {};

TEST_P(SegmentTest, SharesNumbersAndCountsAsBruteForce) {
  const int count = GetParam(), nodes = 700, threshold = 2, row_bytes = 300;
  const auto batches = random_batches(count, nodes, 3);
  const std::vector<int64_t> hot{5, 6, 699};
  auto budget = Budget::create(1 << 24);
  WorkerPool workers(2);
  SegmentTable table(budget, nodes);
  for (int round = 0; round < 2; ++round) {  // the second on what the first left
    const int64_t first = 100, end = 700, row = 11;
    if (round == 0) table.begin_range(first, end - first, hot);
    table.begin_segment(count, threshold, 9, row);
    std::map<int32_t, int> wants;
    for (const auto& ids : batches) {
      table.count<int32_t>(ids);
      for (const int32_t v : ids)
        if (v >= first && v != 699) ++wants[v];
    }
    for (int b = 0; b < count; ++b) table.sign<int32_t>(b, batches[static_cast<size_t>(b)]);
    const int64_t shared = table.order(workers);
    std::vector<int64_t> order(static_cast<size_t>(shared));
    table.shared(0, order);
    std::set<int64_t> expected;
    for (const auto& [v, c] : wants)
      if (c > threshold) expected.insert(v);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()), expected);
    for (const auto& ids : batches) {
      std::vector<int32_t> rows(ids.size());
      table.look_up<int32_t>(ids, rows.data());
      std::set<int64_t> pages;
      int64_t found = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (rows[i] < 0) {
          EXPECT_FALSE(expected.contains(ids[i]));
          continue;
        }
        ++found;
        EXPECT_EQ(order[static_cast<size_t>(rows[i] - row)], ids[i]);
        const int64_t begin = int64_t{rows[i]} * row_bytes, end_byte = begin + row_bytes;
        for (int64_t page = begin / 4096; page * 4096 < end_byte; ++page) pages.insert(page);
      }
      EXPECT_EQ(table.mark<int32_t>(ids, row_bytes), found);
      const SharedReads reads = table.finish_batch();
      EXPECT_EQ(reads.rows, found);
      EXPECT_EQ(reads.pages, static_cast<int64_t>(pages.size()));
    }
    for (const auto& ids : batches) table.clear<int32_t>(ids);
  }
}

// 8 bits tell 256 batches apart, 16 bits 65536; of more several share a rank.
INSTANTIATE_TEST_SUITE_P(Batches, SegmentTest, ::testing::Values(1, 2, 12, 256, 257));

TEST(Segment, SaysWhatItCannotTake) {
  auto budget = Budget::create(1 << 24);
  SegmentTable table(budget, 10);
  EXPECT_THROW(table.begin_range(0, 11, {}), Error);
  table.begin_range(0, 10, {});
  const std::vector<int64_t> ids{3, 12};
  EXPECT_THROW(table.assign<int64_t>(ids, std::vector<int32_t>{0, 1}), Error);
  EXPECT_THROW(table.assign<int64_t>(ids, std::vector<int32_t>{0}), Error);
  table.begin_segment(2, 1, 0, 0);
  EXPECT_THROW(table.sign<int64_t>(2, ids), Error);
  std::vector<int64_t> out(1);
  EXPECT_THROW(table.shared(0, out), Error);
}

TEST(Sketch, CountsEveryWant) {
  const auto batches = random_batches(30, 200, 5);
  auto budget = Budget::create(1 << 24);
  WorkerPool workers(2);
  LayoutSketch sketch(*budget, 30 * 200, 0, 1);
  for (size_t b = 0; b < batches.size(); ++b)
    sketch.add(static_cast<int64_t>(b), std::vector<int64_t>(batches[b].begin(), batches[b].end()));
  sketch.finish(workers);
  for (const int64_t segment : {1, 4, 30, 1000}) {
    std::map<std::pair<int32_t, int64_t>, int> wants;
    for (size_t b = 0; b < batches.size(); ++b)
      for (const int32_t v : batches[b]) ++wants[{v, static_cast<int64_t>(b) / segment}];
    std::vector<int64_t> expected(static_cast<size_t>(std::min<int64_t>(segment, 30)) + 1);
    for (const auto& [key, c] : wants) ++expected[static_cast<size_t>(c)];
    EXPECT_EQ(sketch.histogram(segment), expected);
  }
}

TEST(SegmentTableRefuses, TheLastRowNumber) {  // one is added to it
  SegmentTable table(Budget::create(1 << 20), 10);
  table.begin_range(0, 10, {});
  const std::vector<int64_t> ids{3};
  const std::vector<int32_t> rows{INT32_MAX};
  EXPECT_THROW(table.assign<int64_t>(ids, rows), Error);
}

}  // namespace
}  // namespace outcrop
