#include "io/quantised.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/simd.h"

namespace outcrop {
namespace {

constexpr size_t kGrainBytes = size_t{64} << 10;  // of values that a thread takes at least
constexpr size_t kTile = 512;                     // codes that are unpacked at a time, an even number

double value_of(double code, Scale by) { return code * by.scale + by.offset; }

// Whether all codes have finite values. Those between 0 and the largest lie between its value and the offset, and an offset
// that is not finite leaves no value that is.
bool is_finite(Scale by, unsigned largest) {
  return std::isfinite(static_cast<float>(value_of(largest, by)));
}

// Codes of 4 bits, from `codes` on, to a byte each.
OUTCROP_INLINE void unpack(const uint8_t* codes, size_t n, uint8_t* out) {
  const size_t pairs = n / 2;
  for (size_t i = 0; i < pairs; ++i) {
    out[2 * i] = codes[i] & 15;
    out[2 * i + 1] = codes[i] >> 4;
  }
  if (n % 2 != 0) out[n - 1] = codes[pairs] & 15;
}

OUTCROP_INLINE void values_by_row(const uint8_t* codes, size_t n, double scale, double offset, float* out) {
  for (size_t j = 0; j < n; ++j)
    out[j] = static_cast<float>(static_cast<double>(static_cast<int>(codes[j])) * scale + offset);
}

OUTCROP_INLINE void values_by_column(const uint8_t* codes, size_t n, const double* scale,
                                     const double* offset, float* out) {
  for (size_t j = 0; j < n; ++j)
    out[j] = static_cast<float>(static_cast<double>(static_cast<int>(codes[j])) * scale[j] + offset[j]);
}

// Scales of columns in double, [columns] each.
struct WideScales {
  const double* scale;
  const double* offset;
};

// Returns the first row without finite values, `end` where there is none.
OUTCROP_EVERY_ISA size_t dequantise_block(const QuantisedShape& shape, const uint8_t* rows, size_t begin,
                                          size_t end, const WideScales& wide, float* out) {
  const size_t row_bytes = shape.row_bytes(), head = shape.head_bytes();
  uint8_t tile[kTile];
  size_t wrong = end;
  for (size_t i = begin; i < end; ++i) {
    const uint8_t* row = rows + i * row_bytes;
    Scale by{};
    if (shape.by_row) std::memcpy(&by, row, sizeof by);
    if (!is_finite(by, shape.most())) wrong = std::min(wrong, i);
    const uint8_t* codes = row + head;
    float* to = out + i * shape.columns;
    for (size_t first = 0; first < shape.columns; first += kTile) {
      const size_t n = std::min(kTile, shape.columns - first);
      const uint8_t* from = tile;
      if (shape.bits == 8)
        from = codes + first;
      else
        unpack(codes + first / 2, n, tile);
      if (shape.by_row)
        values_by_row(from, n, by.scale, by.offset, to + first);
      else
        values_by_column(from, n, wide.scale + first, wide.offset + first, to + first);
    }
  }
  return wrong;
}

void check(const QuantisedShape& shape, const ColumnScales& columns) {
  if (shape.bits != 8 && shape.bits != 4)
    throw Error(ErrorKind::argument, "codes of " + std::to_string(shape.bits) + " bits are none of 4 and 8");
  if (shape.columns == 0) throw Error(ErrorKind::argument, "rows without columns cannot be quantised");
  if (shape.by_row != (columns.scale == nullptr) || shape.by_row != (columns.offset == nullptr))
    throw Error(ErrorKind::argument,
                "scales of columns are given for rows that have their own, or not given");
}

Scale scale_of_row(const float* values, size_t columns, unsigned largest) {
  const auto [least, most] = std::minmax_element(values, values + columns);
  return scale_of(*least, *most, largest);
}

uint8_t code_of(float value, Scale by, unsigned largest) {
  if (by.scale == 0.0F) return 0;
  const double code = std::nearbyint((static_cast<double>(value) - by.offset) / by.scale);
  return static_cast<uint8_t>(std::clamp(code, 0.0, static_cast<double>(largest)));
}

}  // namespace

Scale scale_of(float least, float most, unsigned largest_code) {
  if (!(least <= most)) return {};    // no value was seen
  const float offset = least + 0.0F;  // no negative zero
  const double range = static_cast<double>(most) - least;
  if (range == 0.0) return {0.0F, offset};
  const double wanted = range / largest_code;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  auto scale = static_cast<float>(wanted);
  if (scale < std::numeric_limits<float>::min() && static_cast<double>(scale) < wanted)
    scale = std::nextafter(scale, kInfinity);
  if (!is_finite({scale, offset}, largest_code)) scale = std::nextafter(scale, 0.0F);
  return {scale, offset};
}

void widen_ranges(const float* values, size_t n, size_t columns, float* least, float* most) {
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < columns; ++j) {
      const float value = values[i * columns + j];
      least[j] = std::min(least[j], value);
      most[j] = std::max(most[j], value);
    }
}

void quantise_rows(const QuantisedShape& shape, const float* values, size_t n, const ColumnScales& columns,
                   std::byte* out) {
  check(shape, columns);
  const size_t row_bytes = shape.row_bytes();
  for (size_t i = 0; i < n; ++i) {
    const float* row = values + i * shape.columns;
    auto* to = reinterpret_cast<uint8_t*>(out + i * row_bytes);
    Scale by{};
    if (shape.by_row) {
      by = scale_of_row(row, shape.columns, shape.most());
      std::memcpy(to, &by, sizeof by);
    }
    to += shape.head_bytes();
    for (size_t j = 0; j < shape.columns; ++j) {
      if (!shape.by_row) by = {columns.scale[j], columns.offset[j]};
      const uint8_t code = code_of(row[j], by, shape.most());
      if (shape.bits == 8)
        to[j] = code;
      else if (j % 2 == 0)
        to[j / 2] = code;
      else
        to[j / 2] = static_cast<uint8_t>(to[j / 2] | code << 4);
    }
  }
}

size_t dequantise_rows(WorkerPool& workers, const QuantisedShape& shape, const std::byte* rows, size_t n,
                       const ColumnScales& columns, float* out) {
  check(shape, columns);
  std::vector<double> scale, offset;
  if (!shape.by_row) {
    scale.assign(columns.scale, columns.scale + shape.columns);
    offset.assign(columns.offset, columns.offset + shape.columns);
  }
  const WideScales wide{scale.data(), offset.data()};
  const auto* bytes = reinterpret_cast<const uint8_t*>(rows);
  std::atomic<size_t> wrong = n;
  workers.split(n, std::max<size_t>(kGrainBytes / (shape.columns * sizeof(float)), 1),
                [&](size_t begin, size_t end) {
                  const size_t found = dequantise_block(shape, bytes, begin, end, wide, out);
                  if (found == end) return;
                  size_t least = wrong.load();
                  while (found < least && !wrong.compare_exchange_weak(least, found)) {
                  }
                });
  return wrong;
}

}  // namespace outcrop
