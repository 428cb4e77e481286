// expand_rows against the obvious way: a second buffer.
#include "base/checksum.h"
#include "io_test_util.h"
#include "pack/assemble.h"

namespace outcrop::testing {
namespace {

struct Case {
  size_t rows, row_bytes;
  double cached_share;
};

class ExpandRows : public ::testing::TestWithParam<Case> {};

TEST_P(ExpandRows, PutsEveryPackedRowInItsPlace) {
  const auto [rows, row_bytes, share] = GetParam();
  std::mt19937_64 random(rows * 31 + row_bytes);
  for (unsigned threads : {1u, 2u, 4u}) {
    WorkerPool workers(threads);
    std::vector<int64_t> cached;
    for (size_t i = 0; i < rows; ++i)
      if (std::bernoulli_distribution(share)(random)) cached.push_back(static_cast<int64_t>(i));
    BytesVector x = random_bytes(rows * row_bytes, random());
    const size_t packed = rows - cached.size();
    const BytesVector source(x.begin() + static_cast<ptrdiff_t>(cached.size() * row_bytes), x.end());
    const uint32_t crc = expand_rows(workers, x.data(), rows, row_bytes, cached, true);
    EXPECT_EQ(crc, crc32c_table(source.data(), source.size()));
    size_t next = 0, k = 0;
    for (size_t i = 0; i < rows; ++i) {
      if (k < cached.size() && static_cast<size_t>(cached[k]) == i) {
        ++k;
        continue;
      }
      ASSERT_EQ(std::memcmp(&x[i * row_bytes], &source[next * row_bytes], row_bytes), 0) << "row " << i;
      ++next;
    }
    EXPECT_EQ(next, packed);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpandRows,
                         ::testing::Values(Case{1, 512, 0.0}, Case{1, 512, 1.0}, Case{20000, 512, 0.15},
                                           Case{20000, 512, 0.001}, Case{20000, 7, 0.5},
                                           Case{300000, 4, 0.02}, Case{3000, 5732, 0.9},
                                           Case{20000, 400, 0.0}, Case{9000, 512, 1.0}));

TEST(ExpandRowsRefuses, PositionsThatDoNotRise) {
  WorkerPool workers(1);
  std::vector<std::byte> x(40);
  for (const std::vector<int64_t>& cached : {std::vector<int64_t>{2, 2}, {3, 1}, {-1}, {10}})
    EXPECT_THROW(expand_rows(workers, x.data(), 10, 4, cached, false), Error);
}

TEST(FillRowsRefuses, RowsOfACacheThatHasNone) {
  std::vector<std::byte> x(40);
  const std::vector<int32_t> positions(20, 1), rows(20, INT32_MAX);
  EXPECT_THROW(fill_rows(x.data(), 10, 4, positions, rows, nullptr, 0, 4), Error);
}

}  // namespace
}  // namespace outcrop::testing
