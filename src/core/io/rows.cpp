#include "io/rows.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/row_file.h"

namespace outcrop {
namespace {

constexpr uint64_t kMaxReadBytes = uint64_t{1} << 20;
constexpr uint64_t kOrderShare = 4;  // a quarter of the scratch holds the order of the rows, the rest pages

}  // namespace

// Shared with the jobs, so that they may outlive the reader.
struct RowReader::State {
  State(RowFile rows, bool merged) : file(std::move(rows)), merge(merged) {}

  RowFile file;
  const bool merge;
  Buffer scratch;
  uint64_t side_bytes = 0;  // pages of one side
  size_t group_rows = 0;    // room for entries
  std::mutex turn;          // of reading

  std::byte* side(unsigned s) const { return scratch.data() + s * side_bytes; }
  RowEntry* entries() const { return reinterpret_cast<RowEntry*>(scratch.data() + 2 * side_bytes); }
  RowWindow plan(const RowEntry* rows, size_t begin, size_t end, const RowWindow* before) const {
    return plan_window(file.layout, merge, rows, begin, end, side_bytes / kPageBytes, kMaxReadBytes, before);
  }
  std::shared_ptr<IoJob> start(const RowWindow& window, unsigned s) const;
  void copy_out(const RowWindow& window, const RowEntry* rows, unsigned s, std::byte* out,
                uint64_t out_stride) const;
  void read_group(const int64_t* ids, size_t n, std::byte* out, uint64_t out_stride);
  void read_sorted(const int32_t* ids, const int32_t* positions, size_t n, std::byte* out,
                   uint64_t out_stride);
  void hand_on(const RowWindow& window, const RowWindow& next, unsigned s) const;
};

std::shared_ptr<IoJob> RowReader::State::start(const RowWindow& window, unsigned s) const {
  return file.start(window, side(s));
}

void RowReader::State::copy_out(const RowWindow& window, const RowEntry* rows, unsigned s, std::byte* out,
                                uint64_t out_stride) const {
  file.copy_out(window, rows, side(s), out, out_stride);
}

void RowReader::State::read_group(const int64_t* ids, size_t n, std::byte* out, uint64_t out_stride) {
  RowEntry* const rows = entries();
  make_entries(ids, n, merge, rows);
  unsigned s = 0;
  RowWindow window = plan(rows, 0, n, nullptr);
  auto job = start(window, s);
  for (;;) {
    const bool last = window.end == n;
    RowWindow next = plan(rows, window.end, n, &window);
    auto next_job = last ? nullptr : start(next, 1 - s);
    job->wait();
    file.check(window, side(s));
    if (!last) hand_on(window, next, s);
    copy_out(window, rows, s, out, out_stride);
    if (last) return;
    window = std::move(next);
    job = std::move(next_job);
    s = 1 - s;
  }
}

// The pages at the end of a window that the next one needs too are not read again.
void RowReader::State::hand_on(const RowWindow& window, const RowWindow& next, unsigned s) const {
  if (const uint64_t carried = next.start.carried() * kPageBytes; carried)
    std::memcpy(side(1 - s), side(s) + window.stop.pages() * kPageBytes - carried, carried);
}

// As read_group over all rows: two groups of entries take turns, and windows follow each other across them.
void RowReader::State::read_sorted(const int32_t* ids, const int32_t* positions, size_t n, std::byte* out,
                                   uint64_t out_stride) {
  const size_t half = group_rows / 2;
  size_t entered = 0;
  struct Group {
    RowEntry* rows;
    size_t n;
  };
  const auto take_group = [&](size_t number) {
    Group g{entries() + number % 2 * half, std::min(half, n - entered)};
    for (size_t i = 0; i < g.n; ++i, ++entered)
      g.rows[i] = {static_cast<uint64_t>(ids[entered]), static_cast<uint64_t>(positions[entered])};
    return g;
  };
  size_t number = 0;
  unsigned s = 0;
  Group group = take_group(number);
  RowWindow window = plan(group.rows, 0, group.n, nullptr);
  auto job = start(window, s);
  for (;;) {
    Group next_group = window.end < group.n ? group : take_group(++number);
    const bool last = next_group.n == 0;
    RowWindow next = plan(next_group.rows, window.end < group.n ? window.end : 0, next_group.n, &window);
    auto next_job = last ? nullptr : start(next, 1 - s);
    job->wait();
    file.check(window, side(s));
    if (!last) hand_on(window, next, s);
    copy_out(window, group.rows, s, out, out_stride);
    if (last) return;
    window = std::move(next);
    group = next_group;
    job = std::move(next_job);
    s = 1 - s;
  }
}

uint64_t RowReader::min_scratch_bytes(uint64_t row_bytes) {
  return kOrderShare * RowLayout{0, row_bytes, row_bytes}.max_pages() * kPageBytes;
}

RowReader::RowReader(std::shared_ptr<BlockIo> io, Budget& budget, FileId file, const RowLayout& layout,
                     uint64_t num_rows, uint64_t scratch_bytes, bool merge)
    : state_(std::make_shared<State>(RowFile(std::move(io), file, layout, num_rows), merge)) {
  State& s = *state_;
  check_scratch(scratch_bytes, min_scratch_bytes(layout.row_bytes), layout.row_bytes);
  const uint64_t order_bytes = align_down(scratch_bytes / kOrderShare, kPageBytes);
  s.side_bytes = align_down((scratch_bytes - order_bytes) / 2, kPageBytes);
  s.group_rows = order_bytes / sizeof(RowEntry);
  s.scratch = Buffer(budget, "row-scratch", 2 * s.side_bytes + order_bytes);
}

RowReader::~RowReader() = default;
const RowLayout& RowReader::layout() const { return state_->file.layout; }
uint64_t RowReader::num_rows() const { return state_->file.num_rows; }
size_t RowReader::group_rows() const { return state_->group_rows; }

void RowReader::read_sorted(const int32_t* ids, const int32_t* positions, size_t n, std::byte* out,
                            size_t out_rows, uint64_t out_stride) {
  for (size_t i = 0; i < n; ++i)
    if (ids[i] < (i ? ids[i - 1] : 0) || static_cast<uint64_t>(ids[i]) >= state_->file.num_rows ||
        static_cast<uint32_t>(positions[i]) >= out_rows)
      throw Error(ErrorKind::format, "the address table of a mini-batch puts row " + std::to_string(ids[i]) +
                                         " of " + std::to_string(state_->file.num_rows) +
                                         " cached on disk at " + std::to_string(positions[i]) +
                                         ": it was damaged");
  if (n == 0) return;
  std::lock_guard turn(state_->turn);
  state_->read_sorted(ids, positions, n, out, out_stride);
}

void RowReader::read_rows(const int64_t* ids, size_t n, std::byte* out, uint64_t out_stride) {
  check_ids(ids, n, state_->file.num_rows);
  std::lock_guard turn(state_->turn);
  for (size_t begin = 0; begin < n; begin += state_->group_rows)
    state_->read_group(ids + begin, std::min(state_->group_rows, n - begin), out + begin * out_stride,
                       out_stride);
}

void RowReader::check_pages(const uint32_t* crcs, size_t n, std::string remedy) {
  state_->file.check_pages(crcs, n, std::move(remedy));
}

uint64_t RowReader::count_read_bytes(const int64_t* ids, size_t n) const {
  check_ids(ids, n, state_->file.num_rows);
  return outcrop::count_read_bytes(ids, n, state_->file.layout, state_->merge, state_->group_rows);
}

void check_ids(const int64_t* ids, size_t n, uint64_t num_rows) {
  uint64_t largest = 0;  // negative ids are huge as unsigned numbers
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, static_cast<uint64_t>(ids[i]));
  if (n == 0 || largest < num_rows) return;
  const auto bad =
      std::find_if(ids, ids + n, [&](int64_t id) { return static_cast<uint64_t>(id) >= num_rows; });
  throw Error(ErrorKind::argument, "row id " + std::to_string(*bad) + " at position " +
                                       std::to_string(bad - ids) + " is outside the table of " +
                                       std::to_string(num_rows) + " rows");
}

}  // namespace outcrop
