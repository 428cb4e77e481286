// Looking up ids that mostly rise in a table that rises.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace outcrop {

// Writes the positions in `ids` of those that `table` holds, and where it holds them, and returns how many. Both tables
// rise; ids may fall (where a hop ends). Each search begins where the last one ended and doubles its steps, so that n
// ids that rise take n log(table / n) comparisons, near each other in memory.
template <class Id>
size_t find_sorted(std::span<const int64_t> table, std::span<const Id> ids, int32_t* positions,
                   int32_t* rows) {
  size_t found = 0, low = 0;  // all before `low` are smaller than the last id
  int64_t last = INT64_MIN;
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t id = ids[i];
    if (id < last) low = 0;
    last = id;
    size_t step = 1, high = low;
    while (high < table.size() && table[high] < id) {
      low = high + 1;
      high += step;
      step *= 2;
    }
    high = std::min(high, table.size());
    low = static_cast<size_t>(std::lower_bound(table.begin() + static_cast<ptrdiff_t>(low),
                                               table.begin() + static_cast<ptrdiff_t>(high), id) -
                              table.begin());
    if (low < table.size() && table[low] == id) {
      positions[found] = static_cast<int32_t>(i);
      rows[found++] = static_cast<int32_t>(low);
    }
  }
  return found;
}

}  // namespace outcrop
