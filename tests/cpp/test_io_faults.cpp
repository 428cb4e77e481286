#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>

#include "io/faults.h"
#include "io_test_util.h"

namespace outcrop::testing {
namespace {

class IoFaultTest : public BothBackends {
 protected:
  void SetUp() override {
    BothBackends::SetUp();
    bytes_ = random_bytes(1'000'123, 1);
    write_plainly(folder_.file("x"), bytes_);
  }
  // Requests of many shapes that together cover the whole file.
  std::vector<IoRequest> pieces(FileId f, BytesVector& memory) const {
    std::mt19937_64 rng(2);
    std::vector<IoRequest> requests;
    for (uint64_t at = 0; at < bytes_.size();) {
      const uint64_t n = std::min<uint64_t>(1 + rng() % 30'000, bytes_.size() - at);
      requests.push_back({f, at, n, memory.data() + at});
      at += n;
    }
    return requests;
  }
  BytesVector bytes_;
};
// What is read ahead must not hold up what is wanted first.
TEST_P(IoFaultTest, AnEarlierJobEndsBeforeALaterOneIsUnderWayWhole) {
  IoOptions options;
  options.max_request_bytes = 4096;
  options.threads = 8;
  options.faults.delay_us = 20000;
  auto io = engine(options);
  const BytesVector bytes = random_bytes(96 * 4096, 9);
  write_plainly(folder_.file("a"), bytes);
  const FileId file = io->open(folder_.file("a"), OpenMode::read);
  Buffer first(*budget_, "test", 32 * 4096), second(*budget_, "test", 64 * 4096);
  auto one = io->submit(IoOp::read, {{file, 0, 32 * 4096, first.data()}});
  auto two = io->submit(IoOp::read, {{file, 32 * 4096, 64 * 4096, second.data()}});
  one->wait();
  EXPECT_FALSE(two->done());
  two->wait();
  EXPECT_EQ(std::memcmp(first.data(), bytes.data(), first.size()), 0);
  EXPECT_EQ(std::memcmp(second.data(), bytes.data() + first.size(), second.size()), 0);
  io->close(file);
}

INSTANTIATE_TEST_SUITE_P(Backends, IoFaultTest, ::testing::Values(Backend::uring, Backend::pread),
                         backend_test_name);

TEST_P(IoFaultTest, ShortTransfersAndInterruptionsAreInvisible) {
  for (bool direct : {true, false}) {
    IoOptions options;
    options.direct = direct;
    const auto run = [&](double probability) {
      options.faults.short_probability = options.faults.eagain_probability = probability;
      auto io = engine(options);
      const FileId f = io->open(folder_.file("x"), OpenMode::read),
                   g = io->open(folder_.file("y"), OpenMode::create);
      BytesVector memory(bytes_.size());
      io->submit(IoOp::read, pieces(f, memory))->wait();
      EXPECT_TRUE(equal_bytes(memory, bytes_));
      io->submit(IoOp::write, pieces(g, memory))->wait();
      io->close(g);
      EXPECT_TRUE(equal_bytes(read_plainly(folder_.file("y")), bytes_));
      return io->counters();
    };
    const IoCounters clean = run(0), faulty = run(0.5), again = run(0.5);
    EXPECT_EQ(clean.retries, 0u);
    EXPECT_EQ(clean.short_reads, 0u);
    EXPECT_GT(faulty.retries, 0u);
    EXPECT_GT(faulty.short_reads, 0u);
    EXPECT_EQ(faulty.read_bytes, clean.read_bytes);  // a continued operation counts once
    EXPECT_EQ(faulty.read_ops, clean.read_ops);
    EXPECT_EQ(faulty.write_ops, clean.write_ops);
    EXPECT_EQ(faulty.retries, again.retries);  // repeatable
    EXPECT_EQ(faulty.short_reads, again.short_reads);
  }
}

TEST_P(IoFaultTest, ExactlyTheChosenOperationFails) {
  IoOptions options;
  options.faults.fail_at_op = 3;
  options.faults.error_number = EIO;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  BytesVector memory(4096 * 8);
  for (uint64_t i = 0; i < 8; ++i) {
    const auto read = [&] { io->read(f, i * 4096, memory.data() + i * 4096, 4096); };
    if (i != 3) {
      read();
      continue;
    }
    EXPECT_EQ(message_of(read, ErrorKind::io, EIO),
              "cannot read 4096 bytes at offset 12288 of " + folder_.file("x") + ": Input/output error");
  }
  EXPECT_EQ(std::memcmp(memory.data() + 4 * 4096, bytes_.data() + 4 * 4096, 4 * 4096), 0);
}

// As under a seccomp filter that forbids io_uring_enter alone.
TEST_P(IoFaultTest, ARingThatCannotBeEnteredIsNotUsed) {
  if (GetParam() != Backend::uring) GTEST_SKIP() << "only a ring is entered";
  IoOptions options;
  options.faults.fail_enter_at = 0;
  options.faults.error_number = EPERM;
  EXPECT_EQ(message_of([&] { engine(options); }, ErrorKind::io, EPERM),
            "io_uring cannot be used here (choose the pread backend): Operation not permitted");
  options.backend = Backend::automatic;
  auto io = BlockIo::create(options, budget_);
  EXPECT_EQ(io->backend_name(), "pread");
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  BytesVector memory(bytes_.size());
  io->submit(IoOp::read, pieces(f, memory))->wait();
  EXPECT_TRUE(equal_bytes(memory, bytes_));
}

TEST_P(IoFaultTest, ARingThatFailsLaterSaysWhyEachTime) {
  if (GetParam() != Backend::uring) GTEST_SKIP() << "only a ring is entered";
  IoOptions options;
  options.faults.fail_enter_at = 1;
  options.faults.error_number = EPERM;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  std::byte b;
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(message_of([&] { io->read(f, 0, &b, 1); }, ErrorKind::io, EPERM),
              "the kernel no longer serves the io_uring of this process (Operation not permitted): run it "
              "again with "
              "OUTCROP_IO_BACKEND=pread in the environment");
}

// Until the kernel is done with a request it may write to the request's memory, which is its caller's again when the job
// has failed. A delay, which the kernel counts, stands for a slow disk. Reads follow, each of which makes the ring be
// entered, until that fails: on a busy machine the first one may be over by then, and all is tried again.
TEST_P(IoFaultTest, ARingThatFailsLaterWaitsForWhatIsUnderWay) {
  if (GetParam() != Backend::uring) GTEST_SKIP() << "only a ring is entered";
  IoOptions options;
  options.faults.fail_enter_at = 3;
  options.faults.error_number = EPERM;
  options.faults.delay_us = 400'000;
  for (int attempt = 0; attempt < 20; ++attempt) {
    auto io = engine(options);
    const FileId f = io->open(folder_.file("x"), OpenMode::read);
    BytesVector memory(64 * 4096);
    const auto started = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<IoJob>> jobs;
    for (uint64_t i = 0; i < 64; ++i) {
      jobs.push_back(io->submit(IoOp::read, {{f, i * 4096, 4096, memory.data() + i * 4096}}));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    bool failed = false;
    try {
      jobs.front()->wait();
    } catch (const Error& error) {
      failed = true;
      EXPECT_EQ(error.error_number(), EPERM);
    }
    const auto took = std::chrono::steady_clock::now() - started;
    for (const auto& job : jobs) try {
        job->wait();
      } catch (const Error&) {
      }
    if (!failed) continue;
    EXPECT_GE(took, std::chrono::microseconds(options.faults.delay_us));
    return;
  }
  FAIL() << "the first read was over each time before the ring failed";
}

// From here on every thread of this process is refused to enter rings; returns whether that could be had.
bool refuse_to_enter_rings() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_enter, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

// Nobody can know what a kernel does that answers nothing: jobs fail when it has had time for what it was given.
TEST_P(IoFaultTest, AKernelThatAnswersNothingIsNotWaitedForLong) {
  if (GetParam() != Backend::uring) GTEST_SKIP() << "only a ring is entered";
  constexpr int kFailed = 3, kDone = 4, kNoFilter = 5, kThrown = 6;
  const pid_t child = fork();  // a filter stays
  if (child == 0) {
    try {
      IoOptions options;
      options.faults.delay_us = 60'000'000;
      auto io = engine(options);
      const FileId f = io->open(folder_.file("x"), OpenMode::read);
      BytesVector memory(2 * 4096);
      auto slow = io->submit(IoOp::read, {{f, 0, 4096, memory.data()}});
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (!refuse_to_enter_rings()) _exit(kNoFilter);
      const auto started = std::chrono::steady_clock::now();
      auto later = io->submit(IoOp::read, {{f, 4096, 4096, memory.data() + 4096}});
      int failed = 0;
      for (auto* job : {&later, &slow}) {
        try {
          (*job)->wait();
        } catch (const Error&) {
          ++failed;
        }
      }
      const auto took =
          std::chrono::steady_clock::now() - started;  // 5 s; of a kernel that answers up to 30 s
      const bool in_time = took > std::chrono::seconds(4) && took < std::chrono::seconds(28);
      _exit(failed == 2 && in_time ? kFailed : kDone);
    } catch (...) {
      _exit(kThrown);
    }
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == kNoFilter) GTEST_SKIP() << "the kernel has no filters of system calls";
  EXPECT_EQ(WEXITSTATUS(status), kFailed);
}

TEST_P(IoFaultTest, EndlessAgainEnds) {
  IoOptions options;
  options.faults.fail_at_op = 0;
  options.faults.error_number = EAGAIN;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  std::byte b;
  EXPECT_NE(message_of([&] { io->read(f, 0, &b, 1); }, ErrorKind::io, EAGAIN)
                .find("no progress after 100 attempts"),
            std::string::npos);
}

TEST_P(IoFaultTest, RandomErrorsFailTheirJobOnly) {
  IoOptions options;
  options.faults.error_probability = 0.02;
  options.faults.seed = 5;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  int failed = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    BytesVector memory(2000);
    auto job = io->submit(IoOp::read, {{f, i * 1000, 2000, memory.data()}});
    try {
      job->wait();
      EXPECT_EQ(std::memcmp(memory.data(), bytes_.data() + i * 1000, 2000), 0);
    } catch (const Error& e) {
      EXPECT_EQ(e.error_number(), EIO);
      ++failed;
    }
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 100);
}

TEST_P(IoFaultTest, FullDisk) {
  IoOptions options;
  options.faults.disk_full_after_bytes = 100'000;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("y"), OpenMode::create);
  io->write(f, 0, bytes_.data(), 60'000);
  EXPECT_NE(message_of([&] { io->write(f, 60'000, bytes_.data() + 60'000, 60'000); }, ErrorKind::io, ENOSPC)
                .find("cannot write 60000 bytes at offset 60000 of " + folder_.file("y")),
            std::string::npos);
  EXPECT_EQ(io->size_bytes(f), 100'000u);  // what fitted was written
  message_of([&] { io->write(f, 0, bytes_.data(), 1); }, ErrorKind::io, ENOSPC);
  BytesVector memory(100'000);
  io->read(f, 0, memory.data(), memory.size());  // reads go on
  EXPECT_EQ(std::memcmp(memory.data(), bytes_.data(), memory.size()), 0);
}

TEST_P(IoFaultTest, DelayedOperationsOverlapAndEnd) {
  IoOptions options;
  options.faults.delay_us = 2000;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("x"), OpenMode::read);
  BytesVector memory(bytes_.size());
  auto job = io->submit(IoOp::read, pieces(f, memory));
  EXPECT_FALSE(job->done());  // submit does not wait
  job->wait();
  EXPECT_TRUE(equal_bytes(memory, bytes_));
}

TEST_P(IoFaultTest, AFailedJobWaitsForItsFlights) {
  IoOptions options;
  options.faults.fail_at_op = 20;
  options.faults.delay_us = 1000;
  options.depth = 16;
  for (int i = 0; i < 5; ++i) {
    auto io = engine(options);
    const FileId f = io->open(folder_.file("x"), OpenMode::read);
    Buffer memory(*budget_, "test", align_up(bytes_.size(), 4096));
    std::vector<IoRequest> requests;
    for (uint64_t at = 0; at + 4096 <= bytes_.size(); at += 4096)
      requests.push_back({f, at, 4096, memory.data() + at});
    auto job = io->submit(IoOp::read, requests);
    EXPECT_THROW(job->wait(), Error);
    memory = Buffer();                        // unmapped
    EXPECT_LT(io->counters().read_ops, 60u);  // the rest was dropped
  }
}

// Reads and writes of several jobs, past the page cache and through it, and of files that are closed in between, so that
// registered files change; every byte is compared with what was written plainly.
class IoFaultsEverywhere : public IoFaultTest {
 protected:
  // Throws what the first job that fails throws, after all have ended.
  void read_and_write(BlockIo& io) {
    for (const std::string name : {"y", "z"}) {
      const FileId from = io.open(folder_.file("x"), OpenMode::read),
                   to = io.open(folder_.file(name), OpenMode::create),
                   paged = io.open(folder_.file(name + "p"), OpenMode::pages);
      BytesVector memory(bytes_.size());
      Buffer pages(*budget_, "test", kPages * 4096);
      std::memcpy(pages.data(), bytes_.data(), pages.size());
      const auto all = pieces(from, memory);
      const auto half = all.begin() + static_cast<ptrdiff_t>(all.size() / 2);
      std::vector<std::shared_ptr<IoJob>> jobs;
      jobs.push_back(io.submit(IoOp::read, {all.begin(), half}));
      jobs.push_back(io.submit(IoOp::write, {{paged, 0, pages.size(), pages.data()}}));
      jobs.push_back(io.submit(IoOp::read, {half, all.end()}));
      wait_for(jobs);
      EXPECT_TRUE(equal_bytes(memory, bytes_));
      jobs.push_back(io.submit(IoOp::write, {{to, 0, bytes_.size(), memory.data()}}));
      wait_for(jobs);
      for (const FileId file : {from, to, paged}) io.close(file);
      EXPECT_TRUE(equal_bytes(read_plainly(folder_.file(name)), bytes_));
      EXPECT_TRUE(equal_bytes(read_plainly(folder_.file(name + "p")), std::span(bytes_).first(pages.size())));
    }
  }

  // How many there are without faults.
  uint64_t operations_of() {
    auto io = engine(few_at_a_time());
    read_and_write(*io);
    return io->counters().read_ops + io->counters().write_ops;
  }

  static IoOptions few_at_a_time() {
    IoOptions options;
    options.depth = 8;
    options.max_request_bytes = 64 << 10;
    return options;
  }

 private:
  static constexpr size_t kPages = 40;

  static void wait_for(std::vector<std::shared_ptr<IoJob>>& jobs) {
    std::exception_ptr failed;
    for (const auto& job : jobs) try {
        job->wait();
      } catch (...) {
        if (!failed) failed = std::current_exception();
      }
    jobs.clear();
    if (failed) std::rethrow_exception(failed);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, IoFaultsEverywhere, ::testing::Values(Backend::uring, Backend::pread),
                         backend_test_name);

// What the kernel says when it has no memory, too many completions that nobody has taken, or a signal: nothing was
// submitted, and all is again later. The first entry of all decides whether there is a ring.
TEST_P(IoFaultsEverywhere, ASubmissionThatFailsForAWhileIsMadeAgain) {
  if (GetParam() != Backend::uring) GTEST_SKIP() << "only a ring is entered";
  for (const int error : {EAGAIN, EBUSY, ENOMEM, EINTR})
    for (const uint64_t times : {1, 20})
      for (uint64_t at = 1; at < 40; at += times) {
        IoOptions options = few_at_a_time();
        options.faults.fail_enter_at = at;
        options.faults.fail_enters = times;
        options.faults.error_number = error;
        auto io = engine(options);
        read_and_write(*io);
      }
}

TEST_P(IoFaultsEverywhere, ASubmissionThatFailsForGoodIsAnErrorWhereverItIs) {
  if (GetParam() != Backend::uring) GTEST_SKIP() << "only a ring is entered";
  for (uint64_t at = 1; at < 40; ++at) {
    IoOptions options = few_at_a_time();
    options.faults.fail_enter_at = at;
    options.faults.error_number = ENXIO;
    auto io = engine(options);
    EXPECT_NE(message_of([&] { read_and_write(*io); }, ErrorKind::io, ENXIO)
                  .find("the kernel no longer serves the io_uring of this process"),
              std::string::npos);
  }
  for (const int error : {EAGAIN, EBUSY, ENOMEM}) {  // a thousand times in a row
    IoOptions options = few_at_a_time();
    options.faults.fail_enter_at = 3;
    options.faults.error_number = error;
    auto io = engine(options);
    EXPECT_NE(message_of([&] { read_and_write(*io); }, ErrorKind::io, error).find("OUTCROP_IO_BACKEND=pread"),
              std::string::npos);
  }
}

TEST_P(IoFaultsEverywhere, ACompletionThatAsksForAnotherTryIsInvisible) {
  const uint64_t operations = operations_of();
  for (const int error : {EAGAIN, EINTR})
    for (uint64_t at = 0; at < operations; at += 3) {
      IoOptions options = few_at_a_time();
      options.faults.fail_at_op = at;
      options.faults.fail_attempts = 1 + at % 50;
      options.faults.short_probability = at % 2 == 0 ? 0.5 : 0;
      options.faults.error_number = error;
      auto io = engine(options);
      read_and_write(*io);
      EXPECT_GE(io->counters().retries, options.faults.fail_attempts);
    }
}

TEST_P(IoFaultsEverywhere, ACompletionThatFailsIsAnErrorOfItsFileWhereverItIs) {
  const uint64_t operations = operations_of();
  EXPECT_GT(operations, 60u);
  for (const int error : {EIO, ENOSPC, EBADMSG})
    for (uint64_t at = 0; at < operations; at += 3) {
      IoOptions options = few_at_a_time();
      options.faults.fail_at_op = at;
      options.faults.error_number = error;
      auto io = engine(options);
      const std::string said = message_of([&] { read_and_write(*io); }, ErrorKind::io, error);
      EXPECT_NE(said.find(std::string("of ") + folder_.file("").substr(0, 20)), std::string::npos) << said;
      EXPECT_NE(said.find(std::strerror(error)), std::string::npos) << said;
      read_and_write(*io);  // the fault is over, and the engine serves on
    }
}

TEST(FaultPlan, AnyAndDecisionsAreKeyed) {
  FaultPlan plan;
  EXPECT_FALSE(plan.any());
  plan.short_probability = 0.3;
  EXPECT_TRUE(plan.any());
  int shortened = 0;
  for (uint64_t n = 0; n < 10'000; ++n) {
    const Fault a = decide_fault(plan, IoOp::read, n, 0, 8192, true, 0),
                b = decide_fault(plan, IoOp::read, n, 0, 8192, true, 0);
    ASSERT_EQ(a.length, b.length);
    ASSERT_EQ(a.length % 512, 0u);
    ASSERT_TRUE(a.length >= 512 && a.length <= 8192);
    shortened += a.length < 8192;
  }
  EXPECT_NEAR(shortened, 3000, 250);
}

}  // namespace
}  // namespace outcrop::testing
