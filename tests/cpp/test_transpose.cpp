// Edges by their sources, against a stable sort, in buffers without a place to spare (for sanitizers).
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "sampling/transpose.h"

namespace outcrop {
namespace {

struct Csr {
  std::vector<int32_t> rowptr, col;
};

Csr random_csr(std::mt19937& draw, size_t targets, int32_t sources) {
  Csr csr{{0}, {}};
  for (size_t t = 0; t < targets; ++t) {
    for (unsigned degree = sources == 0 ? 0 : draw() % 5; degree > 0; --degree)
      csr.col.push_back(static_cast<int32_t>(draw() % static_cast<unsigned>(sources)));
    csr.rowptr.push_back(static_cast<int32_t>(csr.col.size()));
  }
  return csr;
}

struct Turned {
  std::vector<int32_t> rowptr, row;
  std::vector<int64_t> order;
  Turned(size_t sources, size_t edges) : rowptr(sources + 1, -1), row(edges, -1), order(edges, -1) {}
  TransposedCsr out() { return {rowptr, row, order}; }
};

TEST(Transpose, equals_a_stable_sort_by_source) {
  std::mt19937 draw(1);
  for (int round = 0; round < 200; ++round) {
    const auto sources = static_cast<int32_t>(draw() % 20);
    const Csr csr = random_csr(draw, draw() % 20, sources);
    Turned turned(static_cast<size_t>(sources), csr.col.size());
    transpose_csr(csr.rowptr, csr.col, turned.out());
    std::vector<int64_t> order(csr.col.size());
    std::iota(order.begin(), order.end(), 0);
    const auto col = [&](int64_t edge) { return csr.col[static_cast<size_t>(edge)]; };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return col(a) < col(b); });
    EXPECT_EQ(turned.order, order);
    for (size_t i = 0; i < order.size(); ++i) {
      const auto after = std::upper_bound(csr.rowptr.begin(), csr.rowptr.end(), order[i]);
      EXPECT_EQ(turned.row[i], after - csr.rowptr.begin() - 1);
    }
    for (int32_t s = 0; s <= sources; ++s)
      EXPECT_EQ(turned.rowptr[static_cast<size_t>(s)],
                std::count_if(csr.col.begin(), csr.col.end(), [&](int32_t c) { return c < s; }));
  }
}

TEST(Transpose, refuses_what_is_no_csr_matrix) {
  const auto refused = [](const std::vector<int32_t>& rowptr, const std::vector<int32_t>& col, size_t sources,
                          size_t room) {
    Turned turned(sources, room);
    EXPECT_THROW(transpose_csr(rowptr, col, turned.out()), Error);
  };
  refused({0, 2, 1, 3}, {0, 0, 0}, 1, 3);  // falls
  refused({0, 2}, {0, 0, 0}, 1, 3);        // ends early
  refused({1, 3}, {0, 0, 0}, 1, 3);        // begins late
  refused({}, {}, 1, 0);
  refused({0, 1}, {1}, 1, 1);  // no source
  refused({0, 1}, {-1}, 1, 1);
  refused({0, 1}, {0}, 1, 0);  // no room
  refused({0, 1}, {0}, 0, 1);
}

}  // namespace
}  // namespace outcrop
