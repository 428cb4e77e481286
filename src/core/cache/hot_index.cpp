#include "cache/hot_index.h"

#include <bit>
#include <string>

#include "base/error.h"

namespace outcrop {
namespace {

void check(std::span<const int64_t> ids, int64_t num_nodes, const char* what) {
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] <= (i ? ids[i - 1] : -1) || ids[i] >= num_nodes)
      throw Error(ErrorKind::argument, std::string("cached ") + what + " must rise and be below " +
                                           std::to_string(num_nodes) + ": " + std::to_string(ids[i]) +
                                           " at position " + std::to_string(i) + " does not");
}

}  // namespace

HotIndex::HotIndex(Budget& budget, int64_t num_nodes, std::span<const int64_t> rows,
                   std::span<const int64_t> lists)
    : num_nodes_(num_nodes),
      num_rows_(static_cast<int64_t>(rows.size())),
      num_lists_(static_cast<int64_t>(lists.size())) {
  check(rows, num_nodes, "rows");
  check(lists, num_nodes, "lists");
  if (rows.size() > UINT32_MAX || lists.size() > UINT32_MAX)
    throw Error(ErrorKind::argument, "a cache of more than 2^32 nodes");
  if (rows.empty() && lists.empty()) return;
  held_ = budget.reserve("cache-index", bytes(num_nodes));
  blocks_.resize(static_cast<size_t>(num_nodes) / 64 + 1);
  const auto bit = [](int64_t id) { return uint64_t{1} << (static_cast<uint64_t>(id) % 64); };
  for (int64_t id : rows) blocks_[static_cast<size_t>(id) / 64].rows |= bit(id);
  for (int64_t id : lists) blocks_[static_cast<size_t>(id) / 64].lists |= bit(id);
  uint32_t before_rows = 0, before_lists = 0;
  for (Block& b : blocks_) {
    b.rows_before = before_rows, b.lists_before = before_lists;
    before_rows += static_cast<uint32_t>(std::popcount(b.rows));
    before_lists += static_cast<uint32_t>(std::popcount(b.lists));
  }
}

}  // namespace outcrop
