#include "nvme/disk.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace outcrop::nvme {
namespace {

constexpr uint32_t kCheckDepth = 32;

}  // namespace

std::vector<std::byte> read_range(ReadQueue& queue, const DmaMemory& staging, uint64_t offset, uint64_t bytes,
                                  const std::string& name) {
  std::vector<std::byte> data(bytes);
  std::vector<uint64_t> free_slots, slot_of(queue.capacity()), at_of(queue.capacity());
  for (uint64_t i = 0; i < staging.size() / kPageBytes; ++i) free_slots.push_back(i);
  std::vector<Finished> finished;
  std::string fault;  // the first; what is in flight comes home before it is thrown
  const auto length = [&](uint64_t at) { return std::min<uint64_t>(kPageBytes, bytes - at); };
  for (uint64_t next = 0; (next < bytes && fault.empty()) || queue.in_flight() > 0;) {
    for (; next < bytes && fault.empty() && !queue.full() && !free_slots.empty(); next += length(next)) {
      const uint64_t slot = free_slots.back(), to = staging.bus() + slot * kPageBytes;
      free_slots.pop_back();
      const auto blocks = static_cast<uint32_t>(length(next) / kernels::kBlockBytes);
      const uint16_t id = queue.read((offset + next) / kernels::kBlockBytes, blocks, to);
      slot_of[id] = slot;
      at_of[id] = next;
    }
    queue.ring();
    finished.clear();
    queue.wait(finished);
    for (const auto& f : finished) {
      const uint64_t at = at_of[f.id];
      if (f.status != 0 && fault.empty())
        fault = "NVMe " + name + ": cannot read " + std::to_string(length(at)) + " bytes at byte " +
                std::to_string(offset + at) + ": status " + status_name(f.status);
      std::memcpy(data.data() + at, staging.data() + slot_of[f.id] * kPageBytes, length(at));
      free_slots.push_back(slot_of[f.id]);
    }
  }
  if (!fault.empty()) throw Error(ErrorKind::io, fault);
  return data;
}

Finding check_content(Controller& controller, std::shared_ptr<DmaSpace> space, Budget& budget,
                      const DiskOptions& options, const std::string& name) {
  const uint64_t disk_bytes = controller.disk().bytes(), n = std::min(kExaminedBytes, disk_bytes);
  const uint32_t depth = std::min(kCheckDepth, controller.info().max_depth);
  ReadQueue queue(controller.create_queue(depth), options.controller.command_deadline,
                  "NVMe " + name + ", queue of the check");
  const DmaMemory staging(std::move(space), budget, "nvme-staging", kCheckDepth * kPageBytes);
  const auto head = read_range(queue, staging, 0, n, name);
  const auto tail = read_range(queue, staging, disk_bytes - n, n, name);
  controller.drop_queue();
  Finding finding = examine(head, tail, disk_bytes);
  if (finding.content == Content::foreign)
    throw Error(ErrorKind::format, "NVMe " + name +
                                       ": refused, its content is not Outcrop's: " + finding.what +
                                       ". Outcrop uses only a disk that was made for it (docs/nvme.md)");
  if (finding.content == Content::blank && !options.blank_too)
    throw Error(ErrorKind::format, "NVMe " + name +
                                       ": refused, it is blank: put Outcrop's header and data on it first "
                                       "(docs/nvme.md)");
  return finding;
}

Disk::Disk(const std::string& address, std::shared_ptr<Budget> budget, const DiskOptions& options)
    : device_(address, options.paths),
      controller_(device_.registers(), device_.space(), budget, address, options.controller),
      finding_(check_content(controller_, device_.space(), *budget, options, address)) {}

}  // namespace outcrop::nvme
