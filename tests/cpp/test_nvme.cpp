// The NVMe driver against a controller that is a thread (fake_nvme.h). Against a real device model:
// scripts/nvme-qemu.sh.
#include <algorithm>
#include <functional>

#include "cpu_kernels/io_queue.h"
#include "fake_nvme.h"
#include "io_test_util.h"
#include "nvme/disk.h"
#include "rings/layout.h"

namespace outcrop::testing {
namespace {

using namespace nvme;
using std::chrono::milliseconds;

constexpr uint64_t kMiB = 1 << 20;
constexpr int kPatient = 20'000;  // ms

// The message of the Error that fn throws; empty: none.
std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}
bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

class NvmeTest : public ::testing::Test {
 protected:
  std::unique_ptr<Controller> open(FakeNvme& fake, int ready_ms = kPatient) {
    ControllerOptions options;
    options.command_deadline = milliseconds(kPatient);
    options.ready_deadline = milliseconds(ready_ms);
    options.queues = 3;
    return std::make_unique<Controller>(fake.registers(), fake.space, budget_, "x", options);
  }
  // Nothing is left behind by a driver that is gone.
  void expect_clean(FakeNvme& fake) {
    fake.stop();
    EXPECT_EQ(fake.space->mapped(), 0u);
    EXPECT_EQ(fake.space->violations(), 0);
    EXPECT_EQ(fake.faults_of_driver(), 0);
    EXPECT_FALSE(fake.enabled());
    EXPECT_EQ(budget_->now_bytes(), 0u);
  }
  std::shared_ptr<Budget> budget_ = Budget::create(64 * kMiB);
};

// Two queues filled whenever an id is free; the fake completes in any order. A read's place follows its id,
// as a GPU's does.
TEST_F(NvmeTest, ReadsUnderContinuousSubmissionAreRightAndOnlyReadsAreSent) {
  const BytesVector disk = random_bytes(kMiB, 3);
  FakeFaults faults;
  for (uint64_t b = 100; b < 2000; b += 190) faults.bad_blocks.insert(b);
  FakeNvme fake(disk, faults);
  {
    auto controller = open(fake);
    EXPECT_EQ(controller->info().model, "a thread");
    EXPECT_EQ(controller->info().serial, "serial 7");
    EXPECT_EQ(controller->info().max_transfer_bytes, 32u * 4096);
    EXPECT_EQ(controller->info().queues, 3u);
    EXPECT_EQ(controller->disk().bytes(), kMiB);
    constexpr uint32_t kDepths[] = {7, 64};
    std::vector<ReadQueue> queues;
    std::vector<DmaMemory> staging;
    for (const uint32_t depth : kDepths) {
      queues.emplace_back(controller->create_queue(depth), milliseconds(kPatient), "queue");
      staging.emplace_back(fake.space, *budget_, "staging", (depth - 1) * 2 * kPageBytes);
    }
    std::map<std::pair<int, int>, std::pair<uint64_t, uint64_t>> out;  // queue and id: block, blocks
    std::mt19937_64 rng(4);
    uint64_t issued = 0, done = 0, wrong = 0, bad = 0;
    std::vector<Finished> finished;
    while (done < 4000)
      for (int q = 0; q < 2; ++q) {
        for (; issued < 4000 && !queues[q].full(); ++issued) {
          const uint64_t blocks = 1 + rng() % 16, block = rng() % (kMiB / 512 - blocks + 1);
          const uint32_t id = queues[q].next_id();
          const uint16_t got = queues[q].read(block, static_cast<uint32_t>(blocks),
                                              staging[q].bus() + id * 2 * kPageBytes + (8192 - blocks * 512));
          ASSERT_EQ(got, id);
          const bool fresh = out.insert({{q, id}, {block, blocks}}).second;
          ASSERT_TRUE(fresh);
        }
        queues[q].ring();
        finished.clear();
        queues[q].wait(finished, 3);
        for (const Finished& f : finished) {
          const auto [block, blocks] = out.at({q, f.id});
          out.erase({q, f.id});
          ++done;
          const auto hit = faults.bad_blocks.lower_bound(block);
          const bool fails = hit != faults.bad_blocks.end() && *hit < block + blocks;
          bad += fails;
          if (fails)
            wrong += (f.status & 0x7ff) != 0x281;
          else
            wrong += f.status != 0 ||
                     std::memcmp(staging[q].data() + f.id * 2 * kPageBytes + (8192 - blocks * 512),
                                 disk.data() + block * 512, blocks * 512) != 0;
        }
      }
    EXPECT_EQ(wrong, 0u);
    EXPECT_GT(bad, 0u);
    EXPECT_EQ(queues[0].counters().failed + queues[1].counters().failed, bad);
    EXPECT_EQ(queues[0].counters().completed + queues[1].counters().completed, 4000u);
    EXPECT_EQ(queues[1].counters().by_status.size(), 1u);
    EXPECT_TRUE(
        says(status_name(queues[1].counters().by_status.begin()->first), "media: unrecovered read error"));
    EXPECT_TRUE(says(error_of([&] { queues[0].read(0, 17, staging[0].bus()); }), "within two pages"));
    EXPECT_TRUE(says(error_of([&] { queues[0].read(0, 1, staging[0].bus() + 8); }), "within two pages"));
  }
  expect_clean(fake);
  EXPECT_EQ(fake.reads(), 4000u);
  EXPECT_EQ(fake.queues_left(), 0u);
  EXPECT_EQ(fake.io_opcodes(), std::set<int>{2});
  EXPECT_EQ(fake.admin_opcodes(), (std::set<int>{0, 1, 4, 5, 6, 9}));
}

TEST_F(NvmeTest, QueuesAreBoundedAndCanBeMadeAgain) {
  FakeNvme fake(BytesVector(kMiB), {});
  {
    auto controller = open(fake);
    EXPECT_TRUE(says(error_of([&] { controller->create_queue(1); }), "2 to 1024"));
    EXPECT_TRUE(says(error_of([&] { controller->create_queue(1025); }), "2 to 1024"));
    for (uint32_t depth : {2u, 1024u, 64u}) controller->create_queue(depth);
    EXPECT_TRUE(says(error_of([&] { controller->create_queue(4); }), "gives 3 queue pairs"));
    controller->drop_queue();
    const kernels::QueuePair pair = controller->create_queue(2);
    ReadQueue queue(pair, milliseconds(kPatient), "queue");
    const DmaMemory page(fake.space, *budget_, "staging", kPageBytes);
    std::vector<Finished> finished;
    for (int i = 0; i < 5; ++i) {  // one entry is always left free
      queue.read(i, 1, page.bus());
      EXPECT_TRUE(queue.full());
      EXPECT_TRUE(says(error_of([&] { queue.read(0, 1, page.bus()); }), "all 1 commands are in flight"));
      queue.ring();
      queue.wait(finished);
    }
    EXPECT_EQ(finished.size(), 5u);
    EXPECT_EQ(queue.wait(finished), 0u);
    EXPECT_EQ(queue.counters().doorbells, 5u);
    controller->shutdown();
    EXPECT_FALSE(fake.enabled());
  }
  expect_clean(fake);
}

TEST_F(NvmeTest, WhatItCannotDriveIsRefusedBeforeAnythingIsRead) {
  struct Case {
    const char* message;
    std::function<void(FakeFaults&)> change;
  };
  const Case cases[] = {
      {"lacks the NVM command set", [](FakeFaults& f) { f.capabilities_without = uint64_t{1} << 37; }},
      {"blocks have 4096 bytes", [](FakeFaults& f) { f.block_shift = 12; }},
      {"8 of metadata", [](FakeFaults& f) { f.metadata_bytes = 8; }},
      {"blocks of 2^3 bytes", [](FakeFaults& f) { f.block_shift = 3; }},
      {"namespace 1 is not active", [](FakeFaults& f) { f.block_shift = 40; }},
  };
  for (const Case& c : cases) {
    FakeFaults faults;
    c.change(faults);
    FakeNvme fake(BytesVector(kMiB), faults);
    EXPECT_TRUE(says(error_of([&] { open(fake)->create_queue(8); }), c.message)) << c.message;
    expect_clean(fake);
    EXPECT_EQ(fake.reads(), 0u);
  }
}

// What goes wrong when a faulty controller is opened, read from and shut down.
TEST_F(NvmeTest, NothingHangs) {
  struct Case {
    const char* message;
    std::function<void(FakeFaults&)> change;
    std::vector<int> ready_ms = {kPatient};
    int queue_ms = kPatient;
  };
  const Case cases[] = {
      {"does not answer", [](FakeFaults& f) { f.gone = true; }},
      {"did not become ready within 15 ms", [](FakeFaults& f) { f.never_ready = true; }, {15}},
      {"fatal error while waiting for it to become ready", [](FakeFaults& f) { f.fatal = true; }},
      // It has to become ready in the same time, which on a busy machine takes a thread a while.
      {"did not shut down within", [](FakeFaults& f) { f.never_down = true; }, {25, 250, 2500}},
      {"no completion for 15 ms", [](FakeFaults& f) { f.silent_after_reads = 9; }, {kPatient}, 15},
      {"completed command 999, which is not in flight", [](FakeFaults& f) { f.wrong_id_at_read = 9; }},
  };
  for (const Case& c : cases) {
    FakeFaults faults;
    c.change(faults);
    std::string message;
    for (size_t attempt = 0; attempt < c.ready_ms.size() && !says(message, c.message); ++attempt) {
      FakeNvme fake(BytesVector(kMiB), faults);
      message = error_of([&] {
        auto controller = open(fake, c.ready_ms[attempt]);
        ReadQueue queue(controller->create_queue(16), milliseconds(c.queue_ms), "queue");
        const DmaMemory staging(fake.space, *budget_, "staging", 4 * kPageBytes);
        (void)read_range(queue, staging, 0, 64 * kPageBytes, "x");
        controller->drop_queue();
        controller->shutdown();
      });
      fake.stop();
      EXPECT_EQ(fake.space->mapped(), 0u) << c.message;
      EXPECT_EQ(budget_->now_bytes(), 0u) << c.message;
    }
    EXPECT_TRUE(says(message, c.message)) << c.message << ", not " << message;
  }
}

// The kernels of kernels/io_queue.h, as a GPU would run them, know nothing of this driver.
TEST_F(NvmeTest, TheKernelsReadRowsThroughADisksRings) {
  constexpr int64_t kRow = 1500, kStride = 1504, kBase = 4096, kRows = 2000, kBatch = 16;
  const BytesVector disk = random_bytes(kMiB, 6);
  FakeNvme fake(disk);
  {
    auto controller = open(fake);
    const auto layout = QueueLayout::within(kRow, kMiB, 3 * kBatch);
    const DmaMemory memory(fake.space, *budget_, "queue", layout.bytes);
    kernels::IoQueue queue = layout.at(memory.data());
    queue.pair = controller->create_queue(static_cast<uint32_t>(layout.depth));
    for (uint64_t id = 0; id < layout.ids; ++id) queue.free_ids[id] = static_cast<uint16_t>(id);
    std::mt19937_64 rng(8);
    std::vector<kernels::int64> wanted(kRows);
    for (auto& row : wanted) row = static_cast<kernels::int64>(rng() % ((kMiB - kBase) / kStride));
    std::vector<kernels::uint8> out(kRows * kRow);
    int64_t told = 0;
    for (int64_t submitted = 0, completed = 0; completed < kRows; completed += kBatch) {
      for (; submitted < kRows && submitted - completed + kBatch <= queue.num_ids; submitted += kBatch) {
        cpu_io_submit({queue,
                       memory.bus() + layout.staging,
                       {kBase, kStride, kRow},
                       wanted.data(),
                       out.data(),
                       kRow,
                       submitted,
                       kBatch,
                       submitted,
                       completed,
                       told,
                       nullptr,
                       0,
                       0,
                       0});
        told = completed;
      }
      cpu_io_complete({queue, memory.as<kernels::uint32>(layout.ended), kBatch, completed}, 20'000'000'000);
      for (int64_t i = 0; i < kBatch; ++i) EXPECT_EQ(kernels::outcomes_of(queue)[i].last, 0u);
      ASSERT_FALSE(kernels::lost(queue));
    }
    uint64_t wrong = 0;
    for (int64_t i = 0; i < kRows; ++i)
      wrong += std::memcmp(out.data() + i * kRow, disk.data() + kBase + wanted[i] * kStride, kRow) != 0;
    EXPECT_EQ(wrong, 0u);
  }
  expect_clean(fake);
  EXPECT_EQ(fake.reads(), static_cast<uint64_t>(kRows));
}

TEST_F(NvmeTest, RangesAreReadWholeAndErrorsNameTheirPlace) {
  const BytesVector disk = random_bytes(kMiB, 5);
  FakeFaults faults;
  faults.bad_blocks = {1500};
  FakeNvme fake(disk, faults);
  {
    auto controller = open(fake);
    ReadQueue queue(controller->create_queue(8), milliseconds(kPatient), "queue");
    const DmaMemory staging(fake.space, *budget_, "staging", 3 * kPageBytes);
    const auto got = read_range(queue, staging, 512, 700 * 512, "x");
    EXPECT_TRUE(std::equal(got.begin(), got.end(), disk.begin() + 512));
    EXPECT_EQ(got.size(), 700u * 512);
    const auto message = error_of([&] { (void)read_range(queue, staging, 1024 * 512, 1024 * 512, "x"); });
    EXPECT_TRUE(says(message, "4096 bytes at byte " + std::to_string(1496 * 512) + ": status 0x281"))
        << message;
    EXPECT_EQ(queue.in_flight(), 0u);
    EXPECT_EQ(read_range(queue, staging, 0, 4096, "x").size(), 4096u);  // and goes on
  }
  expect_clean(fake);
}

TEST_F(NvmeTest, OnlyADiskMadeForOutcropIsOpened) {
  const std::string header = make_header({kMiB, 2 * kMiB, "test"});
  BytesVector ours(3 * kMiB), blank(3 * kMiB), table(3 * kMiB);
  std::memcpy(ours.data(), header.data(), header.size());
  std::memcpy(table.data() + 512, "EFI PART", 8);
  const auto check = [&](const BytesVector& disk, bool blank_too) {
    FakeNvme fake(disk);
    std::string label;
    const std::string message = error_of([&] {
      auto controller = open(fake);
      DiskOptions options;
      options.blank_too = blank_too;
      label = check_content(*controller, fake.space, *budget_, options, "x").header.label;
      for (int i = 0; i < 3; ++i) controller->create_queue(4);  // all are left to the user
    });
    expect_clean(fake);
    return message.empty() ? "opened " + label : message;
  };
  EXPECT_EQ(check(ours, false), "opened test");
  EXPECT_EQ(check(blank, true), "opened ");
  EXPECT_TRUE(says(check(blank, false), "it is blank"));
  EXPECT_TRUE(says(check(table, true), "GPT partition table at byte 512"));
}

}  // namespace
}  // namespace outcrop::testing
