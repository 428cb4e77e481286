// What fuzz targets say of results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#define holds(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (false)

template <class T>
int64_t sum(const std::vector<T>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

template <class T>
bool rises(const std::vector<T>& values) {
  return std::is_sorted(values.begin(), values.end());
}

template <class T>
bool distinct(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return std::adjacent_find(values.begin(), values.end()) == values.end();
}
