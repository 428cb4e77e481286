// Rows in few bits: written and read at every width around a tile, beside bytes that must stay, by several threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "io/quantised.h"

namespace outcrop {
namespace {

std::vector<float> some_values(size_t n) {
  std::vector<float> values(n);
  uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(static_cast<int32_t>(state)) * 1e-6F;
  }
  return values;
}

void round_trip(const QuantisedShape& shape, size_t n, WorkerPool& workers) {
  constexpr std::byte kBeyond{0xA5};
  const std::vector<float> values = some_values(n * shape.columns);
  std::vector<float> scale(shape.columns), offset(shape.columns);
  for (size_t j = 0; j < shape.columns; ++j) {
    float least = std::numeric_limits<float>::infinity(), most = -least;
    for (size_t i = 0; i < n; ++i) {
      least = std::min(least, values[i * shape.columns + j]);
      most = std::max(most, values[i * shape.columns + j]);
    }
    const Scale found = scale_of(least, most, shape.most());
    scale[j] = found.scale;
    offset[j] = found.offset;
  }
  const ColumnScales columns = shape.by_row ? ColumnScales{} : ColumnScales{scale.data(), offset.data()};
  std::vector<std::byte> rows(n * shape.row_bytes() + 1, kBeyond);
  quantise_rows(shape, values.data(), n, columns, rows.data());
  EXPECT_EQ(rows.back(), kBeyond);
  rows.pop_back();
  rows.shrink_to_fit();  // so that a sanitizer sees a read beyond the last row
  std::vector<float> found(n * shape.columns);
  dequantise_rows(workers, shape, rows.data(), n, columns, found.data());
  for (size_t i = 0; i < n; ++i) {
    float least = std::numeric_limits<float>::infinity(), most = -least;
    for (size_t j = 0; j < shape.columns; ++j) {
      least = std::min(least, values[i * shape.columns + j]);
      most = std::max(most, values[i * shape.columns + j]);
    }
    for (size_t j = 0; j < shape.columns; ++j) {
      const double step = shape.by_row ? scale_of(least, most, shape.most()).scale : scale[j];
      const float value = values[i * shape.columns + j];
      EXPECT_NEAR(found[i * shape.columns + j], value, 0.5001 * step + std::abs(value) * 1e-6 + 1e-3)
          << i << " " << j;
    }
  }
}

TEST(Quantised, RoundTripAtEveryWidth) {
  WorkerPool workers(3);
  for (const size_t columns : {1, 2, 3, 8, 15, 511, 512, 513, 1025})
    for (const unsigned bits : {4U, 8U})
      for (const bool by_row : {false, true}) round_trip({columns, bits, by_row}, 70, workers);
}

TEST(Quantised, RowBytes) {
  EXPECT_EQ((QuantisedShape{5, 8, false}.row_bytes()), 5U);
  EXPECT_EQ((QuantisedShape{5, 4, false}.row_bytes()), 3U);
  EXPECT_EQ((QuantisedShape{5, 4, true}.row_bytes()), 11U);
}

TEST(Quantised, ScalesOfOddRanges) {
  constexpr float kMost = std::numeric_limits<float>::max(), kTiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(scale_of(3.0F, 3.0F, 255).scale, 0.0F);
  EXPECT_FALSE(std::signbit(scale_of(-0.0F, -0.0F, 255).offset));
  EXPECT_EQ(scale_of(0.0F, kTiny, 255).scale, kTiny);  // never 0 where there is a range
  EXPECT_EQ(scale_of(0.0F, 200 * kTiny, 15).scale, 14 * kTiny);
  for (const float least : {-kMost, 0.0F, kMost / 2}) {
    const Scale found = scale_of(least, kMost, 255);
    EXPECT_TRUE(std::isfinite(static_cast<float>(255.0 * found.scale + found.offset)));
  }
}

// Rows of 8 or 4 bits whose own scale was changed, wherever the work is cut between threads: the first is told.
TEST(Quantised, TellsTheFirstRowWithoutFiniteValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kMost = std::numeric_limits<float>::max();
  const float nan = std::nanf("");
  const Scale wrong[] = {{nan, 0},       {0, nan},        {kInfinity, 0},
                         {0, kInfinity}, {1, -kInfinity}, {-kInfinity, kInfinity},
                         {kMost, 0},     {-1, -kMost * 2}};
  WorkerPool workers(3);
  for (const unsigned bits : {4U, 8U}) {
    const QuantisedShape shape{2000, bits, true};
    constexpr size_t kRows = 200;
    const std::vector<float> values = some_values(kRows * shape.columns);
    std::vector<std::byte> right(kRows * shape.row_bytes());
    quantise_rows(shape, values.data(), kRows, {}, right.data());
    std::vector<float> out(values.size());
    EXPECT_EQ(dequantise_rows(workers, shape, right.data(), kRows, {}, out.data()), kRows);
    for (const Scale& by : wrong)
      for (const size_t first : {size_t{0}, size_t{1}, size_t{77}, kRows - 1}) {
        std::vector<std::byte> rows = right;
        for (const size_t row : {first, (first + kRows) / 2, kRows - 1})
          std::memcpy(rows.data() + row * shape.row_bytes(), &by, sizeof by);
        EXPECT_EQ(dequantise_rows(workers, shape, rows.data(), kRows, {}, out.data()), first);
      }
    const Scale largest{kMost / static_cast<float>(shape.most()) / 2, kMost / 2};
    std::memcpy(right.data(), &largest, sizeof largest);
    EXPECT_EQ(dequantise_rows(workers, shape, right.data(), kRows, {}, out.data()), kRows);
  }
  const float nothing = nan;  // scales of columns are looked at where they are opened
  const std::byte code{};
  float value = 0;
  EXPECT_EQ(dequantise_rows(workers, {1, 8, false}, &code, 1, {&nothing, &nothing}, &value), 1U);
}

TEST(Quantised, RefusesWhatIsNoShape) {
  WorkerPool workers(1);
  const float scale = 1;
  float out = 0;
  const std::byte row{};
  EXPECT_THROW(dequantise_rows(workers, {1, 3, false}, &row, 1, {&scale, &scale}, &out), Error);
  EXPECT_THROW(dequantise_rows(workers, {0, 8, false}, &row, 1, {&scale, &scale}, &out), Error);
  EXPECT_THROW(dequantise_rows(workers, {1, 8, true}, &row, 1, {&scale, &scale}, &out), Error);
  EXPECT_THROW(dequantise_rows(workers, {1, 8, false}, &row, 1, {}, &out), Error);
}

}  // namespace
}  // namespace outcrop
