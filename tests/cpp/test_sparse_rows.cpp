// Rows that store only what is not zero: every size of values and of column numbers, beside bytes that must stay; rows that
// lie write nothing beyond their own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "io/sparse_rows.h"

namespace outcrop {
namespace {

constexpr std::byte kBeyond{0xA5};

// Rows of which row i has i % (most + 1) values that are not zero.
std::vector<std::byte> some_rows(size_t n, size_t columns, size_t most, unsigned value_bytes) {
  std::vector<std::byte> values(n * columns * value_bytes);
  uint32_t state = 12345;
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < i % (most + 1); ++k) {
      state = state * 1664525U + 1013904223U;
      const size_t column = k * columns / most;
      values[(i * columns + column) * value_bytes + state % value_bytes] =
          static_cast<std::byte>(1 + state % 255);
    }
  return values;
}

void round_trip(size_t columns, size_t most, unsigned value_bytes, bool is_common, WorkerPool& workers) {
  constexpr size_t kRows = 37;
  std::vector<std::byte> values = some_rows(kRows, columns, most, value_bytes);
  if (is_common)
    std::transform(values.begin(), values.end(), values.begin(),
                   [](std::byte b) { return b == std::byte{} ? b : std::byte{3}; });
  const StoredValues found = count_stored(values.data(), kRows, columns, value_bytes);
  ASSERT_EQ(found.most, most);
  SparseShape shape{columns, most, value_bytes, std::nullopt};
  if (is_common && value_bytes == 1) {
    ASSERT_EQ(found.least, 3U);
    ASSERT_EQ(found.largest, 3U);
    shape.common = 3;
  }
  std::vector<std::byte> rows(kRows * shape.row_bytes() + 1, kBeyond);
  ASSERT_EQ(pack_sparse_rows(shape, values.data(), kRows, rows.data()), kRows);
  EXPECT_EQ(rows.back(), kBeyond);
  rows.pop_back();
  rows.shrink_to_fit();  // so that a sanitizer sees a read beyond the last row
  std::vector<std::byte> out(values.size() + 1, kBeyond);
  ASSERT_EQ(unpack_sparse_rows(workers, shape, rows.data(), kRows, out.data()), kRows);
  EXPECT_EQ(out.back(), kBeyond);
  out.pop_back();
  EXPECT_EQ(out, values);
}

TEST(SparseRows, RoundTripOfEveryWidth) {
  WorkerPool one(1), several(3);
  for (const unsigned value_bytes : {1U, 2U, 4U, 8U})
    for (const size_t columns : {1U, 2U, 9U, 255U, 256U, 300U, 65535U, 65536U})
      for (const bool is_common : {false, true})
        for (WorkerPool* workers : {&one, &several})
          round_trip(columns, std::min<size_t>(columns, 5), value_bytes, is_common, *workers);
}

TEST(SparseRows, CountsNothingInZeros) {
  const std::vector<std::byte> values(400);
  const StoredValues found = count_stored(values.data(), 10, 10, 4);
  EXPECT_EQ(found.most, 0U);
  EXPECT_GT(found.least, found.largest);
  EXPECT_EQ(count_stored(values.data(), 0, 10, 4).most, 0U);
}

TEST(SparseRows, LargestBitsAreCounted) {
  const std::vector<std::byte> values(16, std::byte{0xFF});
  const StoredValues found = count_stored(values.data(), 1, 2, 8);
  EXPECT_EQ(found.most, 2U);
  EXPECT_EQ(found.least, UINT64_MAX);
  EXPECT_EQ(found.largest, UINT64_MAX);
}

// Random bytes for rows: whatever they say, only the memory of the row is written, and wrong rows are zeros.
TEST(SparseRows, RowsThatLieWriteNothingElse) {
  WorkerPool workers(1);
  uint32_t state = 1;
  for (const size_t columns : {3U, 200U, 300U, 70000U}) {
    const SparseShape shape{columns, 3, 2, std::nullopt};
    constexpr size_t kRows = 50;
    std::vector<std::byte> rows(kRows * shape.row_bytes());
    for (std::byte& b : rows) {
      state = state * 1664525U + 1013904223U;
      b = static_cast<std::byte>(state >> 24);
    }
    std::vector<std::byte> out(kRows * columns * 2 + 1, kBeyond);
    EXPECT_LT(unpack_sparse_rows(workers, shape, rows.data(), kRows, out.data()), kRows);
    EXPECT_EQ(out.back(), kBeyond);
  }
  const SparseShape shape{300, 2, 1, 7};
  std::vector<std::byte> row(shape.row_bytes()), out(300, kBeyond);
  const std::vector<uint16_t> said{2, 5, 300};
  std::memcpy(row.data(), said.data(), row.size());
  EXPECT_EQ(unpack_sparse_rows(workers, shape, row.data(), 1, out.data()), 0U);
  EXPECT_EQ(out, std::vector<std::byte>(300));
}

TEST(SparseRows, ImpossibleShapesAreRefused) {
  WorkerPool workers(1);
  std::vector<std::byte> rows(64), out(64);
  for (const SparseShape& shape : {SparseShape{0, 1, 4, std::nullopt}, SparseShape{3, 0, 4, std::nullopt},
                                   SparseShape{3, 4, 4, std::nullopt}, SparseShape{3, 1, 3, std::nullopt},
                                   SparseShape{size_t{1} << 32, 1, 4, std::nullopt}}) {
    EXPECT_THROW(unpack_sparse_rows(workers, shape, rows.data(), 1, out.data()), Error);
    EXPECT_THROW(pack_sparse_rows(shape, out.data(), 0, rows.data()), Error);
  }
}

}  // namespace
}  // namespace outcrop
