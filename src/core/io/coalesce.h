// Turns row ids into page reads.
//
// A row of row_bytes at file offset base + id * stride needs the pages that it touches; rows may straddle
// pages. Pages are laid into scratch memory in the order in which they are first needed, without gaps, so a
// row that straddles pages is contiguous in scratch also when its pages come from two reads. With merging,
// rows must come in ascending order of id; same and adjacent pages become one read, and each page is read
// once. Without merging every row is one read of its page span, in the order given.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"

namespace outcrop {

struct RowLayout {
  uint64_t base = 0;       // file offset of row 0
  uint64_t stride = 0;     // bytes from one row to the next, >= row_bytes
  uint64_t row_bytes = 0;  // >= 1

  uint64_t offset(uint64_t id) const { return base + id * stride; }
  uint64_t first_page(uint64_t id) const { return offset(id) / kPageBytes; }
  uint64_t end_page(uint64_t id) const { return (offset(id) + row_bytes + kPageBytes - 1) / kPageBytes; }
  uint64_t max_pages() const {
    return (row_bytes + kPageBytes - 2) / kPageBytes + 1;
  }  // that one row can touch
};

// One row of a gather: out[row] = file_rows[id].
struct RowEntry {
  uint64_t id = 0;
  uint64_t row = 0;
};

struct PageRead {
  uint64_t offset = 0;  // in the file
  uint64_t length = 0;
  uint64_t at = 0;  // in scratch
};

// Follows rows through the pages they need. The same walk plans reads, counts them, and finds rows in
// scratch.
class PageWalk {
 public:
  PageWalk(const RowLayout& layout, bool merge) : layout_(layout), merge_(merge) {}
  // For the window after `before` that begins with row `id`: pages that `before` has read already are carried
  // over to the start of scratch.
  static PageWalk after(const PageWalk& before, uint64_t id);

  uint64_t new_pages(uint64_t id) const;  // that row `id` would add
  // Adds the row and returns its position in scratch, in bytes.
  uint64_t add(uint64_t id);
  uint64_t pages() const { return pages_; }  // in scratch so far, those carried over included
  uint64_t carried() const { return carried_; }
  uint64_t end_page() const { return end_; }  // file page behind the last one

 private:
  bool joins(uint64_t first) const { return merge_ && pages_ > 0 && first <= end_; }

  RowLayout layout_;
  bool merge_;
  uint64_t run_first_ = 0, run_at_ = 0;  // file page and scratch page where the current run of pages begins
  uint64_t end_ = 0, pages_ = 0, carried_ = 0;
};

// A run of entries whose pages fit `capacity_pages` of scratch.
struct RowWindow {
  size_t begin = 0, end = 0;  // entries
  PageWalk start, stop;       // before the first and after the last row
  std::vector<PageRead> reads;
};

// The window that starts at `begin`, after window `before` (null for the first): as many rows as fit. Needs
// capacity_pages >= layout.max_pages().
RowWindow plan_window(const RowLayout& layout, bool merge, const RowEntry* entries, size_t begin, size_t end,
                      uint64_t capacity_pages, uint64_t max_read_bytes, const RowWindow* before);

// Entries for ids[0..n), sorted by id if asked. `out` has room for n.
void make_entries(const int64_t* ids, size_t n, bool sorted, RowEntry* out);

// Bytes of page reads for these rows, exactly: merged over groups of `group_rows` ids (0: all ids at once),
// or the sum of all page spans. Throws Error(argument) for negative ids.
uint64_t count_read_bytes(const int64_t* ids, size_t n, const RowLayout& layout, bool merge,
                          size_t group_rows = 0);

}  // namespace outcrop
