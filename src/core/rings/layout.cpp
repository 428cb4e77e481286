#include "rings/layout.h"

#include <algorithm>
#include <string>

#include "base/buffer.h"
#include "base/error.h"

namespace outcrop {
namespace {

constexpr uint64_t kLine = 128, kMostIds = 65535;  // an id has 16 bits, and a ring one entry more than ids

// The least that goes over at most one page boundary, in a row of its kind that begins at a page.
uint64_t slot_for(uint64_t row_bytes) {
  const auto piece = std::min<int64_t>(static_cast<int64_t>(row_bytes), kernels::kPieceBytes);
  const auto blocks = static_cast<uint64_t>(kernels::blocks_of(piece));
  uint64_t slot = kernels::kBlockBytes;
  while (slot < blocks * kernels::kBlockBytes) slot *= 2;
  return slot;
}

QueueLayout layout_of(uint64_t ids, uint64_t slot_bytes) {
  QueueLayout l;
  uint64_t at = 0;
  const auto put = [&](uint64_t bytes, uint64_t alignment) {
    const uint64_t start = align_up(at, alignment);
    at = start + bytes;
    return start;
  };
  l.ids = ids;
  l.slot_bytes = slot_bytes;
  l.depth = ids + 1;
  l.staging = put(ids * slot_bytes, kPageBytes);
  l.commands = put(l.depth * sizeof(kernels::Command), kPageBytes);
  l.completions = put(l.depth * sizeof(kernels::Completion), kLine);
  l.command_doorbell = put(sizeof(uint32_t), kLine);
  l.completion_doorbell = put(sizeof(uint32_t), kLine);
  l.ended = put(sizeof(uint32_t), kLine);
  l.progress = put(progress_bytes(ids), kLine);
  l.landings = put(ids * sizeof(kernels::Landing), kLine);
  l.free_ids = put(ids * sizeof(uint16_t), kLine);
  l.bytes = align_up(at, kPageBytes);
  return l;
}

}  // namespace

QueueLayout QueueLayout::within(uint64_t row_bytes, uint64_t memory_bytes, uint64_t max_ids) {
  if (row_bytes == 0 || max_ids == 0)
    throw Error(ErrorKind::argument, "a queue of " + std::to_string(max_ids) + " commands for rows of " +
                                         std::to_string(row_bytes) + " bytes reads nothing");
  const uint64_t slot = slot_for(row_bytes);
  uint64_t least = 1, most = std::min(max_ids, kMostIds);
  while (least < most) {
    const uint64_t middle = (least + most + 1) / 2;
    (layout_of(middle, slot).bytes <= memory_bytes ? least : most) =
        layout_of(middle, slot).bytes <= memory_bytes ? middle : middle - 1;
  }
  return layout_of(least, slot);
}

kernels::IoQueue QueueLayout::at(std::byte* memory) const {
  const auto words = [&](uint64_t offset) { return reinterpret_cast<kernels::uint32*>(memory + offset); };
  kernels::IoQueue q;
  q.pair = {reinterpret_cast<kernels::Command*>(memory + commands),
            reinterpret_cast<kernels::Completion*>(memory + completions), words(command_doorbell),
            words(completion_doorbell), static_cast<kernels::uint32>(depth)};
  q.free_ids = reinterpret_cast<kernels::uint16*>(memory + free_ids);
  q.landings = reinterpret_cast<kernels::Landing*>(memory + landings);
  q.num_ids = static_cast<kernels::int64>(ids);
  q.staging = reinterpret_cast<kernels::uint8*>(memory + staging);
  q.slot_bytes = static_cast<kernels::int64>(slot_bytes);
  q.progress = q.shared = reinterpret_cast<kernels::Progress*>(memory + progress);
  q.group_ended = kernels::group_ended_of(q);
  return q;
}

}  // namespace outcrop
