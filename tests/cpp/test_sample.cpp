// The sampling kernels' code against the core's draws, in buffers without a byte to spare (for sanitizers).
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "graph/draw.h"
#include "kernels/sample.h"
#include "twin/sample.h"

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
std::vector<int64_t> drawn_by_twin(const Hop& hop, uint64_t key, int64_t fanout, bool replace, int64_t warps,
                                   bool backwards) {
  const size_t n = hop.nodes.size();
  const auto rows = static_cast<int64_t>(n), edges = static_cast<int64_t>(hop.indices.size());
  std::vector<int64_t> start(n), degree(n), taken(n), first(n + 1), wrong(1);
  const std::vector<int64_t> count{at(hop.indptr), edges,     at(hop.nodes), rows,      fanout,
                                   replace,        at(start), at(degree),    at(taken), at(wrong)};
  twin_sample("sample_count", warps, count, backwards);
  std::partial_sum(taken.begin(), taken.end(), first.begin() + 1);
  const auto total = static_cast<size_t>(first.back());
  std::vector<int64_t> drawn(total), neighbours(total, -1);
  const std::vector<int64_t> draw{
      static_cast<int64_t>(key), at(hop.nodes), rows, fanout, replace, at(degree), at(first), at(drawn)};
  twin_sample("sample_draw", warps, draw, backwards);
  const std::vector<int64_t> fetch{at(hop.indices), edges,     rows,      fanout,         replace,  at(start),
                                   at(degree),      at(first), at(drawn), at(neighbours), at(wrong)};
  twin_sample("sample_fetch_64", warps, fetch, backwards);
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
        EXPECT_EQ(drawn_by_twin(hop, key, fanout, replace, 3, key % 2), expected) << fanout << " " << key;
      }
    }
  }
}

TEST(SampleKernels, LaborBoundsAreThoseOfTheCore) {
  RandomStream random(1, 2);
  for (int i = 0; i < 20000; ++i) {
    const auto degree = static_cast<int64_t>(2 + (random.next64() >> (2 + random.below(61))));
    const auto fanout = static_cast<int64_t>(1 + random.below(static_cast<uint64_t>(degree) - 1));
    ASSERT_EQ(kernels::labor_bound(degree, fanout), labor_bound(degree, fanout)) << degree << " " << fanout;
  }
}

TEST(SampleKernels, UnknownEntriesAreRefused) {
  EXPECT_THROW(twin_sample("sample_nothing", 1, {}, false), Error);
  EXPECT_THROW(twin_sample("sample_draw", 1, {}, false), Error);
}

}  // namespace
}  // namespace outcrop
