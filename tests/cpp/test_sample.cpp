// The sampling kernels' code against the core's draws, in buffers without a byte to spare (for sanitizers).
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "cache/hot_rows.h"
#include "cpu_kernels/sample.h"
#include "kernels/sample.h"
#include "sampling/draw.h"

namespace outcrop {
namespace {

struct Hop {
  std::vector<int64_t> indptr{0}, indices, nodes;

  explicit Hop(const std::vector<int64_t>& degrees) {
    for (int64_t d : degrees) {
      nodes.push_back(static_cast<int64_t>(nodes.size()));
      indptr.push_back(indptr.back() + d);
    }
    indices.resize(static_cast<size_t>(indptr.back()));
    std::iota(indices.begin(), indices.end(), 0);  // a neighbour is its own place
  }
};

int64_t at(const std::vector<int64_t>& v) { return reinterpret_cast<int64_t>(v.data()); }

// Places that the kernels draw, row after row.
std::vector<int64_t> drawn_by_cpu_kernel(const Hop& hop, uint64_t key, int64_t fanout, bool replace,
                                         int64_t warps, bool backwards) {
  const size_t n = hop.nodes.size(), room = n + 2;  // two rows of room that no node has
  const auto edges = static_cast<int64_t>(hop.indices.size());
  std::vector<int64_t> ids(hop.nodes), ends{0, static_cast<int64_t>(n)};
  std::vector<int64_t> start(room), degree(room), taken(room + 1, -1), first(room + 1), wrong(1), outside(2);
  const int64_t begin = at(ends), end = begin + 8, asked = replace;
  cpu_sample(
      "sample_count", warps,
      std::vector<int64_t>{at(hop.indptr), edges, 0, 0, at(ids), begin, end, static_cast<int64_t>(room),
                           fanout, asked, at(start), at(degree), at(taken), at(wrong)},
      backwards);
  std::partial_sum(taken.begin(), taken.end(), first.begin());
  EXPECT_EQ(first[n], first.back());
  const auto total = static_cast<size_t>(first.back());
  std::vector<int64_t> drawn(total), neighbours(total, -1);
  cpu_sample("sample_draw", warps,
             std::vector<int64_t>{static_cast<int64_t>(key), at(ids), begin, end, fanout, asked, at(degree),
                                  at(first), at(drawn)},
             backwards);
  cpu_sample("sample_fetch_64", warps,
             std::vector<int64_t>{at(hop.indices), edges, 0, edges, at(ids), begin, end, fanout, asked,
                                  at(start), at(degree), at(first), at(drawn), at(neighbours), at(outside)},
             backwards);
  EXPECT_EQ(outside[0], 0);
  EXPECT_EQ(wrong[0], 0);
  return neighbours;
}

TEST(SampleKernels, DrawWhatTheCoreDraws) {
  const Hop hop({0, 1, 5, 11, 12, 33, 40, 64, 65, 200, 0, 3000});
  for (int64_t fanout : {-1, 1, 5, 10, 11, 32, 33, 64, 199, 500}) {
    for (const bool replace : {false, true}) {
      if (replace && fanout == -1) continue;
      for (uint64_t key = 0; key < 20; ++key) {
        UniformDraw draw;
        std::vector<int64_t> expected;
        for (int64_t node : hop.nodes) {
          const int64_t begin = hop.indptr[static_cast<size_t>(node)];
          draw.places(expected, key, node, begin, hop.indptr[static_cast<size_t>(node) + 1] - begin, fanout,
                      replace);
        }
        EXPECT_EQ(drawn_by_cpu_kernel(hop, key, fanout, replace, 3, key % 2), expected)
            << fanout << " " << key;
      }
    }
  }
}

TEST(SampleKernels, NumberNewNodesAscendingBehindThoseKnown) {
  constexpr int64_t none = kernels::kNone;
  // Known: 4 5 9 with numbers 2 0 1. Drawn: 7 4 3 7 9 3, and room for two more.
  const std::vector<int64_t> ids{3, 3, 4, 4, 5, 7, 7, 9, 9, none, none};
  const std::vector<int64_t> order{5, 8, 0, 4, 1, 3, 6, 2, 7, 9, 10}, local{2, 0, 1};
  std::vector<int64_t> marks(11), sums(11), n_id{5, 9, 4, -1, -1}, runs(5), numbers(5);
  std::vector<int64_t> begin{1}, nodes{3}, edges{2}, fresh{0}, drawn{0}, first{0, 2, 6};
  std::vector<int32_t> rowptr{0, 2, -1, -1}, col{-1, -1, -1, -1, -1, -1, -1, -1};
  const auto at32 = [](const std::vector<int32_t>& v) { return reinterpret_cast<int64_t>(v.data()); };
  for (const bool backwards : {false, true}) {
    cpu_sample("sample_mark", 2, std::vector<int64_t>{11, 3, at(ids), at(order), at(marks)}, backwards);
    std::partial_sum(marks.begin(), marks.end(), sums.begin());
    cpu_sample("sample_number", 2,
               std::vector<int64_t>{11, 3, at(ids), at(order), at(sums), at(nodes), at(local), at(n_id),
                                    at(runs), at(numbers)},
               backwards);
    cpu_sample("sample_relabel", 2,
               std::vector<int64_t>{11, 3, at(ids), at(order), at(sums), at(numbers), at(n_id), at(begin),
                                    at(nodes), at(first), at(edges), at32(rowptr), at32(col)},
               backwards);
    EXPECT_EQ(n_id, (std::vector<int64_t>{5, 9, 4, 3, 7}));
    EXPECT_EQ(runs, (std::vector<int64_t>{3, 4, 5, 7, 9}));
    EXPECT_EQ(numbers, (std::vector<int64_t>{3, 2, 0, 4, 1}));
    EXPECT_EQ(rowptr, (std::vector<int32_t>{0, 2, 4, 8}));
    EXPECT_EQ(col, (std::vector<int32_t>{-1, -1, 4, 2, 3, 4, 1, 3}));
  }
  const int64_t last = at(sums) + 10 * 8, total = at(first) + 2 * 8;
  cpu_sample("sample_advance", 3,
             std::vector<int64_t>{at(begin), at(nodes), at(edges), at(fresh), at(drawn), total, last}, true);
  EXPECT_EQ((std::vector<int64_t>{begin[0], nodes[0], edges[0], fresh[0], drawn[0]}),
            (std::vector<int64_t>{3, 5, 8, 2, 6}));
}

TEST(SampleKernels, LaborBoundsAreThoseOfTheCore) {
  RandomStream random(1, 2);
  for (int i = 0; i < 20000; ++i) {
    const auto degree = static_cast<int64_t>(2 + (random.next64() >> (2 + random.below(61))));
    const auto fanout = static_cast<int64_t>(1 + random.below(static_cast<uint64_t>(degree) - 1));
    ASSERT_EQ(kernels::labor_bound(degree, fanout), labor_bound(degree, fanout)) << degree << " " << fanout;
  }
}

TEST(SampleKernels, FindRowsAsTheHostDoes) {
  // Nodes of a batch in its order, and ascending with the place of each; behind them room for two more.
  const std::vector<int64_t> batch{130, 2, 64, 199, 0, 65, 127};
  const std::vector<int64_t> ids{0, 2, 64, 65, 127, 130, 199, kernels::kNone, kernels::kNone};
  const std::vector<int64_t> local{4, 1, 2, 5, 6, 0, 3, kernels::kNone, kernels::kNone};
  const auto budget = Budget::create(1 << 20);
  const std::vector<int64_t> cached{0, 1, 64, 127, 130, 198}, none;
  const HotIndex index(*budget, 200, cached, none), empty(*budget, 200, none, none);
  const std::vector<int32_t> tiers{-1, 0, 1, -2, 2, 3};  // nodes 0 and 127 are on the device
  for (const HotIndex* from : {&index, &empty}) {
    for (const bool backwards : {false, true}) {
      Misses misses;
      const Hits hits = find_hot_rows(*from, batch.data(), batch.size(), misses);
      std::vector<uint64_t> expected(batch.size());
      for (size_t i = 0; i < batch.size(); ++i) expected[i] = uint64_t{2} << 56 | i;
      int64_t in_host = 0;
      for (size_t i = 0; i < hits.rows.size(); ++i) {
        const int32_t tier = tiers[static_cast<size_t>(hits.rows[i])];
        expected[static_cast<size_t>(hits.positions[i])] =
            tier < 0 ? static_cast<uint64_t>(-1 - tier) : uint64_t{1} << 56 | static_cast<uint64_t>(tier);
        in_host += tier >= 0;
      }
      std::vector<uint64_t> place(batch.size());
      std::vector<int64_t> marks(9, -1), missing(misses.ids.size()), counts(2, -1);
      std::vector<int32_t> positions(misses.ids.size());
      const auto blocks = reinterpret_cast<int64_t>(from->blocks().data());
      cpu_sample("sample_look_up", 2,
                 std::vector<int64_t>{blocks, reinterpret_cast<int64_t>(tiers.data()), 9, at(ids), at(local),
                                      reinterpret_cast<int64_t>(place.data()), at(marks)},
                 backwards);
      std::partial_sum(marks.begin(), marks.end(), marks.begin());
      cpu_sample("sample_list_missing", 2,
                 std::vector<int64_t>{9, at(ids), at(local), at(marks), at(missing),
                                      reinterpret_cast<int64_t>(positions.data()), at(counts)},
                 backwards);
      EXPECT_EQ(place, expected);
      EXPECT_EQ(missing, misses.ids);
      EXPECT_EQ(positions, misses.positions);
      EXPECT_EQ(counts, (std::vector<int64_t>{static_cast<int64_t>(misses.ids.size()), in_host}));
    }
  }
}

TEST(SampleKernels, UnknownEntriesAreRefused) {
  EXPECT_THROW(cpu_sample("sample_nothing", 1, {}, false), Error);
  EXPECT_THROW(cpu_sample("sample_draw", 1, {}, false), Error);
}

}  // namespace
}  // namespace outcrop
