// Sums of sources by target, against sums in double precision, in buffers without a place to spare (for sanitizers).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "infer/add_sources.h"

namespace outcrop {
namespace {

constexpr float kSlope = 0.2f;

struct Case {
  size_t nodes, width, heads, targets;
  int32_t first;
  bool without_loops;
  std::vector<int32_t> rowptr{0}, col;
  std::vector<float> table, source, target;  // scores: [heads, nodes]
  std::vector<float> with_scores;            // the table with those of sources behind the columns
  std::vector<float> of_targets;             // [heads, targets]

  SourceTable sources() const { return {table.data(), nodes, width, width}; }
  SourceTable scored() const { return {with_scores.data(), nodes, width, width + heads}; }
  TargetLists lists() const { return {rowptr.data(), col.data(), targets, first, without_loops}; }
  HeadScores scores() const { return {of_targets.data(), heads, kSlope}; }
};

std::vector<float> floats(std::mt19937& draw, size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> found(count);
  for (float& value : found) value = 2 * normal(draw);
  return found;
}

Case random_case(std::mt19937& draw, size_t width, size_t heads, size_t longest) {
  Case made;
  made.nodes = 1 + draw() % 700, made.width = width * heads, made.heads = heads;
  made.targets = draw() % (made.nodes + 1);
  made.first = static_cast<int32_t>(draw() % (made.nodes - made.targets + 1));
  made.without_loops = draw() % 2 == 0;
  for (size_t t = 0; t < made.targets; ++t) {
    for (size_t n = draw() % 40 == 0 ? longest : draw() % 20; n > 0; --n) {
      const bool loop = draw() % 8 == 0;
      made.col.push_back(loop ? made.first + static_cast<int32_t>(t)
                              : static_cast<int32_t>(draw() % made.nodes));
    }
    made.rowptr.push_back(static_cast<int32_t>(made.col.size()));
  }
  made.col.shrink_to_fit();
  made.table = floats(draw, made.nodes * made.width);
  made.source = floats(draw, made.nodes * heads);
  made.target = floats(draw, made.nodes * heads);
  for (size_t n = 0; n < made.nodes; ++n) {
    const auto row = made.table.begin() + static_cast<std::ptrdiff_t>(n * made.width);
    made.with_scores.insert(made.with_scores.end(), row, row + static_cast<std::ptrdiff_t>(made.width));
    for (size_t h = 0; h < heads; ++h) made.with_scores.push_back(made.source[h * made.nodes + n]);
  }
  made.with_scores.shrink_to_fit();
  for (size_t h = 0; h < heads; ++h)
    for (size_t t = 0; t < made.targets; ++t)
      made.of_targets.push_back(made.target[h * made.nodes + static_cast<size_t>(made.first) + t]);
  made.of_targets.shrink_to_fit();
  return made;
}

// Calls visit(source) for the edges of a target that count.
template <class Visit>
void edges_of(const Case& made, size_t t, const Visit& visit) {
  for (int32_t i = made.rowptr[t]; i < made.rowptr[t + 1]; ++i) {
    const int32_t source = made.col[static_cast<size_t>(i)];
    if (!made.without_loops || source != made.first + static_cast<int32_t>(t))
      visit(static_cast<size_t>(source));
  }
}

TEST(AddSources, equals_sums_in_order) {
  std::mt19937 draw(1);
  WorkerPool one(1), three(3);
  for (size_t round = 0; round < 150; ++round) {
    const Case made = random_case(draw, 1 + round % 75 + (round % 10 == 0 ? 200 : 0), 1, 100);
    const std::vector<float> before = floats(draw, made.targets * made.width);
    std::vector<float> found = before, want = before, again = before;
    add_sources(made.sources(), made.lists(), found.data(), three);
    add_sources(made.sources(), made.lists(), again.data(), one);
    for (size_t t = 0; t < made.targets; ++t)
      edges_of(made, t, [&](size_t source) {
        for (size_t i = 0; i < made.width; ++i)
          want[t * made.width + i] += made.table[source * made.width + i];
      });
    EXPECT_EQ(found, want);
    EXPECT_EQ(again, want);
  }
}

TEST(AddSources, a_table_without_columns_or_rows_adds_nothing) {
  WorkerPool workers(2);
  const std::vector<int32_t> rowptr{0, 0}, col;
  std::vector<float> sums{7};
  add_sources({nullptr, 0, 1, 1}, {rowptr.data(), col.data(), 0, 0, false}, sums.data(), workers);
  add_sources({nullptr, 5, 0, 0}, {rowptr.data(), col.data(), 1, 0, false}, sums.data(), workers);
  EXPECT_EQ(sums, std::vector<float>{7});
}

struct Totals {
  std::vector<float> largest, mass, total;
  SoftmaxTotals out() { return {largest.data(), mass.data(), total.data()}; }
  bool operator==(const Totals&) const = default;
};

// Those of the edge of each target from itself.
Totals begun(const Case& made) {
  Totals totals;
  for (size_t t = 0; t < made.targets; ++t) {
    const size_t own = static_cast<size_t>(made.first) + t;
    for (size_t h = 0; h < made.heads; ++h) {
      const float sum = made.source[h * made.nodes + own] + made.target[h * made.nodes + own];
      totals.largest.push_back(sum > 0 ? sum : kSlope * sum);
      totals.mass.push_back(1);
    }
    for (size_t i = 0; i < made.width; ++i) totals.total.push_back(made.table[own * made.width + i]);
  }
  return totals;
}

TEST(AddSources, begins_with_the_edge_from_itself) {
  std::mt19937 draw(4);
  WorkerPool workers(3);
  for (size_t round = 0; round < 40; ++round) {
    const Case made = random_case(draw, 1 + round % 20, 1 + round % 4, 0);
    const Totals want = begun(made);
    Totals found = want;
    for (std::vector<float>* part : {&found.largest, &found.mass, &found.total})
      std::fill(part->begin(), part->end(), 7.0f);
    begin_softmax(made.scored(), static_cast<size_t>(made.first), made.targets, made.scores(), found.out(),
                  workers);
    EXPECT_TRUE(found == want);
  }
}

TEST(AddSources, equals_the_softmax_of_all_scores) {
  std::mt19937 draw(2);
  WorkerPool one(1), three(3);
  for (size_t round = 0; round < 80; ++round) {
    const size_t heads = 1 + draw() % 4, each = 1 + round % 70;
    const Case made = random_case(draw, each, heads, 1300);
    Totals found = begun(made), again = found;
    add_sources_by_softmax(made.scored(), made.lists(), made.scores(), found.out(), three);
    add_sources_by_softmax(made.scored(), made.lists(), made.scores(), again.out(), one);
    EXPECT_TRUE(found == again);
    for (size_t t = 0; t < made.targets; ++t) {
      const size_t own = static_cast<size_t>(made.first) + t;
      std::vector<size_t> sources{own};
      edges_of(made, t, [&](size_t source) { sources.push_back(source); });
      for (size_t h = 0; h < heads; ++h) {
        std::vector<double> mean(each), scores;
        double mass = 0;
        for (size_t source : sources) {
          const double sum =
              double{made.source[h * made.nodes + source]} + double{made.target[h * made.nodes + own]};
          scores.push_back(std::max(sum, double{kSlope} * sum));
        }
        const double largest = *std::max_element(scores.begin(), scores.end());
        for (size_t k = 0; k < sources.size(); ++k) {
          const double weight = std::exp(scores[k] - largest);
          mass += weight;
          for (size_t i = 0; i < each; ++i)
            mean[i] += weight * double{made.table[sources[k] * made.width + h * each + i]};
        }
        const size_t at = t * heads + h;
        EXPECT_NEAR(found.largest[at], largest, 1e-5);
        EXPECT_NEAR(found.mass[at] / mass, 1, 1e-5);
        for (size_t i = 0; i < each; ++i)
          EXPECT_NEAR(found.total[t * made.width + h * each + i] / found.mass[at], mean[i] / mass, 1e-4);
      }
    }
  }
}

// A list that comes in pieces of whole chunks gives the bits of the list at once.
TEST(AddSources, pieces_of_a_list_change_nothing) {
  std::mt19937 draw(3);
  WorkerPool workers(1);
  for (const bool without_loops : {false, true}) {
    Case made = random_case(draw, 9, 2, 0);
    made.targets = 1, made.first = 0, made.without_loops = without_loops;
    made.col.resize(4096 + 512 + 77);
    for (int32_t& source : made.col)
      source = draw() % 3 == 0 ? 0 : static_cast<int32_t>(draw() % made.nodes);  // many loops
    made.rowptr = {0, static_cast<int32_t>(made.col.size())};
    made.of_targets = {made.target[0], made.target[made.nodes]};
    Totals whole = begun(made), pieces = whole;
    std::vector<float> sum(made.width), sum_of_pieces(made.width);
    add_sources(made.sources(), made.lists(), sum.data(), workers);
    add_sources_by_softmax(made.scored(), made.lists(), made.scores(), whole.out(), workers);
    for (size_t at = 0; at < made.col.size();) {
      const size_t n = std::min<size_t>(at == 0 ? 512 : 4096, made.col.size() - at);
      const std::vector<int32_t> rowptr{0, static_cast<int32_t>(n)};
      const TargetLists piece{rowptr.data(), made.col.data() + at, 1, 0, without_loops};
      add_sources(made.sources(), piece, sum_of_pieces.data(), workers);
      add_sources_by_softmax(made.scored(), piece, made.scores(), pieces.out(), workers);
      at += n;
    }
    EXPECT_EQ(sum, sum_of_pieces);
    EXPECT_TRUE(whole == pieces);
  }
}

}  // namespace
}  // namespace outcrop
