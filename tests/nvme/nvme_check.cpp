// What scripts/nvme-qemu.sh runs inside a virtual machine, one case a call; and on the host, to make the
// disk's image. Every case prints one line, "ok CASE: ..." or "FAILED CASE: ...", and exits with 0 or 1.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "cpu_kernels/io_queue.h"
#include "nvme/disk.h"
#include "rings/layout.h"

namespace outcrop::nvme {
namespace {

using kernels::kBlockBytes;
constexpr uint64_t kSlotBytes = 2 * kPageBytes;  // of staging memory, for each id
constexpr uint32_t kAtOnce = 16;                 // completions taken before ids are given out again
constexpr std::byte kUntouched{0xa5};

uint64_t word_at(uint64_t offset) { return mix64(offset / 8 ^ 0x6f7574); }

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool good, const std::string& what) {
  if (!good) throw Failed(what);
}

std::shared_ptr<Budget> budget() { return Budget::create(uint64_t{64} << 20); }

DiskOptions with_queues(uint32_t queues) {
  DiskOptions options;
  options.controller.queues = queues;
  return options;
}

std::string make_image(const std::string& path, uint64_t bytes) {
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
  require(fd >= 0, "cannot create " + path);
  std::string data = make_header({kExaminedBytes, bytes - kExaminedBytes, "a function of position"});
  data.resize(bytes);
  for (uint64_t o = kExaminedBytes; o < bytes; o += 8) {
    const uint64_t word = word_at(o);
    std::memcpy(data.data() + o, &word, 8);
  }
  const bool good = write(fd, data.data(), bytes) == static_cast<ssize_t>(bytes) && close(fd) == 0;
  require(good, "cannot write " + path);
  return path;
}

// The first page of a disk for `bytes` of data, as a file (docs/nvme.md).
std::string write_header(const std::string& path, uint64_t bytes, const std::string& label) {
  std::ofstream out(path, std::ios::binary);
  out << make_header({kExaminedBytes, bytes, label});
  require(static_cast<bool>(out.flush()), "cannot write " + path);
  return path + ": put it at byte 0 of the disk, and the data at byte " + std::to_string(kExaminedBytes);
}

std::string show(const std::string& address) {
  Disk disk(address, budget(), {});
  return disk.info().model + ", " + std::to_string(disk.geometry().bytes()) + " bytes: '" +
         disk.header().label + "', " + std::to_string(disk.header().data_bytes) +
         " bytes of data from byte " + std::to_string(disk.header().data_offset);
}

// Reads in flight in one queue, each into its id's slot.
class Reader {
 public:
  Reader(Disk& disk, DmaMemory& staging, uint32_t depth, uint64_t key)
      : staging_(staging),
        queue_(disk.create_queue(depth), std::chrono::seconds(20), "the queue of this check"),
        random_(key, depth),
        reads_(queue_.capacity()) {}

  struct Read {
    uint64_t block, number;
    uint32_t blocks, shift;  // shift: of the data in the slot
  };

  void submit_random(uint64_t first, uint64_t end, uint64_t number) {
    Read read{0, number, static_cast<uint32_t>(1 + random_.below(16)), 0};
    read.block = first + random_.below(end - first - read.blocks + 1);
    read.shift =
        static_cast<uint32_t>(random_.below(kSlotBytes / kBlockBytes - read.blocks + 1)) * kBlockBytes;
    submit(read);
  }
  // A read's slot has to be known before its id is, so slots have a free list of their own.
  void submit(const Read& read) {
    if (slots_.empty()) slots_.push_back(given_++);
    const uint64_t slot = slots_.back();
    slots_.pop_back();
    std::memset(slot_data(slot), static_cast<int>(kUntouched), kSlotBytes);
    const uint16_t id = queue_.read(read.block, read.blocks, staging_.bus() + slot * kSlotBytes + read.shift);
    reads_[id] = {read, slot};
  }
  // fn(read, status); verifies every byte of the slot of those that are done.
  template <class Fn>
  void collect(Fn fn) {
    finished_.clear();
    queue_.wait(finished_, kAtOnce);
    for (const auto& f : finished_) {
      const auto [read, slot] = reads_[f.id];
      if (f.status == 0) verify(read, slot_data(slot));
      late_ += read.number < newest_;
      newest_ = std::max(newest_, read.number);
      slots_.push_back(slot);
      fn(read, f.status);
    }
  }
  ReadQueue& queue() { return queue_; }
  uint64_t wrong() const { return wrong_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t late() const { return late_; }

 private:
  std::byte* slot_data(uint64_t slot) const { return staging_.data() + slot * kSlotBytes; }
  void verify(const Read& read, const std::byte* slot) {
    const uint32_t n = read.blocks * kBlockBytes;
    bool good = true;
    for (uint32_t i = 0; i < kSlotBytes; ++i)
      if (i < read.shift || i >= read.shift + n) good &= slot[i] == kUntouched;
    for (uint32_t i = 0; i < n; i += 8) {
      const uint64_t expected = word_at(read.block * kBlockBytes + i);
      good &= std::memcmp(slot + read.shift + i, &expected, 8) == 0;
    }
    wrong_ += !good;
    bytes_ += n;
  }

  DmaMemory& staging_;
  ReadQueue queue_;
  RandomStream random_;
  std::vector<std::pair<Read, uint64_t>> reads_;
  std::vector<uint64_t> slots_;
  uint32_t given_ = 0;
  std::vector<Finished> finished_;
  uint64_t wrong_ = 0, bytes_ = 0, late_ = 0, newest_ = 0;
};

std::string identify(const std::string& address, const std::string& serial) {
  Disk disk(address, budget(), {});
  const auto& info = disk.info();
  require(info.serial == serial, "the serial number is '" + info.serial + "', not '" + serial + "'");
  require(disk.geometry().block_bytes == kBlockBytes && disk.header().label == "a function of position",
          "wrong blocks or label");
  require(disk.header().data_offset + disk.header().data_bytes == disk.geometry().bytes(), "wrong size");
  disk.shutdown();
  char line[256];
  std::snprintf(line, sizeof line,
                "'%s' serial '%s' NVMe %u.%u, %llu blocks of %u bytes, max transfer %llu, rings of %u",
                info.model.c_str(), info.serial.c_str(), info.version >> 16, info.version >> 8 & 255,
                static_cast<unsigned long long>(disk.geometry().blocks), disk.geometry().block_bytes,
                static_cast<unsigned long long>(info.max_transfer_bytes), info.max_depth);
  return line;
}

std::string queues(const std::string& address) {
  Disk disk(address, budget(), with_queues(4));
  require(disk.info().queues == 4, "it gives " + std::to_string(disk.info().queues) + " queue pairs, not 4");
  for (uint32_t depth : {2u, 64u, 1024u, disk.info().max_depth}) disk.create_queue(depth);
  try {
    disk.create_queue(64);
    throw Failed("a fifth queue pair was given");
  } catch (const Error&) {
  }
  disk.shutdown();
  return "4 queue pairs of 2 to " + std::to_string(disk.info().max_depth) + " entries made and deleted";
}

// Two queues, refilled whenever an id comes free.
std::string reads(const std::string& address, uint64_t total) {
  constexpr uint32_t kDepth = 257;
  Disk disk(address, budget(), with_queues(2));
  auto memory = budget();
  std::vector<DmaMemory> staging;
  for (int i = 0; i < 2; ++i)
    staging.emplace_back(disk.space(), *memory, "staging", (kDepth - 1) * kSlotBytes);
  Reader readers[2] = {{disk, staging[0], kDepth, 1}, {disk, staging[1], kDepth, 2}};
  const uint64_t first = disk.header().data_offset / kBlockBytes, end = disk.geometry().blocks;
  const auto begin = std::chrono::steady_clock::now();
  uint64_t issued = 0, done = 0, failed = 0;
  while (done < total)
    for (Reader& reader : readers) {
      for (; issued < total && !reader.queue().full(); ++issued) reader.submit_random(first, end, issued);
      reader.queue().ring();
      reader.collect([&](const Reader::Read&, uint32_t status) {
        ++done;
        failed += status != 0;
      });
    }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  disk.shutdown();
  const uint64_t wrong = readers[0].wrong() + readers[1].wrong(),
                 late = readers[0].late() + readers[1].late();
  require(
      wrong == 0 && failed == 0 && done == total,
      std::to_string(wrong) + " wrong and " + std::to_string(failed) + " failed of " + std::to_string(done));
  require(late > 0, "every completion came in order, so this proved little");
  char line[256];
  std::snprintf(line, sizeof line,
                "%llu reads of 512 to 8192 bytes in 2 queues, %llu bytes verified, 0 wrong, 0 failed, %llu "
                "out of order, "
                "%llu doorbells, %.2f s",
                static_cast<unsigned long long>(done),
                static_cast<unsigned long long>(readers[0].bytes() + readers[1].bytes()),
                static_cast<unsigned long long>(late),
                static_cast<unsigned long long>(readers[0].queue().counters().doorbells +
                                                readers[1].queue().counters().doorbells),
                seconds.count());
  return line;
}

// The kernels that a GPU runs (here on the CPU), which know nothing of this driver: rows through the rings of
// the disk, several submissions before the first completions are taken.
std::string rows(const std::string& address, uint64_t total) {
  constexpr int64_t kRow = 1208, kStride = 1216, kBatch = 96, kAhead = 3;
  Disk disk(address, budget(), {});
  const auto layout = QueueLayout::within(kRow, uint64_t{8} << 20, kAhead * kBatch);
  auto memory_budget = budget();
  const DmaMemory memory(disk.space(), *memory_budget, "queue", layout.bytes);
  kernels::IoQueue queue = layout.at(memory.data());
  queue.pair = disk.create_queue(static_cast<uint32_t>(layout.depth));
  for (uint64_t id = 0; id < layout.ids; ++id) queue.free_ids[id] = static_cast<uint16_t>(id);
  const auto base = static_cast<int64_t>(disk.header().data_offset);
  const uint64_t num_rows = disk.header().data_bytes / kStride;
  RandomStream random(7, 0);
  std::vector<int64_t> wanted(total);
  for (auto& row : wanted) row = static_cast<int64_t>(random.below(num_rows));
  std::vector<uint64_t> out(total * kRow / 8);
  const auto begin = std::chrono::steady_clock::now();
  int64_t submitted = 0, completed = 0, told = 0;
  uint64_t failed = 0;
  while (completed < static_cast<int64_t>(total)) {
    const int64_t left = static_cast<int64_t>(total) - submitted;
    if (left > 0 && submitted - completed + kBatch <= queue.num_ids) {
      const int64_t count = std::min(left, kBatch);
      cpu_io_submit({queue,
                     memory.bus() + layout.staging,
                     {base, kStride, kRow},
                     reinterpret_cast<const kernels::int64*>(wanted.data()),
                     reinterpret_cast<kernels::uint8*>(out.data()),
                     kRow,
                     submitted,
                     count,
                     submitted,
                     completed,
                     told,
                     nullptr,
                     0,
                     0,
                     0});
      told = completed;
      submitted += count;
      continue;
    }
    const int64_t count = std::min(kBatch, submitted - completed);
    cpu_io_complete({queue, reinterpret_cast<uint32_t*>(memory.data() + layout.ended), count, completed},
                    int64_t{20} * 1'000'000'000);
    for (int64_t i = 0; i < count; ++i) failed += kernels::outcomes_of(queue)[i].last != 0;
    require(!kernels::lost(queue), "completions were lost");
    completed += count;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < total; ++i)
    for (uint64_t j = 0; j < kRow / 8; ++j)
      wrong += out[i * kRow / 8 + j] != word_at(static_cast<uint64_t>(base + wanted[i] * kStride) + 8 * j);
  disk.shutdown();
  require(wrong == 0 && failed == 0,
          std::to_string(wrong) + " wrong words, " + std::to_string(failed) + " failed");
  return std::to_string(total) + " rows of " + std::to_string(kRow) +
         " bytes by the kernels on the CPU, every byte verified, 0 wrong, " +
         std::to_string(seconds.count()) + " s";
}

// One block that cannot be read: every read of it fails with the error of the medium, all others are right.
// And beyond the end of the disk.
std::string media(const std::string& address, uint64_t bad) {
  Disk disk(address, budget(), with_queues(2));
  auto memory = budget();
  DmaMemory staging(disk.space(), *memory, "staging", 63 * kSlotBytes);
  Reader reader(disk, staging, 64, 3);
  constexpr uint64_t kReads = 1000, kBeyond = 5;
  uint64_t expected_bad = 0, done = 0, surprises = 0;
  const auto look = [&](const Reader::Read& read, uint32_t status) {
    const bool beyond = read.block + read.blocks > disk.geometry().blocks;
    const bool hit = read.block <= bad && bad < read.block + read.blocks;
    const uint32_t expected = beyond ? 0x80 : hit ? 0x281 : 0;
    surprises += (status & 0x7ff) != expected;
    expected_bad += hit;
    ++done;
  };
  for (uint64_t issued = 0; done < kReads + kBeyond;) {
    for (; issued < kReads + kBeyond && !reader.queue().full(); ++issued)
      if (issued < kReads)
        reader.submit_random(bad - 32, bad + 32, issued);
      else
        reader.submit({disk.geometry().blocks - 1, issued, 2, 0});
    reader.queue().ring();
    reader.collect(look);
  }
  std::string counted;
  uint64_t of_medium = 0, out_of_range = 0;
  for (const auto& [status, n] : reader.queue().counters().by_status) {
    ((status & 0x7ff) == 0x281 ? of_medium : out_of_range) += n;
    counted += std::to_string(n) + " x " + status_name(status) + "; ";
  }
  require(surprises == 0 && reader.wrong() == 0, std::to_string(surprises) + " statuses and " +
                                                     std::to_string(reader.wrong()) +
                                                     " contents not as expected: " + counted);
  require(expected_bad > 0 && of_medium == expected_bad && out_of_range == kBeyond,
          "wrong counts: " + counted);
  try {
    ReadQueue queue(disk.create_queue(8), std::chrono::seconds(20), "queue");
    (void)read_range(queue, staging, (bad - 16) * kBlockBytes, 32 * kBlockBytes, address);
    throw Failed("reading over the bad block raised no error");
  } catch (const Error& e) {
    require(std::string(e.what()).find("unrecovered read error") != std::string::npos, e.what());
    counted += std::string("error: ") + e.what();
  }
  return std::to_string(done) + " reads: " + counted;
}

std::string refused(const std::string& address, const std::string& why) {
  try {
    Disk disk(address, budget(), {});
  } catch (const Error& e) {
    require(std::string(e.what()).find(why) != std::string::npos,
            std::string("refused for another reason: ") + e.what());
    return e.what();
  }
  throw Failed("was not refused");
}

std::string blank(const std::string& address) {
  refused(address, "blank");
  DiskOptions options;
  options.blank_too = true;
  Disk disk(address, budget(), options);
  return "refused, and opened where blank disks were allowed";
}

std::string run(const std::vector<std::string>& arguments) {
  const std::string& name = arguments.at(0);
  const auto number = [&](size_t i) { return std::stoull(arguments.at(i)); };
  if (name == "image") return make_image(arguments.at(1), number(2));
  if (name == "identify") return identify(arguments.at(1), arguments.at(2));
  if (name == "queues") return queues(arguments.at(1));
  if (name == "reads") return reads(arguments.at(1), number(2));
  if (name == "rows") return rows(arguments.at(1), number(2));
  if (name == "header") return write_header(arguments.at(1), number(2), arguments.at(3));
  if (name == "show") return show(arguments.at(1));
  if (name == "media") return media(arguments.at(1), number(2));
  if (name == "refused") return refused(arguments.at(1), arguments.at(2));
  if (name == "blank") return blank(arguments.at(1));
  throw Failed("unknown case");
}

}  // namespace
}  // namespace outcrop::nvme

int main(int count, char** arguments) {
  const std::vector<std::string> list(arguments + 1, arguments + count);
  const std::string name = list.empty() ? "?" : list[0];
  try {
    std::printf("ok %s: %s\n", name.c_str(), outcrop::nvme::run(list).c_str());
    return 0;
  } catch (const std::exception& e) {
    std::printf("FAILED %s: %s\n", name.c_str(), e.what());
    return 1;
  }
}
