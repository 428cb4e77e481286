// Rows through rings: the code of the GPU kernels, lane by lane, against the controller thread.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "base/checksum.h"
#include "base/random.h"
#include "cpu_kernels/io_queue.h"
#include "io_test_util.h"
#include "rings/controller.h"

namespace outcrop::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// How many reads the test of continuous submission does; sanitizers are given fewer.
int64_t many_reads() {
  if (const char* given = std::getenv("OUTCROP_RING_READS")) return std::atoll(given);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return 20'000;
#else
  return 1'000'000;
#endif
}

// Files in memory, numbered; reads are done when they are asked for.
class MemoryIo final : public BlockIo {
 public:
  explicit MemoryIo(BytesVector bytes) : files_{std::move(bytes)} {}
  explicit MemoryIo(std::vector<BytesVector> files) : files_(std::move(files)) {}
  FileId open(const std::string&, OpenMode) override { return 0; }
  void close(FileId) override {}
  uint64_t size_bytes(FileId file) const override { return files_[file].size(); }
  const std::string& path(FileId) const override { return path_; }
  std::shared_ptr<IoJob> submit(IoOp, std::vector<IoRequest> requests, IoListener* listener,
                                uint64_t token) override {
    for (const IoRequest& r : requests) std::memcpy(r.data, files_[r.file].data() + r.offset, r.length);
    listener->ended(token);
    return std::make_shared<Done>();
  }
  void sync(FileId) override {}
  void drop_cache(FileId) override {}
  void resize(FileId, uint64_t) override {}
  IoCounters counters() const override { return {}; }
  std::string backend_name() const override { return "memory"; }

 private:
  struct Done final : IoJob {
    void wait() override {}
    bool done() const override { return true; }
  };
  const std::vector<BytesVector> files_;
  const std::string path_ = "memory";
};

// The memory of a queue, and the two counters that its submitter keeps.
struct Rings {
  Rings(uint64_t row_bytes, uint64_t ids, std::shared_ptr<Budget> budget = Budget::create(UINT64_MAX))
      : layout(QueueLayout::within(row_bytes, UINT64_MAX, ids)),
        memory(*budget, "ring-staging", layout.bytes),
        queue(layout.at(memory.data())) {
    std::iota(queue.free_ids, queue.free_ids + layout.ids, kernels::uint16{0});
  }
  int64_t under_way() const { return submitted - completed; }
  int64_t room() const { return queue.num_ids - under_way(); }
  uint32_t count(uint32_t status) const { return counts.at(status); }
  void note() {
    for (uint32_t i = 0; i < queue.progress->claimed; ++i) {
      const uint32_t status = kernels::outcomes_of(queue)[i].last >> 16;
      if (status) ++counts.at(status);
    }
  }
  bool lost() const { return kernels::lost(queue); }

  const QueueLayout layout;
  Buffer memory;
  const kernels::IoQueue queue;
  int64_t submitted = 0, completed = 0;
  std::vector<uint32_t> counts = std::vector<uint32_t>(kernels::kSenseless + 1);  // by status
};

// Rows of a table in memory, read through rings into `out`, whose bytes were kUntouched.
class RowsThroughRings {
 public:
  static constexpr std::byte kUntouched{0x5a};
  RowsThroughRings(Rings& rings, kernels::FileRows rows, const std::vector<int64_t>& ids, int64_t out_stride)
      : rings_(rings), rows_(rows), wanted_(ids.begin(), ids.end()), out_stride_(out_stride) {
    out.assign(ids.size() * out_stride, kUntouched);
  }
  // Some completions at a time, and as many new commands: the rings are never empty before the end. Where it
  // is `blind`, it goes on after the queue is lost, as who launches kernels ahead does.
  void read(int64_t at_a_time, int64_t deadline_ns = 20 * kSecond, bool blind = false) {
    const int64_t all = static_cast<int64_t>(wanted_.size()) * kernels::pieces_of(rows_);
    int64_t given = 0;
    while ((blind || !rings_.lost()) && (given < all || rings_.under_way() > 0)) {
      const int64_t more = std::min(rings_.room(), all - given);
      if (more > 0) submit(given, more);
      given += more;
      complete(given < all ? std::min(at_a_time, rings_.under_way()) : rings_.under_way(), deadline_ns);
    }
  }
  void submit(int64_t first, int64_t count) {
    cpu_io_submit(kernels::Submit{rings_.queue, reinterpret_cast<uint64_t>(rings_.queue.staging), rows_,
                                  wanted_.data(), reinterpret_cast<kernels::uint8*>(out.data()), out_stride_,
                                  first, count, rings_.submitted, rings_.completed, rings_.completed - 1,
                                  nullptr});
    rings_.submitted += count;
  }
  void complete(int64_t count, int64_t deadline_ns) {
    const auto* ended = reinterpret_cast<const kernels::uint32*>(rings_.memory.data() + rings_.layout.ended);
    cpu_io_complete({rings_.queue, ended, count, rings_.completed}, deadline_ns);
    rings_.note();
    rings_.completed += count;
  }
  // Rows that are neither right nor (where they may be) untouched; and how many are untouched.
  std::pair<int64_t, int64_t> judge(const BytesVector& file) const {
    int64_t wrong = 0, untouched = 0;
    const BytesVector nothing(out_stride_, kUntouched);
    for (size_t i = 0; i < wanted_.size(); ++i) {
      const std::byte* row = out.data() + i * out_stride_;
      const std::byte* there = file.data() + rows_.base + wanted_[i] * rows_.stride;
      const auto width = static_cast<size_t>(rows_.row_bytes);
      if (std::memcmp(row, nothing.data(), width) == 0)
        ++untouched;
      else
        wrong += std::memcmp(row, there, width) != 0;
      wrong += std::memcmp(row + width, nothing.data(), out_stride_ - width) != 0;
    }
    return {wrong, untouched};
  }
  BytesVector out;

 private:
  Rings& rings_;
  const kernels::FileRows rows_;
  const std::vector<kernels::int64> wanted_;
  const int64_t out_stride_;
};

using Verdicts = std::pair<int64_t, int64_t>;

std::vector<int64_t> some_ids(size_t n, int64_t below, uint64_t seed) {
  std::vector<int64_t> ids(n);
  for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int64_t>(mix64(seed * 1000003 + i) % below);
  return ids;
}

TEST(IoQueue, SlotsHoldAnyPiece) {
  for (uint64_t row : {1, 511, 512, 513, 2400, 3584, 3585, 4096, 5732, 7680, 7681, 8192, 100000}) {
    const auto layout = QueueLayout::within(row, 1 << 20, 4096);
    for (uint64_t at = 0; at < 512; ++at) {
      const uint64_t piece = std::min<uint64_t>(row, kernels::kPieceBytes);
      EXPECT_LE(align_up(at + piece, 512), layout.slot_bytes) << row << " at " << at;
    }
    EXPECT_LE(layout.slot_bytes, 2 * kPageBytes);
    EXPECT_TRUE(kPageBytes % layout.slot_bytes == 0 || layout.slot_bytes == 2 * kPageBytes);
    EXPECT_LE(layout.bytes, uint64_t{1} << 20);
    EXPECT_GT(QueueLayout::within(row, layout.bytes + 4 * kPageBytes, 4096).ids,
              std::min<uint64_t>(layout.ids, 4095));
    EXPECT_EQ(QueueLayout::within(row, 0, 4096).ids, 1u);
    EXPECT_EQ(QueueLayout::within(row, 1 << 30, 100).ids, 100u);
  }
  EXPECT_EQ(QueueLayout::within(1, UINT64_MAX, UINT64_MAX).ids, 65535u);
  message_of([] { QueueLayout::within(0, 1 << 20, 1); }, ErrorKind::argument);
}

// The test plays the controller. At any time every id is free or under way, once; a command says where its
// row is, and where that goes; rings never hold more than they have room for.
TEST(IoQueue, SlotsAndIdsAreReusedAsInAModel) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomStream random(7, seed);
    const int64_t row = 1 + random.next32() % 9000, base = random.next32() % 3000;
    const kernels::FileRows rows{base, row + random.next32() % 700, row};
    const uint64_t num_ids = 1 + random.next32() % 9;
    Rings rings(row, num_ids);
    const auto& q = rings.queue;
    const auto ids = some_ids(40, 1000, seed);
    RowsThroughRings reader(rings, rows, ids, row);
    const int64_t pieces = kernels::pieces_of(rows), all = 40 * pieces;
    std::map<int, int64_t> under_way;  // id -> command
    int64_t given = 0, fetched = 0, published = 0;
    while (given < all || rings.under_way() > 0) {
      const int64_t more = std::min<int64_t>(random.next32() % (rings.room() + 1), all - given);
      reader.submit(given, more);
      ASSERT_EQ(*q.pair.command_doorbell, static_cast<uint64_t>(rings.submitted) % (num_ids + 1));
      ASSERT_EQ(*q.pair.completion_doorbell, static_cast<uint64_t>(rings.completed) % (num_ids + 1));
      given += more;
      for (; fetched < given; ++fetched) {
        const auto& c = q.pair.commands[fetched % (num_ids + 1)];
        ASSERT_LT(c.id, num_ids);
        ASSERT_TRUE(under_way.emplace(c.id, fetched).second) << "id given twice";
        const int64_t begin = fetched % pieces * kernels::kPieceBytes;
        const int64_t from = base + ids[fetched / pieces] * rows.stride + begin;
        const int64_t to = from + std::min<int64_t>(kernels::kPieceBytes, row - begin);
        ASSERT_EQ(c.words[0] | uint64_t{c.words[1]} << 32, static_cast<uint64_t>(from / 512));
        ASSERT_EQ(c.words[2] + 1, static_cast<uint64_t>((to - 1) / 512 - from / 512 + 1));
        const uint64_t slot = reinterpret_cast<uint64_t>(q.staging) + c.id * rings.layout.slot_bytes;
        const uint64_t end = slot + (c.words[2] + 1) * 512;
        ASSERT_LE(end, slot + rings.layout.slot_bytes);
        ASSERT_EQ(c.data[0], slot);
        ASSERT_EQ(c.data[1], (end - 1) / 4096 == slot / 4096 ? 0 : (slot / 4096 + 1) * 4096);
      }
      ASSERT_LE(under_way.size(), num_ids);
      const int64_t done = random.next32() % (under_way.size() + 1);
      for (int64_t i = 0; i < done; ++i, ++published) {
        auto one = under_way.begin();
        std::advance(one, random.next32() % under_way.size());
        q.pair.completions[published % (num_ids + 1)].last = kernels::completion_word(
            static_cast<uint16_t>(one->first), published / (num_ids + 1) % 2 == 0, 0);
        under_way.erase(one);
      }
      reader.complete(done, 0);
      ASSERT_FALSE(rings.lost());
      std::set<int> ours;
      for (const auto& [id, number] : under_way) ours.insert(id);
      for (int64_t i = 0; i < rings.room(); ++i)
        ASSERT_TRUE(ours.insert(q.free_ids[(rings.submitted + i) % q.num_ids]).second)
            << "free and under way";
      ASSERT_EQ(ours.size(), num_ids);
    }
  }
}

TEST(IoQueue, RowsOfAnyWidthAtAnyPlace) {
  uint64_t seed = 0;
  for (int64_t row : {1, 4, 28, 400, 512, 602, 1372, 3072, 4096, 5732, 7680, 7681, 8192, 20000})
    for (int64_t gap : {0, 13, 112}) {
      const kernels::FileRows rows{gap * 7, row + gap, row};
      const auto file = random_bytes(rows.base + 60 * rows.stride - gap, ++seed);
      Rings rings(row, 1 + seed % 23);
      RingFaults faults;
      faults.shuffle = true;
      faults.seed = seed;
      RingController controller(std::make_shared<MemoryIo>(file), {0}, rings.layout, rings.memory.data(),
                                faults);
      auto ids = some_ids(70, 60, seed);
      ids.push_back(59);
      RowsThroughRings reader(rings, rows, ids, row + seed % 3);
      reader.read(1 + seed % 5);
      const auto wrong = reader.judge(file).first;
      ASSERT_EQ(wrong, 0) << row << " with gaps of " << gap;
      ASSERT_FALSE(rings.lost());
      ASSERT_EQ(controller.served(), static_cast<uint64_t>(rings.submitted));
    }
}

// As warps of a kernel do: whoever finds another looking at the ring lets it look alone.
TEST(IoQueue, OneWarpLooksAtATimeAndEachCompletionIsTakenOnce) {
  const kernels::FileRows rows{0, 700, 700};
  const BytesVector file = random_bytes(700 * 500, 3);
  Rings rings(700, 300);
  std::vector<int64_t> ids(300);
  std::iota(ids.begin(), ids.end(), 100);
  RowsThroughRings reads(rings, rows, ids, 700);
  const auto* ended = reinterpret_cast<const kernels::uint32*>(rings.memory.data() + rings.layout.ended);
  RingController controller(std::make_shared<MemoryIo>(file), {0}, rings.layout, rings.memory.data(), {});
  reads.submit(0, 300);
  const kernels::Complete c{rings.queue, ended, 300, 0};
  const kernels::CompleteTable all{&c};
  struct Looks {
    int left;
    bool over() {
      std::this_thread::yield();
      return --left == 0;
    }
  };
  rings.queue.progress->looking = 1;  // another looks, for ever
  Looks few{1000};
  EXPECT_FALSE(kernels::claim(all, 1, 0, few).there);
  EXPECT_EQ(rings.queue.progress->claimed, 0u);
  EXPECT_TRUE(rings.lost());
  rings.queue.progress->lost = rings.queue.progress->looking = 0;
  std::atomic<int> taken{0};
  std::vector<std::thread> warps;
  for (int warp = 0; warp < 6; ++warp)
    warps.emplace_back([&, warp] {
      Looks many{100'000'000};
      for (;;) {
        const kernels::Claim claim = kernels::claim(all, 1, warp, many);
        if (!claim.there) return;
        for (int lane = 0; lane < kernels::kWarp; ++lane) kernels::land(c.queue, claim, lane);
        kernels::settle(c, claim);
        ++taken;
      }
    });
  for (std::thread& warp : warps) warp.join();
  EXPECT_EQ(taken, 300);
  EXPECT_FALSE(rings.lost());
  EXPECT_EQ(rings.queue.progress->looking, 0u);
  const std::pair<int64_t, int64_t> right{0, 0};
  EXPECT_EQ(reads.judge(file), right);
}

// One thread takes completions while another submits. What it takes ends with the group that has all of its
// own, though commands of another group are never answered; every command that is answered is taken once.
TEST(IoQueue, TakingEndsWithAGroupAndSubmittingGoesOnBeside) {
  const kernels::FileRows rows{0, 512, 512};
  const auto file = random_bytes(512 * 1000, 4);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Rings rings(512, 64);
    RingFaults faults;
    faults.shuffle = true;
    faults.seed = seed;
    faults.silent_from = 500;
    RingController controller(std::make_shared<MemoryIo>(file), {0}, rings.layout, rings.memory.data(),
                              faults);
    const std::vector<kernels::int64> never(10, 900), answered(20, 7);
    std::vector<kernels::uint8> out(512 * 50);
    int64_t submitted = 0;
    const auto submit = [&](const auto& wanted, int64_t group, int64_t at) {
      const auto count = static_cast<int64_t>(wanted.size());
      cpu_io_submit(kernels::Submit{rings.queue, reinterpret_cast<uint64_t>(rings.queue.staging), rows,
                                    wanted.data(), out.data() + 512 * at, 512, 0, count, submitted, 0, 0,
                                    nullptr, 0, group, count});
      submitted += count;
    };
    submit(never, 3, 0);
    submit(answered, 1, 10);
    std::thread beside([&] { submit(answered, 2, 30); });
    std::vector<int> taken(4);
    const auto* ended = reinterpret_cast<const kernels::uint32*>(rings.memory.data() + rings.layout.ended);
    for (int64_t completed = 0; taken[1] < 20 || taken[2] < 20;) {
      cpu_io_complete({rings.queue, ended, 30, completed}, 20 * kSecond);
      ASSERT_FALSE(rings.lost());
      const int64_t n = rings.queue.progress->claimed;
      for (int64_t i = 0; i < n; ++i) ++taken[kernels::outcomes_of(rings.queue)[i].last];
      completed += n;
    }
    beside.join();
    EXPECT_EQ(taken, (std::vector<int>{0, 20, 20, 0}));
    EXPECT_EQ(controller.served(), 40u);
    for (int64_t i = 10; i < 50; ++i)
      ASSERT_EQ(std::memcmp(out.data() + 512 * i, file.data() + 7 * 512, 512), 0);
  }
}

// Queue pairs of several disks, each with files of its own, as namespaces of its controller.
class Disks {
 public:
  static constexpr int64_t kRows = 400, kRow = 600, kSilentRow = 300, kSlots = 16;
  Disks(int64_t queues, int64_t files_each, uint64_t seed) : files_each_(files_each) {
    for (int64_t f = 0; f < queues * files_each; ++f)
      files_.push_back(random_bytes(kRows * kRow, 100 * seed + static_cast<uint64_t>(f)));
    const auto io = std::make_shared<MemoryIo>(files_);
    for (int64_t q = 0; q < queues; ++q) {
      rings_.push_back(std::make_unique<Rings>(kRow, kSlots));
      queues_.push_back(rings_.back()->queue);
      queues_.back().shared = queues_[0].progress;
      queues_.back().group_ended = queues_[0].group_ended;
      RingFaults faults;
      faults.shuffle = true;
      faults.seed = seed + static_cast<uint64_t>(q);
      faults.silent_from = kSilentRow * kRow / kernels::kBlockBytes;
      std::vector<FileId> served;
      for (int64_t f = 0; f < files_each; ++f) served.push_back(static_cast<FileId>(q * files_each + f));
      controllers_.push_back(std::make_unique<RingController>(io, served, rings_.back()->layout,
                                                              rings_.back()->memory.data(), faults));
    }
  }
  // To row `out_row` of `out` and on.
  void submit(int64_t q, const std::vector<kernels::int64>& wanted, const std::vector<kernels::uint16>& files,
              int64_t group, int64_t group_commands, int64_t out_row) {
    Rings& r = *rings_[q];
    const auto count = static_cast<int64_t>(wanted.size());
    cpu_io_submit(kernels::Submit{queues_[q],
                                  reinterpret_cast<uint64_t>(r.queue.staging),
                                  {0, kRow, kRow},
                                  wanted.data(),
                                  out.data() + out_row * kRow,
                                  kRow,
                                  0,
                                  count,
                                  r.submitted,
                                  r.completed,
                                  r.completed,
                                  nullptr,
                                  0,
                                  group,
                                  group_commands,
                                  files.data()});
    r.submitted += count;
  }
  // At most as many completions of each queue as `most` says; `refill` as well. Statuses by group.
  void complete(const std::vector<int64_t>& most, const std::vector<int64_t>& refill) {
    std::vector<kernels::Complete> all;
    for (size_t q = 0; q < rings_.size(); ++q) {
      const auto* ended =
          reinterpret_cast<const kernels::uint32*>(rings_[q]->memory.data() + rings_[q]->layout.ended);
      all.push_back({queues_[q], ended, most[q], rings_[q]->completed, refill[q]});
    }
    cpu_io_complete(all, 20 * kSecond);
    for (auto& r : rings_) {
      const int64_t n = r->queue.progress->claimed;
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t last = kernels::outcomes_of(r->queue)[i].last;
        statuses[last & 0xffff].push_back(last >> 16);
      }
      r->completed += n;
    }
  }
  void complete() {
    std::vector<int64_t> most;
    for (auto& r : rings_) most.push_back(r->under_way());
    complete(most, std::vector<int64_t>(rings_.size()));
  }
  bool lost() const { return kernels::lost(queues_[0]); }
  int64_t completed(int64_t q) const { return rings_[q]->completed; }
  const std::byte* row(int64_t q, int64_t file, int64_t row) const {
    return files_[q * files_each_ + file].data() + row * kRow;
  }
  std::vector<kernels::uint8> out = std::vector<kernels::uint8>(1000 * kRow);
  std::map<int64_t, std::vector<uint32_t>> statuses;

 private:
  const int64_t files_each_;
  std::vector<BytesVector> files_;
  std::vector<std::unique_ptr<Rings>> rings_;
  std::vector<kernels::IoQueue> queues_;
  std::vector<std::unique_ptr<RingController>> controllers_;  // last: they use the memory of the rings
};

// A group with commands that are never answered, another in all queues, one command of which names no file.
TEST(IoQueue, GroupsGoOverTheQueuesOfDisksAndTheirFiles) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const int64_t queues = 1 + static_cast<int64_t>(seed % 4), files = 1 + static_cast<int64_t>(seed % 3);
    constexpr int64_t kNever = 5, kEach = 8;
    Disks disks(queues, files, seed);
    const auto rows = some_ids(kEach, Disks::kSilentRow - 2, seed);
    const std::vector<kernels::int64> never(kNever, Disks::kSilentRow + 5), wanted(rows.begin(), rows.end());
    const std::vector<kernels::uint16> first(kNever);
    std::vector<std::vector<kernels::uint16>> named;
    for (int64_t q = 0; q < queues; ++q) disks.submit(q, never, first, 3, queues * kNever, 500 + q * kNever);
    for (int64_t q = 0; q < queues; ++q) {
      named.emplace_back();
      for (int64_t i = 0; i < kEach; ++i)
        named.back().push_back(static_cast<kernels::uint16>((i + q) % files));
      if (q == queues - 1) named.back()[3] = static_cast<kernels::uint16>(files);
      disks.submit(q, wanted, named.back(), 1, queues * kEach, q * kEach);
    }
    while (static_cast<int64_t>(disks.statuses[1].size()) < queues * kEach) {
      disks.complete();
      ASSERT_FALSE(disks.lost());
    }
    EXPECT_EQ(disks.statuses.size(), 1u);
    auto& statuses = disks.statuses[1];
    EXPECT_EQ(std::count(statuses.begin(), statuses.end(), kernels::kInvalidSpace), 1);
    EXPECT_EQ(std::count(statuses.begin(), statuses.end(), 0u), queues * kEach - 1);
    for (int64_t q = 0; q < queues; ++q) {
      EXPECT_EQ(disks.completed(q), kEach);
      for (int64_t i = 0; i < kEach; ++i)
        if (named[q][i] < files) {
          ASSERT_EQ(std::memcmp(disks.out.data() + (q * kEach + i) * Disks::kRow,
                                disks.row(q, named[q][i], wanted[i]), Disks::kRow),
                    0);
        }
    }
  }
}

// Taking ends when there is room in a queue for what waits, though no group is complete and other disks are
// silent.
TEST(IoQueue, TakingEndsWhenThereIsRoomInAQueueThatOthersWaitFor) {
  Disks disks(2, 1, 1);
  const std::vector<kernels::int64> wanted(12, 7), never(12, Disks::kSilentRow + 5);
  const std::vector<kernels::uint16> first(12);
  disks.submit(0, wanted, first, 1, 30, 0);
  disks.submit(1, never, first, 1, 30, 12);
  disks.complete({4, 12}, {1, 0});
  EXPECT_FALSE(disks.lost());
  EXPECT_EQ(disks.completed(0), 4);
  EXPECT_EQ(disks.completed(1), 0);
  disks.complete({6, 6}, {1, 1});
  EXPECT_EQ(disks.completed(0), 10);
  EXPECT_EQ(disks.completed(1), 0);
  EXPECT_FALSE(disks.lost());
}

// Continuous submission while completions come out of order: with slots taken for ids this fails at once.
TEST(IoQueue, NoWrongRowInManyReads) {
  const kernels::FileRows rows{24, 72, 72};
  const auto file = random_bytes(24 + 50'000 * 72, 5);
  Rings rings(72, 512);
  RingFaults faults;
  faults.shuffle = true;
  RingController controller(std::make_shared<MemoryIo>(file), {0}, rings.layout, rings.memory.data(), faults);
  int64_t out_of_order = 0;
  for (int64_t left = many_reads(), seed = 0; left > 0; ++seed) {
    const int64_t n = std::min<int64_t>(left, 50'000);
    RowsThroughRings reader(rings, rows, some_ids(n, 50'000, seed), 72);
    reader.read(100);
    ASSERT_EQ(reader.judge(file), (Verdicts{0, 0}));
    left -= n;
    for (uint64_t i = 1; i < rings.layout.ids; ++i)
      out_of_order += rings.queue.free_ids[i] != (rings.queue.free_ids[i - 1] + 1) % rings.layout.ids;
  }
  EXPECT_GT(out_of_order, 100);
}

TEST(IoQueue, DelaysAndErrorsHitTheirRowsAndNoOthers) {
  const kernels::FileRows rows{0, 600, 600};
  const auto file = random_bytes(5000 * 600, 9);
  for (uint32_t status : {kernels::kUnreadable, 0x002u, 0x7ffu, 0x4281u, 0x4800u}) {
    Rings rings(600, 64);
    RingFaults faults;
    faults.shuffle = true;
    faults.delay_us = 200;
    faults.error_probability = 0.1;
    faults.error_status = status;
    RingController controller(std::make_shared<MemoryIo>(file), {0}, rings.layout, rings.memory.data(),
                              faults);
    RowsThroughRings reader(rings, rows, some_ids(2000, 5000, status), 600);
    reader.read(20);
    const auto [wrong, untouched] = reader.judge(file);
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(untouched, 100);
    EXPECT_LT(untouched, 400);
    const uint32_t counted = status % 2048 ? status % 2048 : kernels::kOtherStatus;
    EXPECT_EQ(rings.count(counted), untouched);
    EXPECT_EQ(std::accumulate(rings.counts.begin(), rings.counts.end(), 0u), untouched);
    EXPECT_FALSE(rings.lost());
  }
}

TEST(IoQueue, ADeadControllerIsNoticedAndNothingWaitsAgain) {
  const kernels::FileRows rows{0, 64, 64};
  const auto file = random_bytes(64 * 1000, 2);
  const auto read = [&](const RingFaults& faults, int64_t deadline_ns, const std::string& said) {
    Rings rings(64, 32);
    RingController controller(std::make_shared<MemoryIo>(file), {0}, rings.layout, rings.memory.data(),
                              faults);
    RowsThroughRings reader(rings, rows, some_ids(500, 1000, 1), 64);
    reader.read(8, deadline_ns, true);
    EXPECT_TRUE(rings.lost());
    const auto [wrong, untouched] = reader.judge(file);
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(untouched, 300);
    EXPECT_EQ(controller.error().find(said), 0u) << controller.error();
    const uint32_t doorbell = *rings.queue.pair.command_doorbell;
    reader.submit(0, 1);
    EXPECT_EQ(*rings.queue.pair.command_doorbell, doorbell) << "submitted to a lost queue";
    reader.complete(32, 3600 * kSecond);  // does not wait
  };
  RingFaults dies, fails, repeats;
  dies.die_at = 100;
  read(dies, kSecond / 50, "");
  fails.fail_at = 100;
  read(fails, 3600 * kSecond, "the controller was made to fail");
  repeats.repeat_at = 100;
  read(repeats, 3600 * kSecond, "");
}

TEST(IoQueue, CommandsThatMakeNoSenseAreRefused) {
  const auto file = random_bytes(512 * 100 - 5, 3);
  Rings rings(6000, 8);
  auto& q = rings.queue;
  RingController controller(std::make_shared<MemoryIo>(file), {0}, rings.layout, rings.memory.data(), {});
  const auto staging = reinterpret_cast<uint64_t>(q.staging);
  int64_t number = 0;
  const auto status_of = [&](auto change) {
    kernels::Command c = kernels::read_command(static_cast<uint16_t>(number % 8), 0, 13, staging + 8192);
    change(c);
    q.pair.commands[number % 9] = c;
    kernels::ring(q.pair.completion_doorbell, static_cast<uint32_t>(number % 9));
    kernels::ring(q.pair.command_doorbell, static_cast<uint32_t>((number + 1) % 9));
    kernels::Taken taken{};
    while (!(taken = kernels::look(&q.pair.completions[number % 9], number / 9 % 2 == 0)).ready)
      std::this_thread::yield();
    EXPECT_EQ(taken.id, number % 8);
    ++number;
    return taken.status;
  };
  using kernels::Command;
  EXPECT_EQ(status_of([](Command&) {}), kernels::kDone);
  EXPECT_EQ(std::memcmp(q.staging + 8192, file.data(), 13 * 512), 0);
  EXPECT_EQ(status_of([](Command& c) { c.opcode = 3; }), kernels::kInvalidOpcode);
  EXPECT_EQ(status_of([](Command& c) { c.space = 2; }), kernels::kInvalidSpace);
  EXPECT_EQ(status_of([](Command& c) { c.words[0] = 87; }), kernels::kDone);
  EXPECT_EQ(std::memcmp(q.staging + 8192, file.data() + 87 * 512, 13 * 512 - 5), 0);
  EXPECT_EQ(status_of([](Command& c) { c.words[0] = 88; }), kernels::kBeyondEnd);
  EXPECT_EQ(status_of([](Command& c) { c.words[1] = 1; }), kernels::kBeyondEnd);
  EXPECT_EQ(status_of([](Command& c) { c.words[2] = UINT32_MAX; }), kernels::kBeyondEnd);
  EXPECT_EQ(status_of([](Command& c) { c.words[2] = 17; }), kernels::kInvalidField);
  EXPECT_EQ(status_of([](Command& c) { c.data[0] += 4; }), kernels::kInvalidField);
  EXPECT_EQ(status_of([](Command& c) { c.data[0] = 0; }), kernels::kInvalidField);
  EXPECT_EQ(status_of([](Command& c) { c.data[1] = 0; }), kernels::kInvalidField);
  EXPECT_EQ(status_of([](Command& c) { c.data[1] += 512; }), kernels::kInvalidField);
  EXPECT_EQ(status_of([&](Command& c) { c.data[1] = staging + 8 * 8192; }), kernels::kInvalidField);
  EXPECT_EQ(status_of([&](Command& c) { c.data[1] = staging; }),
            kernels::kDone);  // pages need not be adjacent
  EXPECT_EQ(std::memcmp(q.staging, file.data() + 4096, 13 * 512 - 4096), 0);
  kernels::ring(q.pair.command_doorbell, 9);
  const auto* ended = reinterpret_cast<const kernels::uint32*>(rings.memory.data() + rings.layout.ended);
  while (!kernels::load_acquire(ended)) std::this_thread::yield();
  EXPECT_NE(controller.error().find("doorbell"), std::string::npos);
}

class IoQueueOnDisk : public BothBackends {};
INSTANTIATE_TEST_SUITE_P(Backends, IoQueueOnDisk, ::testing::Values(Backend::uring, Backend::pread),
                         backend_test_name);

TEST_P(IoQueueOnDisk, ReadsWhatTheEngineReads) {
  const kernels::FileRows rows{40, 5732, 5732};
  const auto file = random_bytes(40 + 300 * 5732, 4);  // ends within a block
  write_plainly(folder_.file("rows"), file);
  IoOptions faulty;
  faulty.faults.short_probability = faulty.faults.eagain_probability = 0.1;
  for (const IoOptions& options : {IoOptions{}, faulty}) {
    auto io = engine(options);
    const FileId f = io->open(folder_.file("rows"), OpenMode::read);
    Rings rings(5732, 48, budget_);
    EXPECT_EQ(budget_->by_tag()["ring-staging"].now_bytes, rings.layout.bytes);
    RingController controller(io, {f}, rings.layout, rings.memory.data(), {});
    auto ids = some_ids(600, 300, 8);
    ids.push_back(299);
    RowsThroughRings reader(rings, rows, ids, 5732);
    reader.read(16);
    EXPECT_EQ(reader.judge(file), (Verdicts{0, 0}));
    EXPECT_EQ(controller.error(), "");
  }
}

TEST_P(IoQueueOnDisk, AReadThatFailsIsAStatusAndSaidByName) {
  const auto file = random_bytes(512 * 1000, 6);
  const kernels::FileRows rows{0, 512, 512};
  write_plainly(folder_.file("rows"), file);
  IoOptions options;
  options.faults.error_probability = 0.2;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("rows"), OpenMode::read);
  Rings rings(512, 64);
  RingController controller(io, {f}, rings.layout, rings.memory.data(), {});
  RowsThroughRings reader(rings, rows, some_ids(500, 1000, 3), 512);
  reader.read(16);
  const auto [wrong, untouched] = reader.judge(file);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(untouched, 50);
  EXPECT_EQ(rings.count(kernels::kUnreadable), untouched);
  EXPECT_NE(controller.error().find(folder_.file("rows")), std::string::npos) << controller.error();
  EXPECT_FALSE(rings.lost());
}

// Slabs: rows of whole pages, of any length in pages, written from memory and read back, checksums as told.
TEST_P(IoQueueOnDisk, WritesWhatIsReadBackAndNothingElse) {
  for (int64_t pages : {1, 2, 3, 5}) {
    const int64_t row = pages * 4096;
    const kernels::FileRows rows{0, row, row};
    auto file = random_bytes(12 * row, 7), slabs = random_bytes(4 * row, 8);
    write_plainly(folder_.file("table"), file);
    auto io = engine();
    const FileId f = io->open(folder_.file("table"), OpenMode::pages);
    Rings rings(row, 5, budget_);
    RingController controller(io, {f}, rings.layout, rings.memory.data(), {}, true);
    const auto* ended = reinterpret_cast<const kernels::uint32*>(rings.memory.data() + rings.layout.ended);
    const auto move = [&](std::vector<kernels::int64> wanted, std::byte* memory, bool write) {
      const int64_t pieces = kernels::pieces_of(rows), all = static_cast<int64_t>(wanted.size()) * pieces;
      std::vector<uint32_t> crcs(all);
      for (int64_t given = 0; given < all || rings.under_way() > 0;) {
        const int64_t more = std::min(rings.room(), all - given);
        cpu_io_submit(kernels::Submit{rings.queue, reinterpret_cast<uint64_t>(rings.queue.staging), rows,
                                      wanted.data(), reinterpret_cast<kernels::uint8*>(memory), row, given,
                                      more, rings.submitted, rings.completed, rings.completed - 1, nullptr,
                                      write, 0, 0});
        given += more;
        rings.submitted += more;
        cpu_io_complete({rings.queue, ended, 1, rings.completed}, 20 * kSecond);
        ASSERT_FALSE(rings.lost());
        ++rings.completed;
        const kernels::Outcome& outcome = *kernels::outcomes_of(rings.queue);
        ASSERT_EQ(outcome.last, 0u);
        crcs.at(outcome.index) = outcome.result;
      }
      for (int64_t i = 0; i < all; ++i) {
        const int64_t begin = i / pieces * row + i % pieces * 8192;
        const auto bytes = static_cast<size_t>(std::min<int64_t>(8192, (i / pieces + 1) * row - begin));
        ASSERT_EQ(crcs[i], crc32c(memory + begin, bytes)) << "piece " << i;
      }
    };
    const std::vector<kernels::int64> wanted{9, 2, 5, 11};
    move(wanted, slabs.data(), true);
    for (size_t i = 0; i < wanted.size(); ++i)
      std::memcpy(file.data() + wanted[i] * row, slabs.data() + i * row, row);
    EXPECT_TRUE(equal_bytes(read_plainly(folder_.file("table")), file));
    BytesVector back(4 * row);
    move(wanted, back.data(), false);
    EXPECT_TRUE(equal_bytes(back, slabs));
    EXPECT_EQ(controller.error(), "");
  }
}

TEST_P(IoQueueOnDisk, AWriteThatFailsIsAStatusAndSaidByName) {
  write_plainly(folder_.file("table"), random_bytes(8 * 8192, 6));
  IoOptions options;
  options.faults.error_probability = 1;
  auto io = engine(options);
  const FileId f = io->open(folder_.file("table"), OpenMode::pages);
  Rings rings(8192, 8);
  RingController controller(io, {f}, rings.layout, rings.memory.data(), {});
  auto& q = rings.queue;
  const auto status_of = [&](uint64_t block, uint32_t number) {
    q.pair.commands[number] = kernels::block_command(kernels::kWriteOpcode, static_cast<uint16_t>(number),
                                                     block, 16, reinterpret_cast<uint64_t>(q.staging));
    kernels::ring(q.pair.command_doorbell, number + 1);
    kernels::Taken taken{};
    while (!(taken = kernels::look(&q.pair.completions[number], 1)).ready) std::this_thread::yield();
    return taken.status;
  };
  EXPECT_EQ(status_of(16, 0), kernels::kUnwritable);
  EXPECT_NE(controller.error().find(folder_.file("table")), std::string::npos) << controller.error();
  EXPECT_EQ(status_of(120, 1), kernels::kBeyondEnd);
}

// Found by fuzzing: such a command ended the controller, and with it all others.
TEST_P(IoQueueOnDisk, WhatAFileIsNotOpenForIsAStatus) {
  const auto file = random_bytes(8 * 8192, 6);
  write_plainly(folder_.file("read"), file);
  write_plainly(folder_.file("pages"), file);
  auto io = engine();
  const std::vector<FileId> files{io->open(folder_.file("read"), OpenMode::read),
                                  io->open(folder_.file("pages"), OpenMode::pages)};
  Rings rings(8192, 8);
  RingController controller(io, files, rings.layout, rings.memory.data(), {});
  auto& q = rings.queue;
  uint32_t number = 0;
  const auto status_of = [&](uint8_t opcode, uint32_t space, uint32_t blocks) {
    q.pair.commands[number] = kernels::block_command(opcode, static_cast<uint16_t>(number), 0, blocks,
                                                     reinterpret_cast<uint64_t>(q.staging));
    q.pair.commands[number].space = space;
    kernels::ring(q.pair.command_doorbell, number + 1);
    kernels::Taken taken{};
    while (!(taken = kernels::look(&q.pair.completions[number], 1)).ready) std::this_thread::yield();
    EXPECT_EQ(controller.served(), ++number);  // also as soon as the completion is seen
    return taken.status;
  };
  EXPECT_EQ(status_of(kernels::kWriteOpcode, 1, 8), kernels::kUnwritable);
  EXPECT_NE(controller.error().find(folder_.file("read")), std::string::npos) << controller.error();
  EXPECT_EQ(status_of(kernels::kWriteOpcode, 2, 1), kernels::kUnwritable);  // in part of a page
  EXPECT_NE(controller.error().find(folder_.file("pages")), std::string::npos) << controller.error();
  EXPECT_EQ(status_of(kernels::kReadOpcode, 1, 8), kernels::kDone);
  EXPECT_EQ(status_of(kernels::kWriteOpcode, 2, 8), kernels::kDone);
  EXPECT_TRUE(equal_bytes(read_plainly(folder_.file("read")), file));
  EXPECT_TRUE(equal_bytes(read_plainly(folder_.file("pages")), file));
}

TEST_P(IoQueueOnDisk, ATruncatedFileIsAStatus) {
  const kernels::FileRows rows{0, 4096, 4096};
  write_plainly(folder_.file("rows"), random_bytes(4096 * 40, 6));
  auto io = engine();
  const FileId f = io->open(folder_.file("rows"), OpenMode::read);
  Rings rings(4096, 8);
  RingController controller(io, {f}, rings.layout, rings.memory.data(), {});
  std::filesystem::resize_file(folder_.file("rows"), 4096 * 30);
  std::vector<int64_t> ids(40);
  std::iota(ids.begin(), ids.end(), 0);
  RowsThroughRings reader(rings, rows, ids, 4096);
  reader.read(4);
  EXPECT_EQ(rings.count(kernels::kUnreadable), 10u);
  EXPECT_NE(controller.error().find("truncated"), std::string::npos) << controller.error();
}

}  // namespace
}  // namespace outcrop::testing
