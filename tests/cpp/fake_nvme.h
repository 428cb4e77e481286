// An NVMe controller that is a thread: registers in memory, a disk in memory, and the faults that tests ask
// for. It keeps to the specification and counts what a driver does against it.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "nvme/controller.h"

namespace outcrop::testing {

// Bus addresses have nothing to do with those of the process.
class FakeSpace : public nvme::DmaSpace {
 public:
  uint64_t map(std::byte* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    const uint64_t bus = std::exchange(next_, next_ + bytes + kPageBytes);
    mapped_[bus] = {data, bytes};
    return bus;
  }
  void unmap(uint64_t bus, size_t bytes) noexcept override {
    std::lock_guard lock(mutex_);
    const auto found = mapped_.find(bus);
    wrong_unmaps_ += found == mapped_.end() || found->second.second != bytes;
    if (found != mapped_.end()) mapped_.erase(found);
  }
  // Null, and counted, where nothing is mapped.
  std::byte* at(uint64_t bus, size_t bytes) {
    std::lock_guard lock(mutex_);
    auto found = mapped_.upper_bound(bus);
    if (found != mapped_.begin() && bus + bytes <= (--found)->first + found->second.second)
      return found->second.first + (bus - found->first);
    ++violations_;
    return nullptr;
  }
  size_t mapped() {
    std::lock_guard lock(mutex_);
    return mapped_.size();
  }
  int violations() const { return violations_ + wrong_unmaps_; }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::pair<std::byte*, size_t>> mapped_;
  uint64_t next_ = uint64_t{5} << 32;
  std::atomic<int> violations_ = 0, wrong_unmaps_ = 0;
};

struct FakeFaults {
  bool never_ready = false, fatal = false, gone = false, never_down = false;
  std::set<uint64_t> bad_blocks;
  uint64_t silent_after_reads = UINT64_MAX;  // completes no more
  uint64_t wrong_id_at_read = UINT64_MAX;
  uint32_t block_shift = 9, metadata_bytes = 0, queues = 4, max_depth = 1024;
  uint64_t capabilities_without = 0;  // bits taken from CAP
  uint64_t seed = 1;                  // of the order of completions
};

class FakeNvme {
 public:
  static constexpr uint32_t kStride = 8;

  FakeNvme(std::vector<std::byte> disk, FakeFaults faults = {})
      : disk_(std::move(disk)), faults_(std::move(faults)), words_(4096 / 4 + 4096 / 4), rng_(faults_.seed) {
    const uint64_t capabilities = ((faults_.max_depth - 1) | uint64_t{1} << 16 | uint64_t{1} << 24 |
                                   uint64_t{1} << 32 | uint64_t{1} << 37) &
                                  ~faults_.capabilities_without;
    put(0x00, static_cast<uint32_t>(capabilities));
    put(0x04, static_cast<uint32_t>(capabilities >> 32));
    put(0x08, 0x00010400);
    if (faults_.gone) std::fill(words_.begin(), words_.end(), ~0u);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeNvme() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  nvme::Registers registers() { return {reinterpret_cast<std::byte*>(words_.data()), words_.size() * 4}; }
  std::shared_ptr<FakeSpace> space = std::make_shared<FakeSpace>();
  // After stop().
  uint64_t reads() const { return reads_; }
  size_t queues_left() const { return queues_.size(); }
  bool enabled() { return get(0x14) & 1; }
  const std::set<int>& admin_opcodes() const { return admin_opcodes_; }
  const std::set<int>& io_opcodes() const { return io_opcodes_; }
  int faults_of_driver() const { return driver_faults_; }

 private:
  struct Queue {
    uint64_t commands = 0, completions = 0;
    uint32_t depth = 0, completion_depth = 0, head = 0, tail = 0, phase = 1;
    std::vector<kernels::Command> pending;
  };

  uint32_t* word(uint32_t offset) { return &words_[offset / 4]; }
  uint32_t get(uint32_t offset) { return __atomic_load_n(word(offset), __ATOMIC_ACQUIRE); }
  void put(uint32_t offset, uint32_t value) { __atomic_store_n(word(offset), value, __ATOMIC_RELEASE); }
  uint64_t get64(uint32_t offset) { return get(offset) | uint64_t{get(offset + 4)} << 32; }

  void serve() {
    while (!stop_ && !faults_.gone) {
      look_at_configuration();
      std::vector<uint32_t> numbers;
      for (const auto& [number, queue] : queues_) numbers.push_back(number);
      for (const uint32_t number : numbers)
        if (queues_.contains(number)) serve_queue(number);  // not deleted by the one before
      std::this_thread::yield();
    }
  }

  void look_at_configuration() {
    const uint32_t now = get(0x14), status = get(0x1c);
    if (now & 1 && !(status & 1) && !faults_.never_ready) {
      if (now != ((now & 3u << 14) | 4u << 20 | 6u << 16 | 1)) ++driver_faults_;
      const uint32_t depths = get(0x24);
      Queue admin{get64(0x28), get64(0x30), (depths & 0xfff) + 1, (depths >> 16 & 0xfff) + 1};
      queues_ = {{0, admin}};
      put(0x1c, faults_.fatal ? 2 : 1);
    }
    if (!(now & 1) && status & 3) {
      driver_faults_ += queues_.size() > 1 && !faults_.never_down &&
                        faults_.silent_after_reads == UINT64_MAX && faults_.wrong_id_at_read == UINT64_MAX;
      queues_.clear();
      for (uint32_t offset = 0x1000; offset < 0x2000; offset += 4) put(offset, 0);
      put(0x1c, 0);
    }
    if ((now >> 14 & 3) == 1 && !(status & 8) && status & 1 && !faults_.never_down) put(0x1c, status | 8);
  }

  void serve_queue(uint32_t number) {
    Queue* queue = &queues_.at(number);
    const uint32_t tail = get(0x1000 + 2 * number * kStride);
    if (tail >= queue->depth) {
      ++driver_faults_;
      return;
    }
    while (queue->head != tail) {
      const auto* command = reinterpret_cast<const kernels::Command*>(
          space->at(queue->commands + queue->head * sizeof(kernels::Command), sizeof(kernels::Command)));
      if (!command) return;
      queue->pending.push_back(*command);
      queue->head = (queue->head + 1) % queue->depth;
    }
    for (auto most = number ? rng_() % 8 : 8; most > 0 && !queue->pending.empty(); --most) {
      if (number && reads_ >= faults_.silent_after_reads) return;
      const size_t which = number ? rng_() % queue->pending.size() : 0;
      const kernels::Command command = queue->pending[which];
      queue->pending.erase(queue->pending.begin() + static_cast<ptrdiff_t>(which));
      uint32_t result = 0;
      const uint32_t status = number ? read(command) : administer(command, result);
      uint16_t id = command.id;
      if (number && reads_++ == faults_.wrong_id_at_read) id = 999;
      complete(number, id, status, result);
      queue = &queues_.at(number);
    }
  }

  void complete(uint32_t number, uint16_t id, uint32_t status, uint32_t result) {
    Queue& queue = queues_.at(number);
    const uint32_t taken = get(0x1000 + (2 * number + 1) * kStride);
    if ((queue.tail + 1) % queue.completion_depth == taken) ++driver_faults_;  // no room for it
    auto* entry = reinterpret_cast<kernels::Completion*>(
        space->at(queue.completions + queue.tail * sizeof(kernels::Completion), sizeof(kernels::Completion)));
    if (!entry) return;
    entry->result = result;
    entry->head = static_cast<uint16_t>(queue.head);
    entry->queue = static_cast<uint16_t>(number);
    kernels::store_release(&entry->last, kernels::completion_word(id, queue.phase, status));
    if (++queue.tail == queue.completion_depth) {
      queue.tail = 0;
      queue.phase ^= 1;
    }
  }

  uint32_t read(const kernels::Command& command) {
    io_opcodes_.insert(command.opcode);
    if (command.opcode != 2) return 0x001;
    const uint64_t block = command.words[0] | uint64_t{command.words[1]} << 32;
    const uint64_t blocks = command.words[2] + uint64_t{1};
    if (command.space != 1) return 0x00b;
    if ((block + blocks) * 512 > disk_.size()) return 0x080;
    const auto bad = faults_.bad_blocks.lower_bound(block);
    if (bad != faults_.bad_blocks.end() && *bad < block + blocks) return 0x281 | 1 << 13;
    const uint64_t in_first = std::min<uint64_t>(blocks * 512, 4096 - command.data[0] % 4096);
    const uint64_t in_second = blocks * 512 - in_first;
    if (in_second > 4096 || command.data[1] % 4096 != 0 || (in_second == 0) != (command.data[1] == 0))
      return 0x013;
    std::byte* first = space->at(command.data[0], in_first);
    std::byte* second = in_second ? space->at(command.data[1], in_second) : nullptr;
    if (!first || (in_second && !second)) return 0x004;
    std::memcpy(first, disk_.data() + block * 512, in_first);
    if (in_second) std::memcpy(second, disk_.data() + block * 512 + in_first, in_second);
    return 0;
  }

  uint32_t administer(const kernels::Command& command, uint32_t& result) {
    admin_opcodes_.insert(command.opcode);
    const uint32_t number = command.words[0] & 0xffff, size = (command.words[0] >> 16) + 1;
    switch (command.opcode) {
      case 0x06:
        return identify(command);
      case 0x09:
        result = (faults_.queues - 1) | (faults_.queues - 1) << 16;
        return command.words[0] == 7 ? 0 : 0x002;
      case 0x05:
        if (queues_.contains(number) || size > faults_.max_depth || command.words[1] != 1) return 0x101;
        queues_[number].completions = command.data[0];
        queues_[number].completion_depth = size;
        queues_[number].depth = 1;  // no commands yet
        return 0;
      case 0x01:
        if (!queues_.contains(number) || command.words[1] != (number << 16 | 1)) return 0x100;
        queues_[number].commands = command.data[0];
        queues_[number].depth = size;
        return 0;
      case 0x00:
        if (!queues_.contains(number) || !queues_[number].pending.empty()) return 0x101;
        queues_[number].commands = 0;
        queues_[number].head = 0;
        queues_[number].depth = 1;
        put(0x1000 + 2 * number * kStride, 0);
        return 0;
      case 0x04:
        if (!queues_.contains(number) || queues_[number].commands != 0) return 0x10c;
        queues_.erase(number);
        put(0x1000 + (2 * number + 1) * kStride, 0);
        return 0;
      default:
        return 0x001;
    }
  }

  uint32_t identify(const kernels::Command& command) {
    std::byte* page = space->at(command.data[0], 4096);
    if (!page) return 0x004;
    const auto set = [&](size_t offset, auto value) { std::memcpy(page + offset, &value, sizeof value); };
    std::memset(page, 0, 4096);
    if (command.words[0] == 1) {
      std::memcpy(page + 4, "serial 7            ", 20);
      std::memcpy(page + 24, "a thread                                ", 40);
      std::memcpy(page + 64, "1.0     ", 8);
      set(77, uint8_t{5});
      set(516, uint32_t{1});
    } else if (command.words[0] == 0 && command.space == 1) {
      set(0, uint64_t{disk_.size() >> faults_.block_shift});
      set(26, uint8_t{1});  // the second format
      set(128, uint32_t{11} << 16);
      set(132, faults_.block_shift << 16 | faults_.metadata_bytes);
    } else {
      return 0x002;
    }
    return 0;
  }

  std::vector<std::byte> disk_;
  FakeFaults faults_;
  std::vector<uint32_t> words_;
  std::mt19937_64 rng_;
  std::map<uint32_t, Queue> queues_;
  uint64_t reads_ = 0;
  std::set<int> admin_opcodes_, io_opcodes_;
  std::atomic<int> driver_faults_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace outcrop::testing
