// The controller of a ring with commands that make no sense: any opcode, blocks, namespaces and addresses, doorbells that
// lie, ids that were given before. Every command is answered once or the controller says that it has ended; what is
// outside of staging memory stays as it was, and a file is written only by writes that were done.
#include <fuzzer/FuzzedDataProvider.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "base/buffer.h"
#include "base/error.h"
#include "check.h"
#include "files.h"
#include "rings/controller.h"

using namespace outcrop;

namespace {

constexpr uint64_t kFileBytes = 5000;  // not whole blocks
constexpr std::byte kUntouched{0x5a};
constexpr std::chrono::seconds kPatience{10};

FileId file_of(const char* name, OpenMode mode) {
  const std::string path = folder() + name;
  write_values(path, std::vector<uint8_t>(kFileBytes, 7));
  return engine()->open(path, mode);
}

// Rarely right, mostly near what is.
uint64_t address_near(FuzzedDataProvider& in, uint64_t staging, uint64_t bytes) {
  switch (in.ConsumeIntegralInRange(0, 4)) {
    case 0:
      return in.ConsumeIntegral<uint64_t>();
    case 1:  // before it, at its end, behind it
      return staging + in.ConsumeIntegralInRange<uint64_t>(0, 4) * kernels::kMemoryPage -
             kernels::kMemoryPage;
    case 2:
      return staging + bytes - in.ConsumeIntegralInRange<uint64_t>(0, 8) * kernels::kBlockBytes;
    default:
      return staging +
             in.ConsumeIntegralInRange<uint64_t>(0, bytes / kernels::kBlockBytes) * kernels::kBlockBytes;
  }
}

kernels::Command command_of(FuzzedDataProvider& in, const kernels::IoQueue& q) {
  const auto staging = reinterpret_cast<uint64_t>(q.staging);
  const auto bytes = static_cast<uint64_t>(q.num_ids * q.slot_bytes);
  if (in.ConsumeBool()) {
    const auto id = in.ConsumeIntegralInRange<uint16_t>(0, static_cast<uint16_t>(q.num_ids - 1));
    return kernels::read_command(id, in.ConsumeIntegralInRange<uint64_t>(0, 12),
                                 in.ConsumeIntegralInRange<uint32_t>(1, 16),
                                 address_near(in, staging, bytes));
  }
  kernels::Command c{};
  c.opcode = in.ConsumeIntegralInRange<uint8_t>(0, 3);
  c.id = in.ConsumeIntegral<uint16_t>();
  c.space = in.ConsumeIntegralInRange<uint32_t>(0, 3);
  for (auto& address : c.data) address = address_near(in, staging, bytes);
  c.words[0] = in.ConsumeBool() ? in.ConsumeIntegral<uint32_t>() : in.ConsumeIntegralInRange<uint32_t>(0, 12);
  c.words[1] = in.ConsumeBool() ? in.ConsumeIntegral<uint32_t>() : 0;
  c.words[2] = in.ConsumeBool() ? in.ConsumeIntegral<uint32_t>() : in.ConsumeIntegralInRange<uint32_t>(0, 16);
  return c;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  static const FileId read_only = file_of("/read", OpenMode::read),
                      written = file_of("/written", OpenMode::update);
  try {
    const auto budget = Budget::create(UINT64_MAX);
    const auto layout = QueueLayout::within(in.ConsumeIntegralInRange<uint64_t>(1, 9000),
                                            in.ConsumeIntegralInRange<uint64_t>(0, 60000),
                                            in.ConsumeIntegralInRange<uint64_t>(1, 9));
    // A page before and a page behind, which nobody may touch.
    Buffer memory(*budget, "rings", layout.bytes + 2 * kernels::kMemoryPage);
    std::memset(memory.data(), 0x5a, kernels::kMemoryPage);
    std::memset(memory.data() + kernels::kMemoryPage + layout.bytes, 0x5a, kernels::kMemoryPage);
    std::byte* const own = memory.data() + kernels::kMemoryPage;
    const kernels::IoQueue q = layout.at(own);
    const auto* ended = reinterpret_cast<const uint32_t*>(own + layout.ended);
    RingFaults faults;
    faults.shuffle = in.ConsumeBool();
    faults.error_probability = in.ConsumeBool() ? 0.2 : 0;
    const bool checksums = in.ConsumeBool();
    RingController controller(engine(), {read_only, written}, layout, own, faults, checksums);
    uint64_t given = 0, taken = 0;
    bool wrong = false;
    for (int rounds = in.ConsumeIntegralInRange(1, 4); rounds && !wrong; --rounds) {
      for (uint64_t left = in.ConsumeIntegralInRange<uint64_t>(0, layout.ids); left; --left)
        q.pair.commands[given++ % layout.depth] = command_of(in, q);
      uint32_t doorbell = static_cast<uint32_t>(given % layout.depth);
      if (in.ConsumeProbability<float>() < 0.1f) {  // which ends it
        doorbell = in.ConsumeIntegralInRange<uint32_t>(static_cast<uint32_t>(layout.depth), UINT32_MAX);
        wrong = true;
      }
      kernels::ring(q.pair.command_doorbell, doorbell);
      const auto end = std::chrono::steady_clock::now() + kPatience;
      while (wrong ? !kernels::load_acquire(ended) : taken < given) {
        holds(std::chrono::steady_clock::now() < end);
        holds(wrong || !kernels::load_acquire(ended));
        const auto found =
            kernels::look(&q.pair.completions[taken % layout.depth], taken / layout.depth % 2 == 0);
        if (found.ready && taken < given) {
          ++taken;
        } else {
          std::this_thread::yield();
        }
      }
      holds(wrong || controller.served() == given);
      if (in.ConsumeProbability<float>() < 0.1f) {  // of which the controller has to make what it can
        kernels::ring(q.pair.completion_doorbell, in.ConsumeIntegral<uint32_t>());
        q.pair.commands[given++ % layout.depth] = command_of(in, q);
        kernels::ring(q.pair.command_doorbell, static_cast<uint32_t>(given % layout.depth));
        break;
      }
      kernels::ring(q.pair.completion_doorbell, static_cast<uint32_t>(taken % layout.depth));
    }
    holds(!wrong || !controller.error().empty());
    for (uint64_t i = 0; i < kernels::kMemoryPage; ++i)
      holds(memory.data()[i] == kUntouched && own[layout.bytes + i] == kUntouched);
  } catch (const Error&) {
  }
  const auto kept = read_values<uint8_t>(folder() + "/read", kFileBytes);
  holds(std::all_of(kept.begin(), kept.end(), [](uint8_t byte) { return byte == 7; }));
  return 0;
}
