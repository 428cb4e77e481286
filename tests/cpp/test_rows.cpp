#include <algorithm>
#include <numeric>
#include <set>

#include "base/checksum.h"
#include "io/row_sums.h"
#include "io/rows.h"
#include "io_test_util.h"

namespace outcrop::testing {
namespace {

std::vector<int64_t> random_ids(size_t n, uint64_t below, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int64_t> ids(n);
  for (auto& id : ids) id = static_cast<int64_t>(rng() % below);
  return ids;
}

// Bytes of all pages that the rows touch, by brute force.
uint64_t brute_force_bytes(const std::vector<int64_t>& ids, const RowLayout& l, bool merge) {
  std::vector<uint64_t> pages;
  for (int64_t id : ids)
    for (uint64_t page = (l.base + id * l.stride) / 4096; page * 4096 < l.base + id * l.stride + l.row_bytes;
         ++page)
      pages.push_back(page);
  if (merge) {
    std::sort(pages.begin(), pages.end());
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
  }
  return 4096 * pages.size();
}

TEST(Coalesce, CountsLikeBruteForce) {
  for (uint64_t width : {1, 7, 100, 128, 343, 602, 768, 1024, 1433, 4096, 5000, 9000})
    for (uint64_t gap : {0, 13})
      for (bool merge : {true, false}) {
        const RowLayout layout{gap * 7, width + gap, width};
        const auto ids = random_ids(3000, 2000, width);
        EXPECT_EQ(count_read_bytes(ids.data(), ids.size(), layout, merge),
                  brute_force_bytes(ids, layout, merge));
      }
  const int64_t negative = -1;
  message_of([&] { count_read_bytes(&negative, 1, {0, 4, 4}, true); }, ErrorKind::argument);
  EXPECT_EQ(count_read_bytes(nullptr, 0, {0, 4, 4}, true), 0u);
}

TEST(Coalesce, ReadsAreMergedSplitAndWithoutGapsInScratch) {
  const RowLayout layout{0, 4096, 4096};
  const std::vector<int64_t> ids{9, 0, 1, 2, 3, 4, 1, 7};
  std::vector<RowEntry> entries(ids.size());
  make_entries(ids.data(), ids.size(), true, entries.data());
  const auto window = plan_window(layout, true, entries.data(), 0, entries.size(), 100, 3 * 4096, nullptr);
  EXPECT_EQ(window.end, ids.size());
  const std::vector<std::array<uint64_t, 3>> expected{{0, 3 * 4096, 0},
                                                      {3 * 4096, 2 * 4096, 3 * 4096},
                                                      {7 * 4096, 4096, 5 * 4096},
                                                      {9 * 4096, 4096, 6 * 4096}};
  ASSERT_EQ(window.reads.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ((std::array{window.reads[i].offset, window.reads[i].length, window.reads[i].at}), expected[i])
        << i;
}

class RowsTest : public BothBackends {
 protected:
  void check(const RowLayout& layout, uint64_t num_rows, uint64_t scratch, bool merge, bool padded) {
    uint64_t size = layout.base + num_rows * layout.stride;
    if (padded) size = align_up(size, 4096);
    const auto file = random_bytes(size, layout.row_bytes);
    write_plainly(folder_.file("rows"), file);
    auto io = engine();
    const FileId f = io->open(folder_.file("rows"), OpenMode::read);
    RowReader reader(io, *budget_, f, layout, num_rows, scratch, merge);
    auto ids = random_ids(1500, num_rows, 3);
    ids.push_back(0);
    ids.push_back(static_cast<int64_t>(num_rows) - 1);
    const uint64_t out_stride = layout.row_bytes + 3;
    BytesVector out(ids.size() * out_stride, std::byte{0x5a});
    BytesVector expected = out;  // nothing between the rows is touched
    for (size_t i = 0; i < ids.size(); ++i)
      std::memcpy(expected.data() + i * out_stride, file.data() + layout.offset(ids[i]), layout.row_bytes);
    const uint64_t before = io->counters().read_bytes;
    reader.read_rows(ids.data(), ids.size(), out.data(), out_stride);
    ASSERT_TRUE(equal_bytes(out, expected)) << "rows of " << out_stride << " bytes with gaps of 3";
    const uint64_t read = io->counters().read_bytes - before;
    EXPECT_EQ(read, reader.count_read_bytes(ids.data(), ids.size()));
    if (!merge || ids.size() <= reader.group_rows()) EXPECT_EQ(read, brute_force_bytes(ids, layout, merge));
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, RowsTest, ::testing::Values(Backend::uring, Backend::pread),
                         backend_test_name);

// Rows by ascending id to any place, each page read once whatever the scratch, and compared with its
// checksum.
TEST_P(RowsTest, SortedRowsReadEachPageOnceAndNoticeDamage) {
  for (const uint64_t row_bytes : {1, 100, 512, 5732}) {
    const uint64_t num_rows = 3000;
    const RowLayout layout{0, row_bytes, row_bytes};
    auto file = random_bytes(align_up(num_rows * row_bytes, 4096), row_bytes);
    std::vector<uint32_t> crcs;
    for (size_t at = 0; at < file.size(); at += 4096) crcs.push_back(crc32c(file.data() + at, 4096));
    write_plainly(folder_.file("sorted"), file);
    auto io = engine();
    const FileId f = io->open(folder_.file("sorted"), OpenMode::read);
    std::vector<int32_t> ids, positions;
    std::mt19937_64 rng(row_bytes);
    for (int32_t id = 0; id < static_cast<int32_t>(num_rows); ++id)
      if (id % 500 < 60 || rng() % 5 == 0) ids.push_back(id);
    for (size_t i = 0; i < ids.size(); ++i) positions.push_back(static_cast<int32_t>(2 * i));
    std::shuffle(positions.begin(), positions.end(), rng);
    std::set<uint64_t> pages;
    for (const int32_t id : ids)
      for (uint64_t p = layout.first_page(static_cast<uint64_t>(id));
           p < layout.end_page(static_cast<uint64_t>(id)); ++p)
        pages.insert(p);
    for (const uint64_t scratch : {RowReader::min_scratch_bytes(row_bytes), uint64_t{1} << 20}) {
      RowReader reader(io, *budget_, f, layout, num_rows, scratch, true);
      reader.check_pages(crcs.data(), crcs.size(), "prepare the run again");
      BytesVector out(2 * ids.size() * row_bytes, std::byte{0x5a});
      const uint64_t before = io->counters().read_bytes;
      reader.read_sorted(ids.data(), positions.data(), ids.size(), out.data(), 2 * ids.size(), row_bytes);
      EXPECT_EQ(io->counters().read_bytes - before, pages.size() * 4096);
      for (size_t i = 0; i < ids.size(); ++i)
        ASSERT_EQ(std::memcmp(out.data() + static_cast<size_t>(positions[i]) * row_bytes,
                              file.data() + static_cast<size_t>(ids[i]) * row_bytes, row_bytes),
                  0);
    }
    RowReader reader(io, *budget_, f, layout, num_rows, 1 << 20, true);
    const uint64_t page = *pages.rbegin();
    crcs[page] ^= 1;
    reader.check_pages(crcs.data(), crcs.size(), "prepare the run again");
    BytesVector out(2 * ids.size() * row_bytes);
    message_of(
        [&] {
          reader.read_sorted(ids.data(), positions.data(), ids.size(), out.data(), 2 * ids.size(), row_bytes);
        },
        ErrorKind::checksum);
    std::vector<int32_t> falling(ids.rbegin(), ids.rend());
    message_of(
        [&] {
          reader.read_sorted(falling.data(), positions.data(), ids.size(), out.data(), 2 * ids.size(),
                             row_bytes);
        },
        ErrorKind::format);
    message_of(
        [&] {
          reader.read_sorted(ids.data(), positions.data(), ids.size(), out.data(), ids.size(), row_bytes);
        },
        ErrorKind::format);
    message_of([&] { reader.check_pages(crcs.data(), 0, "prepare the run again"); }, ErrorKind::format);
    io->close(f);
  }
}

TEST_P(RowsTest, EveryWidthScratchAndMode) {
  for (uint64_t width : {1, 7, 100, 343, 602, 1024, 1433, 4096, 5732})
    for (bool merge : {true, false}) {
      check({0, width, width}, 777, 1 << 20, merge, true);                              // one window
      check({0, width, width}, 777, RowReader::min_scratch_bytes(width), merge, true);  // the smallest
      check({12'345, width + 29, width}, 777, RowReader::min_scratch_bytes(width) + 40'000, merge, false);
    }
}

TEST_P(RowsTest, RefusesNonsense) {
  write_plainly(folder_.file("rows"), random_bytes(4096, 1));
  auto io = engine();
  const FileId f = io->open(folder_.file("rows"), OpenMode::read);
  const auto make = [&](RowLayout l, uint64_t rows, uint64_t scratch) {
    RowReader(io, *budget_, f, l, rows, scratch, true);
  };
  message_of([&] { make({0, 100, 101}, 1, 1 << 20); }, ErrorKind::argument);
  message_of([&] { make({0, 100, 0}, 1, 1 << 20); }, ErrorKind::argument);
  message_of([&] { make({0, 100, 100}, 1, 100); }, ErrorKind::argument);
  message_of([&] { make({0, 100, 100}, 41, 1 << 20); }, ErrorKind::io);
  message_of([&] { make({UINT64_MAX - 50, 100, 100}, 1, 1 << 20); }, ErrorKind::io);
  message_of([&] { make({0, 100, 100}, 40, uint64_t{2} << 30); }, ErrorKind::budget);
  RowReader reader(io, *budget_, f, {0, 100, 100}, 40, 1 << 20, true);
  BytesVector out(1000);
  const int64_t ids[] = {3, 40, -1};
  const std::string text =
      message_of([&] { reader.read_rows(ids, 3, out.data(), 100); }, ErrorKind::argument);
  EXPECT_NE(text.find("row id 40 at position 1 is outside the table of 40 rows"), std::string::npos) << text;
  const int64_t negative = -1;
  message_of([&] { reader.read_rows(&negative, 1, out.data(), 100); }, ErrorKind::argument);
  EXPECT_EQ(io->counters().read_ops, 0u);
  reader.read_rows(ids, 0, nullptr, 100);
}

TEST_P(RowsTest, AReadErrorLeavesTheReaderUsable) {
  write_plainly(folder_.file("rows"), random_bytes(1 << 20, 1));
  IoOptions options;
  options.faults.fail_at_op = 5;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("rows"), OpenMode::read);
  RowReader reader(io, *budget_, f, {0, 4096, 4096}, 256, RowReader::min_scratch_bytes(4096) + (64 << 10),
                   false);
  std::vector<int64_t> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  BytesVector out(1 << 20);
  message_of([&] { reader.read_rows(ids.data(), ids.size(), out.data(), 4096); }, ErrorKind::io, EIO);
  reader.read_rows(ids.data(), ids.size(), out.data(), 4096);
  EXPECT_TRUE(equal_bytes(out, read_plainly(folder_.file("rows"))));
}

TEST(GatherRows, LikeCopyingRowByRow) {
  for (unsigned threads : {1u, 3u}) {
    WorkerPool workers(threads);
    for (uint64_t width : {1, 2, 3, 4, 8, 16, 32, 64, 80, 128, 200, 256, 343, 400, 512, 1024, 1433, 9000})
      for (uint64_t gap : {0, 16}) {
        const uint64_t rows = 500, n = width == 400 ? 50'000 : 2000;  // 50,000 are written past the caches
        const auto table = random_bytes(rows * (width + gap), width);
        const auto ids = random_ids(n, rows, width);
        BytesVector out(n * (width + gap) + 1, std::byte{0x5a}), expected = out;
        gather_rows(workers, {table.data(), rows, width + gap, width}, ids.data(), n, out.data(),
                    width + gap);
        for (size_t i = 0; i < n; ++i)
          std::memcpy(expected.data() + i * (width + gap), table.data() + ids[i] * (width + gap), width);
        ASSERT_TRUE(equal_bytes(out, expected)) << "rows of " << width << " bytes with gaps of " << gap;
      }
  }
}

TEST(GatherRows, ChecksIdsBeforeWriting) {
  WorkerPool workers(2);
  const BytesVector table(1000);
  BytesVector out(300, std::byte{0x5a});
  for (int64_t bad : {int64_t{10}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    const int64_t ids[] = {0, 1, bad};
    message_of(
        [&] {
          gather_rows(workers, {table.data(), 10, 100, 100}, ids, 3, out.data(), 100);
        },
        ErrorKind::argument);
  }
  EXPECT_EQ(out, BytesVector(300, std::byte{0x5a}));
  const int64_t id = 0;
  message_of(
      [&] {
        gather_rows(workers, {table.data(), 10, 99, 100}, &id, 1, out.data(), 100);
      },
      ErrorKind::argument);
}

TEST(RowSums, FindEveryFlip) {
  WorkerPool workers(3);
  for (const size_t row_bytes : {1, 12, 64, 1000}) {
    const size_t n = 5000, stride = row_bytes + 3;
    auto table = random_bytes(n * stride, row_bytes);
    std::vector<uint32_t> crcs(n);
    sum_rows(workers, {table.data(), n, stride, row_bytes}, crcs.data());
    for (size_t i = 0; i < n; i += 499)
      EXPECT_EQ(crcs[i], crc32c_table(table.data() + i * stride, row_bytes));
    const auto ids = random_ids(4000, n, 3);
    BytesVector taken(ids.size() * row_bytes);
    for (size_t i = 0; i < ids.size(); ++i)
      std::memcpy(taken.data() + i * row_bytes, table.data() + static_cast<size_t>(ids[i]) * stride,
                  row_bytes);
    const auto compare = [&](std::span<const int64_t> of) {
      const auto [first, count] =
          compare_rows(workers, {taken.data(), of.size(), row_bytes, row_bytes}, of.data(), crcs);
      return std::pair(first, count);
    };
    EXPECT_EQ(compare(ids), std::pair(ids.size(), size_t{0}));
    for (const size_t at : {3999, 2001, 2000, 17}) {
      taken[at * row_bytes + row_bytes / 2] ^= std::byte{4};
      EXPECT_EQ(compare(ids).first, at);
    }
    EXPECT_EQ(compare(ids).second, 4u);
    auto lying = ids;
    lying[5] = n, lying[6] = -1, lying[7] = INT64_MIN;
    EXPECT_EQ(compare(lying), std::pair(size_t{5}, size_t{7}));
  }
}

}  // namespace
}  // namespace outcrop::testing
