#include "nvme/controller.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

namespace outcrop::nvme {
namespace {

using std::chrono::milliseconds;

// Administrative commands, base specification section 5. The only ones.
enum : uint8_t {
  kDeleteSubmission = 0x00,
  kCreateSubmission = 0x01,
  kDeleteCompletion = 0x04,
  kCreateCompletion = 0x05,
  kIdentify = 0x06,
  kSetFeatures = 0x09,
};
constexpr uint32_t kNumberOfQueues = 7;  // feature
constexpr uint32_t kAdminDepth = 16;
constexpr uint32_t kContiguous = 1;
constexpr uint32_t kMinDepth = 2;

template <class T>
T field(const std::byte* page, size_t offset) {
  T value;
  std::memcpy(&value, page + offset, sizeof value);
  return value;
}

std::string text(const std::byte* page, size_t offset, size_t length) {
  std::string s(reinterpret_cast<const char*>(page) + offset, length);
  s.erase(s.find_last_not_of(std::string(" \0", 2)) + 1);
  return s;
}

}  // namespace

Controller::Controller(Registers registers, std::shared_ptr<DmaSpace> space, std::shared_ptr<Budget> budget,
                       std::string name, const ControllerOptions& options)
    : registers_(registers),
      space_(std::move(space)),
      budget_(std::move(budget)),
      name_(std::move(name)),
      options_(options) {
  const uint64_t capabilities = registers_.read64(Register::capabilities);
  if (capabilities == ~uint64_t{0})
    fail(ErrorKind::io, "the device does not answer (its registers read as ones)");
  info_.max_depth = static_cast<uint32_t>(capabilities & 0xffff) + 1;
  info_.stride_bytes = 4u << (capabilities >> 32 & 15);
  info_.version = registers_.read(Register::version);
  ready_deadline_ = options.ready_deadline.count()
                        ? options.ready_deadline
                        : milliseconds(500 * std::max<int>(1, capabilities >> 24 & 255));
  if (!(capabilities >> 37 & 1)) fail(ErrorKind::format, "the controller lacks the NVM command set");
  if (capabilities >> 48 & 15)
    fail(ErrorKind::format, "the controller needs memory pages of more than 4096 bytes");
  if (registers_.queues(info_.stride_bytes) < 2) fail(ErrorKind::format, "no doorbells in its registers");
  try {
    disable();
    enable();
    identify();
    ask_queues();
  } catch (...) {
    registers_.write(Register::configuration, 0);  // no more access to the rings, which are unmapped now
    throw;
  }
}

Controller::~Controller() {
  try {
    shutdown();
  } catch (const Error&) {
    registers_.write(Register::configuration, 0);  // what it still writes the IOMMU turns away
  }
}

void Controller::fail(ErrorKind kind, const std::string& what) const {
  throw Error(kind, "NVMe " + name_ + ": " + what);
}

void Controller::await_status(uint32_t mask, uint32_t value, const char* what) {
  const auto end = std::chrono::steady_clock::now() + ready_deadline_;
  for (;;) {
    const uint32_t status = registers_.read(Register::status);
    if (status == kGone) fail(ErrorKind::io, std::string("gone while waiting for it to ") + what);
    if ((status & mask) == value) return;
    if (status & kFatal && value != 0)
      fail(ErrorKind::io, std::string("reports a fatal error while waiting for it to ") + what +
                              "; power the disk off and on");
    if (std::chrono::steady_clock::now() > end)
      fail(ErrorKind::io, std::string("did not ") + what + " within " +
                              std::to_string(ready_deadline_.count()) + " ms; power the disk off and on");
    std::this_thread::yield();
  }
}

void Controller::disable() {
  const uint32_t was = registers_.read(Register::configuration);
  // A controller that is on its way up must arrive before it may be turned off (section 3.1.5).
  if (was & kEnable && !(registers_.read(Register::status) & (kReady | kFatal)))
    await_status(kReady, kReady, "become ready before its reset");
  registers_.write(Register::configuration, was & ~(kEnable | kShutdownMask));
  await_status(kReady, 0, "reset");
}

void Controller::enable() {
  admin_rings_ = make_rings(0, std::min(kAdminDepth, info_.max_depth));
  const uint32_t last = admin_rings_.pair.depth - 1;
  registers_.write(Register::admin_depths, last | last << 16);
  registers_.write64(Register::admin_commands, admin_rings_.memory.bus());
  registers_.write64(Register::admin_completions, admin_rings_.memory.bus() + admin_rings_.memory.size() / 2);
  registers_.write(Register::configuration, kEnable | kCommandEntry | kCompletionEntry);
  await_status(kReady, kReady, "become ready");
  admin_.emplace(admin_rings_.pair, options_.command_deadline, "NVMe " + name_ + ", administrative queue");
}

// Commands in the first half, completions in the second, both on a page.
Controller::Rings Controller::make_rings(uint32_t queue, uint32_t depth) {
  const size_t half = align_up(depth * sizeof(kernels::Command), kPageBytes);
  Rings rings{DmaMemory(space_, *budget_, "nvme-rings", 2 * half), {}};
  rings.pair = {rings.memory.as<kernels::Command>(), rings.memory.as<kernels::Completion>(half),
                registers_.doorbell(queue, 0, info_.stride_bytes),
                registers_.doorbell(queue, 1, info_.stride_bytes), depth};
  return rings;
}

uint32_t Controller::admin(const kernels::Command& command, const char* what) {
  const uint16_t id = admin_->put(command);
  admin_->ring();
  for (std::vector<Finished> finished;; finished.clear()) {
    admin_->wait(finished);
    for (const Finished& f : finished) {
      if (f.id != id) continue;  // of one whose deadline had passed
      if (f.status != 0)
        fail(ErrorKind::io, std::string("cannot ") + what + ": status " + status_name(f.status));
      return f.result;
    }
  }
}

void Controller::identify() {
  DmaMemory page(space_, *budget_, "nvme-rings", kPageBytes);
  kernels::Command command{};
  command.opcode = kIdentify;
  command.data[0] = page.bus();
  command.words[0] = 1;  // the controller
  admin(command, "identify the controller");
  const std::byte* p = page.data();
  info_.serial = text(p, 4, 20);
  info_.model = text(p, 24, 40);
  info_.firmware = text(p, 64, 8);
  const auto shift = field<uint8_t>(p, 77);
  info_.max_transfer_bytes = shift ? uint64_t{kPageBytes} << std::min<int>(shift, 40) : UINT64_MAX;
  if (field<uint32_t>(p, 516) < 1) fail(ErrorKind::format, "it has no namespace");

  std::memset(page.data(), 0, kPageBytes);
  command.words[0] = 0;  // the namespace
  command.space = 1;
  admin(command, "identify namespace 1");
  disk_.blocks = field<uint64_t>(p, 0);
  const uint32_t format = field<uint8_t>(p, 26) & 15;
  const auto layout = field<uint32_t>(p, 128 + 4 * format);
  const uint32_t block_shift = layout >> 16 & 255;
  if (disk_.blocks == 0) fail(ErrorKind::format, "namespace 1 is not active");
  if (block_shift < 9 || block_shift > 16 || disk_.blocks > UINT64_MAX >> block_shift)
    fail(ErrorKind::format, "namespace 1 has blocks of 2^" + std::to_string(block_shift) + " bytes");
  disk_.block_bytes = 1u << block_shift;
  disk_.metadata_bytes = layout & 0xffff;
}

void Controller::ask_queues() {
  const uint32_t want = std::clamp<uint32_t>(options_.queues, 1, 65535);
  kernels::Command command{};
  command.opcode = kSetFeatures;
  command.words[0] = kNumberOfQueues;
  command.words[1] = (want - 1) | (want - 1) << 16;
  const uint32_t given = admin(command, "ask for queues");
  const uint64_t doorbells = registers_.queues(info_.stride_bytes) - 1;
  info_.queues =
      static_cast<uint32_t>(std::min<uint64_t>({want, (given & 0xffff) + 1, (given >> 16) + 1, doorbells}));
}

kernels::QueuePair Controller::create_queue(uint32_t depth) {
  if (disk_.block_bytes != kernels::kBlockBytes || disk_.metadata_bytes != 0)
    fail(ErrorKind::format,
         "its blocks have " + std::to_string(disk_.block_bytes) + " bytes and " +
             std::to_string(disk_.metadata_bytes) +
             " of metadata; queue pairs count in blocks of 512 without: see nvme format --lbaf, "
             "which erases the disk");
  if (depth < kMinDepth || depth > info_.max_depth)
    fail(ErrorKind::argument,
         "rings of 2 to " + std::to_string(info_.max_depth) + " entries, not " + std::to_string(depth));
  if (queues_.size() == info_.queues)
    fail(ErrorKind::argument, "it gives " + std::to_string(info_.queues) + " queue pairs, which are in use");
  const auto queue = static_cast<uint32_t>(queues_.size() + 1);
  Rings rings = make_rings(queue, depth);
  kernels::Command command{};
  command.opcode = kCreateCompletion;
  command.data[0] = rings.memory.bus() + rings.memory.size() / 2;
  command.words[0] = queue | (depth - 1) << 16;
  command.words[1] = kContiguous;  // no interrupts
  admin(command, "create a completion ring");
  command.opcode = kCreateSubmission;
  command.data[0] = rings.memory.bus();
  command.words[1] = kContiguous | queue << 16;
  admin(command, "create a command ring");
  queues_.push_back(std::move(rings));
  return queues_.back().pair;
}

void Controller::drop_queue() {
  kernels::Command command{};
  command.words[0] = static_cast<uint32_t>(queues_.size());
  command.opcode = kDeleteSubmission;
  admin(command, "delete a command ring");
  command.opcode = kDeleteCompletion;
  admin(command, "delete a completion ring");
  queues_.pop_back();
}

void Controller::shutdown() {
  if (std::exchange(down_, true)) return;
  while (!queues_.empty()) drop_queue();
  registers_.write(Register::configuration,
                   (registers_.read(Register::configuration) & ~kShutdownMask) | kShutdownNormal);
  await_status(kShutdownStateMask, kShutdownDone, "shut down");
  disable();
}

uint16_t ReadQueue::read(uint64_t first_block, uint32_t blocks, uint64_t bus) {
  const uint64_t end = bus + uint64_t{blocks} * kernels::kBlockBytes;
  if (blocks == 0 || bus % kernels::kBlockBytes != 0 ||
      end > align_down(bus, kernels::kMemoryPage) + 2 * kernels::kMemoryPage)
    throw Error(ErrorKind::argument, "a read of " + std::to_string(blocks) + " blocks to bus address " +
                                         std::to_string(bus) + ": whole blocks within two pages are needed");
  return queue_.put(kernels::read_command(0, first_block, blocks, bus));
}

}  // namespace outcrop::nvme
