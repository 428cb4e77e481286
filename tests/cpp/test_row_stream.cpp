// RowStream against plain copies: every width, any scratch, many jobs at once, jobs dropped and failed.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "io/row_stream.h"
#include "io/rows.h"
#include "io_test_util.h"

namespace outcrop::testing {
namespace {

class RowStreamTest : public BothBackends {
 protected:
  // A file of rows, and what is read of it.
  void make(uint64_t width, uint64_t stride, uint64_t num_rows, uint64_t scratch, IoOptions options = {}) {
    stream_.reset();
    file_ = random_bytes(stride * num_rows, width);
    write_plainly(folder_.file("rows"), file_);
    layout_ = {0, stride, width};
    num_rows_ = num_rows;
    io_ = engine(options);
    id_ = io_->open(folder_.file("rows"), OpenMode::read);
    stream_ = std::make_unique<RowStream>(io_, *budget_, id_, layout_, num_rows, scratch);
  }

  struct Wish {
    std::vector<int64_t> ids;
    std::vector<int32_t> positions;
    BytesVector out;
    std::unique_ptr<RowJob> job;
  };

  std::unique_ptr<Wish> submit(size_t n, uint64_t seed) {
    auto wish = std::make_unique<Wish>();
    std::mt19937_64 rng(seed);
    for (size_t i = 0; i < n; ++i) wish->ids.push_back(static_cast<int64_t>(rng() % num_rows_));
    std::sort(wish->ids.begin(), wish->ids.end());
    wish->positions.resize(n);
    std::iota(wish->positions.begin(), wish->positions.end(), 0);
    std::shuffle(wish->positions.begin(), wish->positions.end(), rng);
    wish->out.resize(n * layout_.row_bytes);
    wish->job =
        stream_->submit(wish->ids.data(), wish->positions.data(), n, wish->out.data(), n, layout_.row_bytes);
    return wish;
  }

  size_t wrong(const Wish& wish) const {
    size_t bad = 0;
    for (size_t i = 0; i < wish.ids.size(); ++i)
      bad += std::memcmp(wish.out.data() + static_cast<size_t>(wish.positions[i]) * layout_.row_bytes,
                         file_.data() + static_cast<size_t>(wish.ids[i]) * layout_.stride,
                         layout_.row_bytes) != 0;
    return bad;
  }

  BytesVector file_;
  RowLayout layout_;
  uint64_t num_rows_ = 0;
  std::shared_ptr<BlockIo> io_;
  FileId id_ = 0;
  std::unique_ptr<RowStream> stream_;
};

TEST_P(RowStreamTest, EveryWidthAndScratchReadsEachPageOnce) {
  for (uint64_t width : {1, 343, 1024, 5732})
    for (uint64_t scratch : {RowStream::min_scratch_bytes(width), uint64_t{2} << 20}) {
      make(width, width + (width == 343 ? 29 : 0), 777, scratch);
      const auto a = submit(500, 1), b = submit(0, 2), c = submit(900, 3);
      c->job->wait();
      a->job->wait();
      b->job->wait();
      a->job->wait();
      EXPECT_EQ(wrong(*a) + wrong(*c), 0u) << width << " " << scratch;
      uint64_t expected = 0;
      for (const auto* w : {a.get(), c.get()})
        for (uint64_t last = UINT64_MAX; const int64_t id : w->ids)
          for (uint64_t p = layout_.first_page(static_cast<uint64_t>(id));
               p < layout_.end_page(static_cast<uint64_t>(id)); ++p)
            if (last == UINT64_MAX || p > last)
              expected += std::min<uint64_t>(kPageBytes, file_.size() - p * kPageBytes), last = p;
      // With O_DIRECT the end of a file is read as whole sectors.
      EXPECT_LE(io_->counters().read_bytes, expected + 2 * kPageBytes);
      EXPECT_GE(io_->counters().read_bytes, expected);
    }
}

TEST_P(RowStreamTest, ManyJobsFromManyThreads) {
  make(512, 512, 4000, 1 << 20);
  std::vector<std::thread> threads;
  std::atomic<size_t> bad = 0;
  for (uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      std::vector<std::unique_ptr<Wish>> mine;
      for (uint64_t i = 0; i < 12; ++i) mine.push_back(submit(i * 60, 100 * t + i));
      for (size_t i = mine.size(); i-- > 0;) {
        if (i % 4 == 3) continue;  // dropped
        mine[i]->job->wait();
        bad += wrong(*mine[i]);
      }
      for (auto& wish : mine) wish->job.reset();
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(bad, 0u);
}

TEST_P(RowStreamTest, AFailedReadFailsItsJobAlone) {
  IoOptions options;
  options.faults.fail_at_op = 3;
  options.max_request_bytes = 64 << 10;
  make(512, 512, 4000, 256 << 10, options);
  std::vector<std::unique_ptr<Wish>> wishes;
  for (uint64_t i = 0; i < 4; ++i) wishes.push_back(submit(2000, i));
  size_t failed = 0;
  for (auto& wish : wishes) {
    try {
      wish->job->wait();
      EXPECT_EQ(wrong(*wish), 0u);
    } catch (const Error& error) {
      ++failed;
      EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(ErrorKind::io));
      EXPECT_THROW(wish->job->wait(), Error);
    }
  }
  EXPECT_EQ(failed, 1u);
}

TEST_P(RowStreamTest, ShortReadsAreFinished) {
  IoOptions options;
  options.faults.short_probability = 0.5;
  options.faults.eagain_probability = 0.2;
  make(100, 128, 3000, 1 << 20, options);
  const auto a = submit(1500, 1);
  a->job->wait();
  EXPECT_EQ(wrong(*a), 0u);
}

TEST_P(RowStreamTest, EndsWithJobsUnderWay) {
  make(512, 512, 4000, 256 << 10);
  std::vector<std::unique_ptr<Wish>> wishes;
  for (uint64_t i = 0; i < 8; ++i) wishes.push_back(submit(3000, i));
  stream_.reset();
  for (auto& wish : wishes) {
    EXPECT_TRUE(wish->job->ready());
    try {
      wish->job->wait();
      EXPECT_EQ(wrong(*wish), 0u);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("closed"), std::string::npos);
    }
  }
}

TEST_P(RowStreamTest, RefusesNonsense) {
  make(100, 100, 40, 1 << 20);
  const int64_t falls[] = {3, 2}, outside[] = {3, 40}, fine[] = {2, 2};
  const int32_t places[] = {0, 1}, beyond[] = {0, 2};
  BytesVector out(200);
  const auto refuse = [&](const int64_t* ids, const int32_t* positions) {
    message_of([&] { stream_->submit(ids, positions, 2, out.data(), 2, 100); }, ErrorKind::argument);
  };
  refuse(falls, places);
  refuse(outside, places);
  refuse(fine, beyond);
  EXPECT_EQ(io_->counters().read_ops, 0u);
  message_of([&] { RowStream(io_, *budget_, id_, layout_, 40, 100); }, ErrorKind::argument);
  message_of([&] { RowStream(io_, *budget_, id_, layout_, 41, 1 << 20); }, ErrorKind::io);
  message_of([&] { RowStream(io_, *budget_, id_, layout_, 40, uint64_t{2} << 30); }, ErrorKind::budget);
}

INSTANTIATE_TEST_SUITE_P(Backends, RowStreamTest, ::testing::Values(Backend::uring, Backend::pread),
                         backend_test_name);

}  // namespace
}  // namespace outcrop::testing
