#include "io/coalesce.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace outcrop {

PageWalk PageWalk::after(const PageWalk& before, uint64_t id) {
  PageWalk walk(before.layout_, before.merge_);
  const uint64_t first = walk.layout_.first_page(id);
  if (before.merge_ && first < before.end_) {
    walk.run_first_ = first;
    walk.end_ = before.end_;
    walk.pages_ = walk.carried_ = before.end_ - first;
  }
  return walk;
}

uint64_t PageWalk::new_pages(uint64_t id) const {
  const uint64_t first = layout_.first_page(id), end = layout_.end_page(id);
  return joins(first) ? std::max(end, end_) - end_ : end - first;
}

uint64_t PageWalk::add(uint64_t id) {
  const uint64_t first = layout_.first_page(id), added = new_pages(id);
  if (!joins(first)) {
    run_first_ = first;
    run_at_ = pages_;
    end_ = first;
  }
  end_ += added;
  pages_ += added;
  return (run_at_ + first - run_first_) * kPageBytes + layout_.offset(id) % kPageBytes;
}

namespace {

// Adds file pages [end - count, end), whose place in scratch ends at scratch_pages, to the reads.
void add_pages(std::vector<PageRead>& reads, uint64_t end, uint64_t count, uint64_t scratch_pages,
               bool extend, uint64_t max_read_bytes) {
  uint64_t offset = (end - count) * kPageBytes, at = (scratch_pages - count) * kPageBytes,
           left = count * kPageBytes;
  while (left) {
    if (extend && !reads.empty() && reads.back().offset + reads.back().length == offset &&
        reads.back().length < max_read_bytes) {
      const uint64_t n = std::min(left, max_read_bytes - reads.back().length);
      reads.back().length += n;
      offset += n, at += n, left -= n;
    } else {
      const uint64_t n = std::min(left, max_read_bytes);
      reads.push_back({offset, n, at});
      offset += n, at += n, left -= n;
    }
  }
}

}  // namespace

RowWindow plan_window(const RowLayout& layout, bool merge, const RowEntry* entries, size_t begin, size_t end,
                      uint64_t capacity_pages, uint64_t max_read_bytes, const RowWindow* before) {
  max_read_bytes = std::max<uint64_t>(align_down(max_read_bytes, kPageBytes), kPageBytes);
  PageWalk walk =
      before && begin < end ? PageWalk::after(before->stop, entries[begin].id) : PageWalk(layout, merge);
  RowWindow window{begin, begin, walk, walk, {}};
  for (; window.end < end; ++window.end) {
    const uint64_t id = entries[window.end].id, added = walk.new_pages(id);
    if (walk.pages() + added > capacity_pages) break;
    walk.add(id);
    if (added) add_pages(window.reads, walk.end_page(), added, walk.pages(), merge, max_read_bytes);
  }
  window.stop = walk;
  return window;
}

void make_entries(const int64_t* ids, size_t n, bool sorted, RowEntry* out) {
  for (size_t i = 0; i < n; ++i) out[i] = {static_cast<uint64_t>(ids[i]), i};
  const auto less = [](const RowEntry& a, const RowEntry& b) { return a.id < b.id; };
  if (sorted && !std::is_sorted(out, out + n, less)) std::sort(out, out + n, less);
}

uint64_t count_read_bytes(const int64_t* ids, size_t n, const RowLayout& layout, bool merge,
                          size_t group_rows) {
  const auto bad = std::find_if(ids, ids + n, [](int64_t id) { return id < 0; });
  if (bad != ids + n) throw Error(ErrorKind::argument, "row id " + std::to_string(*bad) + " is negative");
  if (group_rows == 0) group_rows = n;
  uint64_t pages = 0;
  std::vector<int64_t> group;
  for (size_t begin = 0; begin < n; begin += group_rows) {
    group.assign(ids + begin, ids + std::min(n, begin + group_rows));
    if (merge) std::sort(group.begin(), group.end());
    PageWalk walk(layout, merge);
    for (int64_t id : group) walk.add(static_cast<uint64_t>(id));
    pages += walk.pages();
  }
  return pages * kPageBytes;
}

}  // namespace outcrop
