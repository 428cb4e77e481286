#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "io_test_util.h"

namespace outcrop::testing {
namespace {

class BlockIoTest : public BothBackends {};
INSTANTIATE_TEST_SUITE_P(Backends, BlockIoTest, ::testing::Values(Backend::uring, Backend::pread),
                         backend_test_name);

bool same(const std::byte* a, const BytesVector& b, size_t at, size_t n) {
  return std::memcmp(a, b.data() + at, n) == 0;
}

TEST_P(BlockIoTest, ReadsAnyOffsetLengthAndAddress) {
  const auto bytes = random_bytes(300'001, 1);
  write_plainly(folder_.file("x"), bytes);
  for (bool direct : {true, false}) {
    IoOptions options;
    options.direct = direct;
    options.max_request_bytes = 64 << 10;
    auto io = engine(options);
    const FileId f = io->open(folder_.file("x"), OpenMode::read);
    EXPECT_EQ(io->size_bytes(f), bytes.size());
    Buffer memory(*budget_, "test", 400 << 10);
    std::mt19937_64 rng(2);
    for (int i = 0; i < 400; ++i) {
      const bool aligned = i % 3 == 0, congruent = i % 3 == 1;
      uint64_t offset = rng() % bytes.size(), length = rng() % (bytes.size() - offset + 1), at = rng() % 4096;
      if (aligned) offset -= offset % 4096, at = 0;
      if (congruent) at = offset % 4096;
      length = std::min(length, bytes.size() - offset);
      std::memset(memory.data(), 0x5a, memory.size());
      io->read(f, offset, memory.data() + at, length);
      ASSERT_TRUE(same(memory.data() + at, bytes, offset, length)) << offset << " " << length << " " << at;
      // Nothing around the request is touched.
      if (at) ASSERT_EQ(memory.data()[at - 1], std::byte{0x5a});
      ASSERT_EQ(memory.data()[at + length], std::byte{0x5a});
    }
    io->close(f);
  }
}

TEST_P(BlockIoTest, CountsWholePagesOnce) {
  write_plainly(folder_.file("x"), random_bytes(1 << 20, 1));
  IoOptions options;
  options.max_request_bytes = 128 << 10;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  Buffer memory(*budget_, "test", 1 << 20);
  io->read(f, 0, memory.data(), 1 << 20);  // 8 requests
  EXPECT_EQ(io->counters().read_ops, 8u);
  EXPECT_EQ(io->counters().read_bytes, 1u << 20);
  EXPECT_EQ(io->counters().bounce_bytes, 0u);
  io->read(f, 4095, memory.data(), 2);  // straddles two pages
  EXPECT_EQ(io->counters().read_ops, 9u);
  EXPECT_EQ(io->counters().read_bytes, (1u << 20) + 8192);
  EXPECT_EQ(io->counters().bounce_bytes, 2u);
  io->read(f, 100, memory.data() + 100, 200'000);  // first page, aligned middle in two, last page
  EXPECT_EQ(io->counters().read_bytes, (1u << 20) + 8192 + align_up(200'100, 4096));
  EXPECT_EQ(io->counters().read_ops, 9u + 1 + 2 + 0 + 1);
  io->read(f, 0, memory.data(), 0);
  EXPECT_EQ(io->counters().read_ops, 13u);
}

TEST(BlockIo, BackendsCountEqually) {
  TempFolder folder;
  const auto bytes = random_bytes(2'000'123, 3);
  write_plainly(folder.file("x"), bytes);
  std::vector<IoCounters> counts;
  for (Backend backend : {Backend::uring, Backend::pread}) {
    IoOptions options;
    options.backend = backend;
    options.max_request_bytes = 100'000;
    auto budget = Budget::create(64 << 20);
    std::shared_ptr<BlockIo> io;
    try {
      io = BlockIo::create(options, budget);
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
    const FileId f = io->open(folder.file("x"), OpenMode::read),
                 g = io->open(folder.file("y"), OpenMode::create);
    BytesVector memory(3000 * 20'001);  // apart: requests must not overlap in memory
    std::mt19937_64 rng(4);
    std::vector<IoRequest> requests;
    for (int i = 0; i < 3000; ++i) {
      const uint64_t offset = rng() % bytes.size();
      requests.push_back(
          {f, offset, std::min<uint64_t>(rng() % 20'000, bytes.size() - offset), memory.data() + i * 20'001});
    }
    io->submit(IoOp::read, requests)->wait();
    io->write(g, 5, bytes.data(), 777'777);
    counts.push_back(io->counters());
  }
  EXPECT_EQ(counts[0].read_bytes, counts[1].read_bytes);
  EXPECT_EQ(counts[0].read_ops, counts[1].read_ops);
  EXPECT_EQ(counts[0].write_bytes, counts[1].write_bytes);
  EXPECT_EQ(counts[0].write_ops, counts[1].write_ops);
  EXPECT_EQ(counts[0].bounce_bytes, counts[1].bounce_bytes);
  EXPECT_EQ(counts[0].write_bytes, 777'777u);
  EXPECT_EQ(counts[0].write_ops, 8u);  // of 98,304 bytes
}

TEST_P(BlockIoTest, HundredThousandSmallReadsFromManyThreads) {
  const auto bytes = random_bytes(3'000'000, 5);
  write_plainly(folder_.file("x"), bytes);
  auto io = engine();
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937_64 rng(t);
      for (int round = 0; round < 5; ++round) {
        const size_t n = 5000;
        BytesVector memory(n * 100);
        std::vector<IoRequest> requests;
        for (size_t i = 0; i < n; ++i)
          requests.push_back({f, rng() % (bytes.size() - 100), 1 + rng() % 100, memory.data() + i * 100});
        auto first = io->submit(IoOp::read, {requests.begin(), requests.begin() + n / 2});
        auto second = io->submit(IoOp::read, {requests.begin() + n / 2, requests.end()});
        second->wait();
        first->wait();
        for (const auto& r : requests) wrong += !same(r.data, bytes, r.offset, r.length);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(io->counters().read_ops, 100'000u);
}

TEST_P(BlockIoTest, WritesThenReadsBack) {
  const auto bytes = random_bytes(1'234'567, 6);
  IoOptions options;
  options.max_request_bytes = 100 << 10;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::create);
  io->resize(f, bytes.size());
  std::vector<IoRequest> requests;
  auto copy = bytes;
  for (uint64_t at = 0; at < bytes.size(); at += 10'007)
    requests.push_back({f, at, std::min<uint64_t>(10'007, bytes.size() - at), copy.data() + at});
  std::reverse(requests.begin(), requests.end());
  io->submit(IoOp::write, requests)->wait();
  io->sync(f);
  io->drop_cache(f);
  BytesVector back(bytes.size());
  io->read(f, 0, back.data(), back.size());
  EXPECT_TRUE(equal_bytes(back, bytes));
  io->close(f);
  EXPECT_TRUE(equal_bytes(read_plainly(folder_.file("x")), bytes));
  const FileId g = io->open(folder_.file("x"), OpenMode::update);
  io->write(g, 10, bytes.data(), 3);
  io->resize(g, 100);
  EXPECT_EQ(io->size_bytes(g), 100u);
  io->close(g);
  auto expected = bytes;
  std::copy_n(bytes.begin(), 3, expected.begin() + 10);
  expected.resize(100);
  EXPECT_TRUE(equal_bytes(read_plainly(folder_.file("x")), expected));
}

TEST_P(BlockIoTest, WholePagesAreWrittenPastTheCache) {
  constexpr size_t kBytes = 300 * kPageBytes;
  IoOptions options;
  options.max_request_bytes = 100 << 10;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::pages);
  io->resize(f, kBytes);
  const auto bytes = random_bytes(kBytes, 11);
  const std::unique_ptr<std::byte, void (*)(void*)> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, kBytes)), std::free);
  std::copy(bytes.begin(), bytes.end(), memory.get());
  constexpr size_t kSplit = 77 * kPageBytes;
  io->submit(IoOp::write, {{f, kSplit, kBytes - kSplit, memory.get() + kSplit}, {f, 0, kSplit, memory.get()}})
      ->wait();
  EXPECT_EQ(io->counters().write_bytes, kBytes);
  EXPECT_TRUE(equal_bytes(read_plainly(folder_.file("x")), bytes));
  BytesVector back(5000);
  io->read(f, 123, back.data(), back.size());
  EXPECT_TRUE(equal_bytes(back, std::span(bytes).subspan(123, back.size())));
  const auto part_of_a_page = [&](uint64_t offset, uint64_t length, size_t at) {
    return message_of([&] { io->write(f, offset, memory.get() + at, length); }, ErrorKind::argument);
  };
  EXPECT_NE(part_of_a_page(1, kPageBytes, 0).find("whole pages"), std::string::npos);
  EXPECT_NE(part_of_a_page(0, 100, 0).find("whole pages"), std::string::npos);
  EXPECT_NE(part_of_a_page(0, kPageBytes, 8).find("whole pages"), std::string::npos);
}

TEST_P(BlockIoTest, ReadBeyondTheEndNamesEverything) {
  write_plainly(folder_.file("x"), random_bytes(5000, 7));
  auto io = engine();
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  BytesVector memory(20'000);
  io->read(f, 4000, memory.data(), 1000);  // up to the very end
  const std::string expected =
      folder_.file("x") +
      " ends at byte 5000, 1001 bytes at offset 4000 were asked for: the file is truncated";
  EXPECT_EQ(message_of([&] { io->read(f, 4000, memory.data(), 1001); }, ErrorKind::io), expected);
  EXPECT_NE(message_of([&] { io->read(f, 8192, memory.data(), 1); }, ErrorKind::io).find("truncated"),
            std::string::npos);
  EXPECT_NE(message_of([&] { io->read(f, 1 << 20, memory.data(), 1); }, ErrorKind::io).find("byte 5000"),
            std::string::npos);
}

TEST_P(BlockIoTest, AFailedJobLeavesOthersAlone) {
  const auto bytes = random_bytes(1'000'000, 8);
  write_plainly(folder_.file("good"), bytes);
  write_plainly(folder_.file("short"), random_bytes(100, 9));
  auto io = engine();
  const FileId good = io->open(folder_.file("good"), OpenMode::read),
               bad = io->open(folder_.file("short"), OpenMode::read);
  for (int round = 0; round < 20; ++round) {
    BytesVector a(bytes.size()), b(bytes.size()), c(1'000'000);
    auto first = io->submit(IoOp::read, {{good, 0, a.size(), a.data()}});
    std::vector<IoRequest> failing;
    for (int i = 0; i < 200; ++i) failing.push_back({bad, 0, 1000, c.data() + i * 1000});
    auto broken = io->submit(IoOp::read, failing);
    auto last = io->submit(IoOp::read, {{good, 0, b.size(), b.data()}});
    last->wait();
    EXPECT_THROW(broken->wait(), Error);
    EXPECT_THROW(broken->wait(), Error);
    EXPECT_TRUE(broken->done());
    first->wait();
    ASSERT_TRUE(equal_bytes(a, bytes));
    ASSERT_TRUE(equal_bytes(b, bytes));
  }
}

TEST_P(BlockIoTest, DroppedJobsAreFinishedBeforeTheirMemoryGoes) {
  write_plainly(folder_.file("x"), random_bytes(4 << 20, 10));
  auto io = engine();
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  for (int i = 0; i < 20; ++i) {
    Buffer memory(*budget_, "test", 4 << 20);  // unmapped right after the job: a late write would crash
    auto job = io->submit(IoOp::read, {{f, 0, memory.size(), memory.data()}});
    job.reset();
  }
  BytesVector memory(4 << 20);
  auto job = io->submit(IoOp::read, {{f, 0, memory.size(), memory.data()}});
  io->close(f);  // under way
  io.reset();    // the engine finishes it
  EXPECT_TRUE(job->done());
  job->wait();
  EXPECT_TRUE(equal_bytes(memory, read_plainly(folder_.file("x"))));
}

TEST_P(BlockIoTest, ClosedSlotsAreReusedWithoutMixingFiles) {
  auto io = engine();
  std::vector<BytesVector> contents;
  for (int i = 0; i < 40; ++i) {
    contents.push_back(random_bytes(10'000, 100 + i));
    write_plainly(folder_.file(std::to_string(i)), contents.back());
  }
  std::set<FileId> ids;
  for (int round = 0; round < 5; ++round)
    for (int i = 0; i < 40; ++i) {
      const FileId f = io->open(folder_.file(std::to_string(i)), OpenMode::read);
      ids.insert(f);
      BytesVector memory(10'000);
      auto job = io->submit(IoOp::read, {{f, 0, memory.size(), memory.data()}});
      io->close(f);
      job->wait();
      ASSERT_TRUE(equal_bytes(memory, contents[i]));
    }
  EXPECT_LE(ids.size(), 40u);
}

TEST_P(BlockIoTest, ManyOpenFiles) {  // more than are registered with the ring
  auto io = engine();
  std::vector<FileId> files;
  for (int i = 0; i < 300; ++i) {
    const std::string path = folder_.file(std::to_string(i));
    write_plainly(path, BytesVector(100, static_cast<std::byte>(i)));
    files.push_back(io->open(path, OpenMode::read));
  }
  BytesVector memory(300);
  std::vector<IoRequest> requests;
  for (int i = 0; i < 300; ++i) requests.push_back({files[i], 99, 1, memory.data() + i});
  io->submit(IoOp::read, requests)->wait();
  for (int i = 0; i < 300; ++i) EXPECT_EQ(memory[i], static_cast<std::byte>(i));
}

TEST_P(BlockIoTest, RefusesNonsense) {
  write_plainly(folder_.file("x"), random_bytes(100, 1));
  auto io = engine();
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  BytesVector memory(100);
  message_of([&] { io->read(f + 7, 0, memory.data(), 1); }, ErrorKind::argument);
  message_of([&] { io->write(f, 0, memory.data(), 1); }, ErrorKind::argument);
  message_of([&] { io->read(f, UINT64_MAX - 5, memory.data(), 10); }, ErrorKind::argument);
  message_of([&] { io->read(f, 0, nullptr, 10); }, ErrorKind::argument);
  message_of([&] { io->resize(f, 10); }, ErrorKind::argument);
  io->close(f);
  message_of([&] { io->close(f); }, ErrorKind::argument);
  const std::string missing = folder_.file("missing");
  EXPECT_NE(message_of([&] { io->open(missing, OpenMode::read); }, ErrorKind::io, ENOENT).find(missing),
            std::string::npos);
  message_of([&] { io->open(folder_.file(""), OpenMode::read); }, ErrorKind::io);
  IoOptions none;
  none.depth = 0;
  message_of([&] { engine(none); }, ErrorKind::argument);
}

TEST_P(BlockIoTest, TinyBudgetsAndDepths) {
  const auto bytes = random_bytes(500'000, 11);
  write_plainly(folder_.file("x"), bytes);
  for (unsigned depth : {1u, 2u, 300u}) {
    budget_ = Budget::create(256 << 10);
    IoOptions options;
    options.depth = depth;
    options.max_request_bytes = 1;
    auto io = engine(options);
    EXPECT_LE(budget_->by_tag().at("io-buffers").now_bytes, 16u << 10);
    const FileId f = io->open(folder_.file("x"), OpenMode::read);
    BytesVector memory(bytes.size());
    io->read(f, 1, memory.data(), bytes.size() - 1);
    EXPECT_TRUE(same(memory.data(), bytes, 1, bytes.size() - 1));
    io.reset();
    EXPECT_EQ(budget_->now_bytes(), 0u);
  }
}

TEST_P(BlockIoTest, LeavesNoDescriptorsBehind) {
  const auto count = [] {
    size_t n = 0;
    for ([[maybe_unused]] const auto& e : std::filesystem::directory_iterator("/proc/self/fd")) ++n;
    return n;
  };
  const size_t before = count();
  {
    write_plainly(folder_.file("x"), random_bytes(100, 1));
    auto io = engine();
    io->open(folder_.file("x"), OpenMode::read);
    EXPECT_GT(count(), before);
  }
  EXPECT_EQ(count(), before);
}

#if !defined(__SANITIZE_THREAD__)  // TSan does not support threads and fork in one process
TEST_P(BlockIoTest, AForkedChildNeitherHangsNorReads) {
  write_plainly(folder_.file("x"), random_bytes(100, 1));
  auto io = engine();
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  BytesVector memory(100);
  auto job = io->submit(IoOp::read, {{f, 0, 100, memory.data()}});
  job->wait();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    int refused = 0;
    try {
      io->read(f, 0, memory.data(), 1);
    } catch (const Error&) {
      refused = 1;
    }
    job.reset();
    io.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  io->read(f, 0, memory.data(), 100);  // the parent goes on
}
#endif

}  // namespace
}  // namespace outcrop::testing
