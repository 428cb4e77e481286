#include "io/sparse_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/simd.h"

namespace outcrop {
namespace {

constexpr size_t kGrainBytes = size_t{64} << 10;  // of values that a thread takes at least

template <class T>
T at(const std::byte* from, size_t i) {
  T found;
  std::memcpy(&found, from + i * sizeof(T), sizeof(T));
  return found;
}

template <class T>
void put(std::byte* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

// Calls `use` with a value of the unsigned type that has so many bytes.
template <class Use>
auto with_unsigned(unsigned bytes, Use use) {
  switch (bytes) {
    case 1:
      return use(uint8_t{});
    case 2:
      return use(uint16_t{});
    case 4:
      return use(uint32_t{});
    case 8:
      return use(uint64_t{});
    default:
      throw Error(ErrorKind::argument,
                  "values of " + std::to_string(bytes) + " bytes are none of 1, 2, 4, 8");
  }
}

// Calls `use` with a value of the type of columns and one of the type of values.
template <class Use>
auto with_types(const SparseShape& shape, Use use) {
  return with_unsigned(shape.column_bytes(), [&](auto column) {
    return with_unsigned(shape.value_bytes, [&](auto value) { return use(column, value); });
  });
}

void check(const SparseShape& shape) {
  if (shape.columns == 0 || shape.columns > UINT32_MAX)
    throw Error(ErrorKind::argument, std::to_string(shape.columns) + " columns cannot be stored sparse");
  if (shape.stored == 0 || shape.stored > shape.columns)
    throw Error(ErrorKind::argument, "rows of " + std::to_string(shape.columns) + " columns cannot store " +
                                         std::to_string(shape.stored) + " values");
}

template <class T>
OUTCROP_INLINE void count_row(const std::byte* row, size_t columns, size_t& stored, T& least, T& largest) {
  size_t count = 0;
  T low = least, high = largest;  // `low` is one less, so that 0 is no lower than any
  for (size_t j = 0; j < columns; ++j) {
    T value;
    std::memcpy(&value, row + j * sizeof(T), sizeof(T));
    count += value != 0;
    low = std::min(low, static_cast<T>(value - 1));
    high = std::max(high, value);
  }
  stored = count;
  least = low;
  largest = high;
}

template <class T>
StoredValues count_as(const std::byte* values, size_t n, size_t columns) {
  StoredValues found;
  T least = static_cast<T>(-1), largest = 0;
  for (size_t i = 0; i < n; ++i) {
    size_t stored;
    count_row<T>(values + i * columns * sizeof(T), columns, stored, least, largest);
    found.most = std::max(found.most, stored);
  }
  if (largest != 0) {
    found.least = uint64_t{least} + 1;
    found.largest = largest;
  }
  return found;
}

// Returns whether the row has room.
template <class C, class T>
bool pack_row(const SparseShape& shape, const std::byte* values, std::byte* row) {
  std::byte* columns = row + sizeof(C);
  std::byte* stored = columns + shape.stored * sizeof(C);
  size_t count = 0;
  for (size_t j = 0; j < shape.columns; ++j) {
    const T value = at<T>(values, j);
    if (value == 0) continue;
    if (count == shape.stored || (shape.common && value != *shape.common)) return false;
    put(columns, count, static_cast<C>(j));
    if (!shape.common) put(stored, count, value);
    ++count;
  }
  put(row, 0, static_cast<C>(count));
  return true;
}

// Returns the number of values that the row stores; more than there can be where it is no row that an import writes.
template <class C>
size_t checked_count(const SparseShape& shape, const std::byte* row) {
  const size_t count = at<C>(row, 0), wrong = shape.stored + 1;
  if (count > shape.stored) return wrong;
  const std::byte* columns = row + sizeof(C);
  bool rises = true;
  for (size_t i = 1; i < count; ++i) rises &= at<C>(columns, i - 1) < at<C>(columns, i);
  if (!rises || (count != 0 && at<C>(columns, count - 1) >= shape.columns)) return wrong;
  return count;
}

// Returns the first row that is wrong, `end` where there is none.
template <class C, class T>
size_t unpack_block(const SparseShape& shape, const std::byte* rows, size_t begin, size_t end,
                    std::byte* out) {
  const size_t row_bytes = shape.row_bytes(), out_bytes = shape.columns * sizeof(T);
  const T common = static_cast<T>(shape.common.value_or(0));
  size_t wrong = end;
  for (size_t i = begin; i < end; ++i) {
    const std::byte* row = rows + i * row_bytes;
    std::byte* to = out + i * out_bytes;
    std::memset(to, 0, out_bytes);
    const size_t count = checked_count<C>(shape, row);
    if (count > shape.stored) {
      wrong = std::min(wrong, i);
      continue;
    }
    const std::byte* columns = row + sizeof(C);
    const std::byte* values = columns + shape.stored * sizeof(C);
    if (shape.common)
      for (size_t k = 0; k < count; ++k) put(to, at<C>(columns, k), common);
    else
      for (size_t k = 0; k < count; ++k) put(to, at<C>(columns, k), at<T>(values, k));
  }
  return wrong;
}

}  // namespace

StoredValues count_stored(const std::byte* values, size_t n, size_t columns, unsigned value_bytes) {
  return with_unsigned(value_bytes,
                       [&](auto value) { return count_as<decltype(value)>(values, n, columns); });
}

size_t pack_sparse_rows(const SparseShape& shape, const std::byte* values, size_t n, std::byte* out) {
  check(shape);
  const size_t row_bytes = shape.row_bytes();
  std::memset(out, 0, n * row_bytes);
  return with_types(shape, [&](auto column, auto value) {
    using C = decltype(column);
    using T = decltype(value);
    for (size_t i = 0; i < n; ++i)
      if (!pack_row<C, T>(shape, values + i * shape.columns * sizeof(T), out + i * row_bytes)) return i;
    return n;
  });
}

size_t unpack_sparse_rows(WorkerPool& workers, const SparseShape& shape, const std::byte* rows, size_t n,
                          std::byte* out) {
  check(shape);
  return with_types(shape, [&](auto column, auto value) {
    std::atomic<size_t> wrong = n;
    const size_t grain = std::max<size_t>(kGrainBytes / (shape.columns * shape.value_bytes), 1);
    workers.split(n, grain, [&](size_t begin, size_t end) {
      const size_t found = unpack_block<decltype(column), decltype(value)>(shape, rows, begin, end, out);
      if (found == end) return;
      size_t least = wrong.load();
      while (found < least && !wrong.compare_exchange_weak(least, found)) {
      }
    });
    return wrong.load();
  });
}

}  // namespace outcrop
