// A controller's registers (NVM Express base specification, section 3.1): a window of memory whose words are
// read and written whole. Each access is one 32-bit atomic, so that the same code drives a disk's BAR and a
// fake controller that is a thread. A 64-bit register is read and written by halves, as every controller
// allows.
#pragma once
#include <cstddef>
#include <cstdint>

namespace outcrop::nvme {

enum class Register : uint32_t {
  capabilities = 0x00,
  version = 0x08,
  configuration = 0x14,
  status = 0x1c,
  admin_depths = 0x24,
  admin_commands = 0x28,
  admin_completions = 0x30,
  doorbells = 0x1000,
};

// Bits of Register::configuration and Register::status.
constexpr uint32_t kEnable = 1, kCommandEntry = 6u << 16, kCompletionEntry = 4u << 20;
constexpr uint32_t kShutdownMask = 3u << 14, kShutdownNormal = 1u << 14;
constexpr uint32_t kReady = 1, kFatal = 2, kShutdownStateMask = 3u << 2, kShutdownDone = 2u << 2;
constexpr uint32_t kGone = ~uint32_t{0};  // what a device that is no longer there reads as

// Does not own the window.
class Registers {
 public:
  Registers(std::byte* window, size_t bytes) : window_(window), bytes_(bytes) {}

  uint32_t read(Register which) const { return __atomic_load_n(word(which), __ATOMIC_ACQUIRE); }
  uint64_t read64(Register which) const {
    return read(which) | uint64_t{__atomic_load_n(word(which) + 1, __ATOMIC_ACQUIRE)} << 32;
  }
  void write(Register which, uint32_t value) { __atomic_store_n(word(which), value, __ATOMIC_RELEASE); }
  void write64(Register which, uint64_t value) {
    write(which, static_cast<uint32_t>(value));
    __atomic_store_n(word(which) + 1, static_cast<uint32_t>(value >> 32), __ATOMIC_RELEASE);
  }
  // Doorbell of the commands (side 0) or completions (side 1) of a queue.
  uint32_t* doorbell(uint32_t queue, uint32_t side, uint32_t stride_bytes) const {
    return word(Register::doorbells) + (size_t{2} * queue + side) * stride_bytes / sizeof(uint32_t);
  }
  // Queues, the administrative one included, whose doorbells are in the window.
  uint64_t queues(uint32_t stride_bytes) const {
    const auto first = static_cast<size_t>(Register::doorbells);
    return bytes_ < first ? 0 : (bytes_ - first) / (uint64_t{2} * stride_bytes);
  }
  std::byte* window() const { return window_; }
  size_t bytes() const { return bytes_; }

 private:
  uint32_t* word(Register which) const {
    return reinterpret_cast<uint32_t*>(window_ + static_cast<uint32_t>(which));
  }
  std::byte* window_;
  size_t bytes_;
};

}  // namespace outcrop::nvme
