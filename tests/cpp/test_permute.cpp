// RowPermuter against sorting in memory: every width, number of buckets and budget, errors at every moment.
#include <algorithm>
#include <cerrno>
#include <numeric>

#include "base/checksum.h"
#include "base/random.h"
#include "graph/permute.h"
#include "io_test_util.h"

namespace outcrop::testing {
namespace {

constexpr uint64_t kKiB = 1 << 10;
constexpr size_t kNumbersInFront = 3;  // of another edge type

// What is put in order: rows of random bytes, and the order that is wanted.
struct Problem {
  uint64_t row_bytes = 1, slots = 1;
  size_t num_rows = 0;
  BytesVector rows;  // one behind the other
  std::vector<int64_t> numbers;

  // Each row is wanted up to `slots` times, some not at all, in a random order (Fisher and Yates).
  static Problem draw(size_t num_rows, uint64_t row_bytes, uint64_t slots = 1) {
    Problem made{row_bytes, slots, num_rows, random_bytes(num_rows * row_bytes, row_bytes), {}};
    RandomStream random(num_rows, row_bytes);
    for (size_t i = 0; i < num_rows; ++i) {
      const uint64_t times = num_rows == 1 ? slots : (i % 10 ? slots - random.below(slots) : 0);
      made.numbers.insert(made.numbers.end(), times, static_cast<int64_t>(i));
    }
    for (size_t left = made.numbers.size(); left > 1; --left)
      std::swap(made.numbers[left - 1], made.numbers[random.below(left)]);
    return made;
  }
  BytesVector wanted() const {
    BytesVector all(count() * row_bytes);
    std::byte* at = all.data();
    for (const int64_t number : numbers) {
      std::memcpy(at, rows.data() + static_cast<size_t>(number) * row_bytes, row_bytes);
      at += row_bytes;
    }
    return all;
  }
  uint64_t count() const { return numbers.size(); }
  uint64_t least() const { return RowPermuter::least_memory(count(), row_bytes); }
  uint64_t most() const { return RowPermuter::most_memory(count(), row_bytes); }
};

class Permute : public BothBackends {
 protected:
  std::string out() const { return folder_.file("out.bin"); }
  std::string sums() const { return page_sums_path(out()); }

  PermuteOptions options(const Problem& problem, uint64_t memory, size_t threads = 1) {
    std::vector<int64_t> listed(kNumbersInFront, -1);
    listed.insert(listed.end(), problem.numbers.begin(), problem.numbers.end());
    BytesVector bytes(listed.size() * sizeof(int64_t));
    std::memcpy(bytes.data(), listed.data(), bytes.size());
    write_plainly(folder_.file("numbers.bin"), bytes);
    workers_ = std::make_unique<WorkerPool>(threads);
    return {folder_.file(""), folder_.file("numbers.bin"), kNumbersInFront, problem.count(),
            problem.num_rows, problem.row_bytes,           problem.slots,   memory,
            workers_.get()};
  }

  // Adds `rows` in pieces of all sizes.
  static void add_all(RowPermuter& permuter, const Problem& problem, size_t upto = SIZE_MAX) {
    const size_t rows = std::min(upto, problem.num_rows);
    for (size_t at = 0, n = 0; at < rows; at += n) {
      n = std::min(1 + at * 3 / 2, rows - at);
      const auto begin = problem.rows.begin() + static_cast<ptrdiff_t>(at * problem.row_bytes);
      const BytesVector piece(begin, begin + static_cast<ptrdiff_t>(n * problem.row_bytes));
      permuter.add(piece.data(), n);
    }
  }

  PermuteStats run(const Problem& problem, uint64_t memory, size_t threads = 1, IoOptions io = {},
                   IoCounters* counters = nullptr) {
    const PermuteOptions given = options(problem, memory, threads);
    const auto budget = Budget::create(memory);
    const auto engine_of_test = engine(std::move(io));
    RowPermuter permuter(engine_of_test, *budget, given);
    add_all(permuter, problem);
    last_ = permuter.finish(out());
    if (counters) *counters = engine_of_test->counters();
    EXPECT_LE(budget->peak_bytes(), memory);
    return permuter.stats();
  }

  // The array has the rows that are wanted, padded to pages.
  void expect_rows(const Problem& problem) const {
    const BytesVector wanted = problem.wanted(), found = read_plainly(out());
    ASSERT_EQ(last_.data_bytes, wanted.size());
    ASSERT_EQ(found.size(), align_up(wanted.size(), kPageBytes));
    EXPECT_EQ(last_.file_bytes, found.size());
    EXPECT_TRUE(equal_bytes(std::span(found).first(wanted.size()), wanted));
    EXPECT_TRUE(std::all_of(found.begin() + static_cast<ptrdiff_t>(wanted.size()), found.end(),
                            [](std::byte b) { return b == std::byte{0}; }));
  }
  // Its checksums are those of the bytes on disk, too.
  void expect_whole(const Problem& problem) const {
    expect_rows(problem);
    const BytesVector wanted = problem.wanted(), found = read_plainly(out()), checks = read_plainly(sums());
    EXPECT_EQ(last_.crc32c, crc32c_table(wanted.data(), wanted.size()));
    const size_t pages = found.size() / kPageBytes;
    ASSERT_EQ(checks.size(), align_up(pages * sizeof(uint32_t), kPageBytes));
    EXPECT_EQ(last_.page_crc, crc32c_table(checks.data(), pages * sizeof(uint32_t)));
    for (size_t page = 0; page < pages; ++page) {
      uint32_t check = 0;
      std::memcpy(&check, checks.data() + page * sizeof(check), sizeof(check));
      ASSERT_EQ(check, crc32c_table(found.data() + page * kPageBytes, kPageBytes)) << "page " << page;
    }
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("")))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  std::unique_ptr<WorkerPool> workers_;
  ArrayFile last_;
};

INSTANTIATE_TEST_SUITE_P(Backends, Permute, ::testing::Values(Backend::uring, Backend::pread),
                         backend_test_name);

TEST_P(Permute, EqualsSortingInMemoryForAllWidths) {
  for (const uint64_t row_bytes : {1, 3, 8, 511, 4092, 4096, 4097, 20'000})
    for (const uint64_t slots : {1, 3}) {
      const Problem problem = Problem::draw(300'000 / row_bytes + 30, row_bytes, slots);
      SCOPED_TRACE(std::to_string(row_bytes) + " bytes, " + std::to_string(slots) + " slots");
      const PermuteStats least = run(problem, problem.least(), 3);
      EXPECT_GT(least.buckets, 1u);
      expect_whole(problem);
      EXPECT_EQ(run(problem, problem.most()).buckets, 1u);
      expect_whole(problem);
      EXPECT_EQ(files(), (std::vector<std::string>{"numbers.bin", "out.bin", "out_page_crc.bin"}));
    }
}

TEST_P(Permute, SmallSizes) {
  for (const uint64_t row_bytes : {1, 4096, 100'000})
    for (const size_t rows : {0, 1, 2, 3})
      for (const uint64_t slots : {1, 2}) {
        const Problem problem = Problem::draw(rows, row_bytes, slots);
        EXPECT_EQ(run(problem, problem.least()).sort.records, problem.count());
        expect_whole(problem);
      }
  Problem unwanted = Problem::draw(5000, 7);  // all edges were dropped
  unwanted.numbers.clear();
  run(unwanted, unwanted.least());
  expect_whole(unwanted);
}

// There is a page for each bucket, also where blocks grow and leave less for the rows: at multiples of 128 KiB.
TEST_P(Permute, AnyMemoryFromTheLeastOnIsEnough) {
  const Problem problem = Problem::draw(7230, 4096);
  const uint64_t least = problem.least(), next = align_up(least, 128 * kKiB);
  for (const uint64_t memory : {least, next, next + kPageBytes}) {
    SCOPED_TRACE(memory);
    EXPECT_GT(run(problem, memory).buckets, 50u);
    expect_rows(problem);
  }
  const std::string message = message_of([&] { run(problem, least - 1); }, ErrorKind::budget);
  EXPECT_NE(message.find(std::to_string(least)), std::string::npos) << message;
  EXPECT_NE(message.find("raise the memory budget"), std::string::npos) << message;
}

TEST_P(Permute, EachRowIsReadAndWrittenTwiceAtTheMost) {
  const Problem problem = Problem::draw(20'000, 100);
  for (const uint64_t memory : {problem.least(), problem.most()}) {
    IoCounters counters;
    const PermuteStats stats = run(problem, memory, 2, {}, &counters);
    const uint64_t bytes = problem.count() * problem.row_bytes,
                   pages = align_up(bytes, kPageBytes) / kPageBytes;
    const uint64_t buckets = stats.buckets > 1 ? bytes + 4 * problem.count() : 0;  // 4: its place
    const uint64_t positions = 8 * problem.num_rows, sorted = stats.sort.spilled_bytes;
    EXPECT_EQ(counters.read_bytes, 8 * problem.count() + sorted + positions + buckets);
    EXPECT_EQ(counters.write_bytes,
              sorted + positions + buckets + pages * kPageBytes + align_up(4 * pages, kPageBytes));
  }
}

TEST_P(Permute, SameFilesForAnyThreadsMemoryAndRequests) {
  const Problem problem = Problem::draw(30'000, 37, 2);
  run(problem, problem.most());
  expect_whole(problem);
  const ArrayFile first = last_;
  for (const size_t threads : {1, 4}) {
    IoOptions tiny;
    tiny.max_request_bytes = 4096;
    tiny.depth = tiny.threads = 2;
    tiny.faults.short_probability = 0.3;
    tiny.faults.eagain_probability = 0.1;
    IoCounters counters;
    run(problem, problem.least() + threads * 100 * kKiB, threads, tiny, &counters);
    EXPECT_GT(counters.retries, 0u);
    EXPECT_GT(counters.short_reads, 0u);
    expect_whole(problem);
    EXPECT_EQ(last_.crc32c, first.crc32c);
    EXPECT_EQ(last_.page_crc, first.page_crc);
  }
}

TEST_P(Permute, NumbersThatAreNoRowsAreNamed) {
  const Problem good = Problem::draw(5000, 16);
  for (const int64_t bad : {int64_t{5000}, int64_t{-1}, INT64_MAX, INT64_MIN})
    for (const size_t at : {size_t{0}, good.numbers.size() - 1}) {
      Problem problem = good;
      problem.numbers[at] = bad;
      const std::string message = message_of([&] { run(problem, problem.least()); }, ErrorKind::format);
      EXPECT_EQ(message,
                folder_.file("numbers.bin") + " names row " + std::to_string(bad) + ", there are 5000");
      EXPECT_EQ(files(), std::vector<std::string>{"numbers.bin"});
    }
  Problem twice = good;
  twice.numbers[7] = twice.numbers[4000];
  EXPECT_EQ(message_of([&] { run(twice, twice.least()); }, ErrorKind::format),
            "row " + std::to_string(twice.numbers[7]) + " is wanted more than 1 times");
  twice.slots = 2;
  run(twice, twice.least());
  expect_whole(twice);
}

TEST_P(Permute, AShortOrMissingFileOfNumbersIsNamed) {
  const Problem problem = Problem::draw(5000, 16);
  const PermuteOptions given = options(problem, problem.least());
  const std::string path = folder_.file("numbers.bin");
  for (const uint64_t size : {uint64_t{0}, uint64_t{20}, std::filesystem::file_size(path) - 1}) {
    std::filesystem::resize_file(path, size);
    const std::string message = message_of([&] { RowPermuter(engine(), *budget_, given); }, ErrorKind::io);
    EXPECT_NE(message.find(path), std::string::npos) << message;
    std::filesystem::resize_file(path, (kNumbersInFront + problem.count()) * sizeof(int64_t));
  }
  std::filesystem::remove(path);
  EXPECT_NE(message_of([&] { RowPermuter(engine(), *budget_, given); }, ErrorKind::io).find(path),
            std::string::npos);
}

TEST_P(Permute, OptionsThatCannotBeAreRefused) {
  const Problem problem = Problem::draw(100, 16);
  const PermuteOptions good = options(problem, problem.least());
  const auto refused = [&](auto change, ErrorKind kind) {
    PermuteOptions bad = good;
    change(bad);
    return message_of([&] { RowPermuter(engine(), *budget_, bad); }, kind);
  };
  refused([](PermuteOptions& o) { o.row_bytes = 0; }, ErrorKind::argument);
  refused([](PermuteOptions& o) { o.slots = 0; }, ErrorKind::argument);
  refused([](PermuteOptions& o) { o.slots = 1 << 20; },
          ErrorKind::argument);  // a row's do not fit into a block
  refused([](PermuteOptions& o) { o.memory_bytes = 0; }, ErrorKind::budget);
  EXPECT_NE(refused([](PermuteOptions& o) { o.scratch_folder = "/nowhere/at/all"; }, ErrorKind::io)
                .find("/nowhere/at/all"),
            std::string::npos);
  const auto small = Budget::create(good.memory_bytes - kPageBytes);
  message_of([&] { RowPermuter(engine(), *small, good); }, ErrorKind::budget);
  EXPECT_EQ(small->now_bytes(), 0u);
}

TEST_P(Permute, RowsTooManyOrTooFewAreRefused) {
  const Problem problem = Problem::draw(5000, 16);
  for (const uint64_t memory : {problem.least(), problem.most()}) {
    const auto budget = Budget::create(memory);
    {
      RowPermuter permuter(engine(), *budget, options(problem, memory));
      add_all(permuter, problem, 4999);
      EXPECT_EQ(message_of([&] { permuter.finish(out()); }, ErrorKind::argument),
                "4999 rows were added of 5000");
      EXPECT_EQ(message_of([&] { add_all(permuter, problem, 2); }, ErrorKind::argument),
                "rows beyond the 5000 that there are were added");
    }
    EXPECT_EQ(budget->now_bytes(), 0u);
    EXPECT_EQ(files(), std::vector<std::string>{"numbers.bin"});
  }
}

// Each operation fails once, in turn: the error comes out, nothing is held, no scratch file has a name.
TEST_P(Permute, EveryFailedOperationIsAnError) {
  const Problem problem = Problem::draw(8000, 40);
  IoCounters clean;
  EXPECT_GT(run(problem, problem.least(), 2, {}, &clean).buckets, 1u);
  const uint64_t operations = clean.read_ops + clean.write_ops;
  EXPECT_GT(operations, 50u);
  for (uint64_t operation = 0; operation < operations; ++operation) {
    IoOptions io;
    io.faults.fail_at_op = operation;
    const PermuteOptions given = options(problem, problem.least(), 2);
    const auto budget = Budget::create(problem.least());
    message_of(
        [&] {
          RowPermuter permuter(engine(io), *budget, given);
          add_all(permuter, problem);
          permuter.finish(out());
        },
        ErrorKind::io, EIO);
    ASSERT_EQ(budget->now_bytes(), 0u) << "operation " << operation;
    for (const std::string& name : files())
      ASSERT_TRUE(name == "numbers.bin" || name == "out.bin" || name == "out_page_crc.bin") << name;
  }
  run(problem, problem.least());
  expect_whole(problem);
}

TEST_P(Permute, AFullDiskIsAnErrorWhereverItFills) {
  const Problem problem = Problem::draw(8000, 40);
  IoCounters clean;
  run(problem, problem.least(), 1, {}, &clean);
  for (uint64_t written = 0; written < clean.write_bytes; written += clean.write_bytes / 23) {
    IoOptions io;
    io.faults.disk_full_after_bytes = written;
    message_of([&] { run(problem, problem.least(), 1, io); }, ErrorKind::io, ENOSPC);
  }
}

// What was written to scratch files comes back as something else: no row goes to where there is no room.
TEST_P(Permute, DamagedScratchFilesAreNoticed) {
  const Problem problem = Problem::draw(20'000, 40);
  for (const bool buckets : {false, true}) {
    RowPermuter permuter(engine(), *budget_, options(problem, buckets ? problem.least() : problem.most()));
    if (buckets) add_all(permuter, problem);
    size_t damaged = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      const std::string path = std::filesystem::read_symlink(entry.path(), gone).string();
      if (!path.starts_with(folder_.file(""))) continue;
      std::fstream file(entry.path(), std::ios::binary | std::ios::in | std::ios::out);
      file << std::string(64, '\x7f');
      EXPECT_TRUE(file.flush());
      ++damaged;
    }
    EXPECT_EQ(damaged, buckets ? 2u : 1u);
    EXPECT_EQ(message_of(
                  [&] {
                    if (!buckets) add_all(permuter, problem);
                    permuter.finish(out());
                  },
                  ErrorKind::format),
              "a scratch file was damaged: import again");
  }
}

}  // namespace
}  // namespace outcrop::testing
