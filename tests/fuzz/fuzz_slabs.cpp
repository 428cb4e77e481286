// Places of the buffer that change hands, with places on disk anywhere, also behind the end of their file: either an Error
// (io), with all that was moved before it, or what the same moves do to arrays in memory.
#include <fuzzer/FuzzedDataProvider.h>

#include "base/buffer.h"
#include "base/checksum.h"
#include "base/error.h"
#include "check.h"
#include "embed/slab_swap.h"
#include "files.h"

using namespace outcrop;

namespace {

constexpr size_t kFileBytes = 3 * 4096;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  const std::string path = folder() + "/slabs";
  std::vector<uint8_t> file(kFileBytes);
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<uint8_t>(i * 7 + i / 256);
  write_values(path, file);
  const bool whole = in.ConsumeBool();  // pages, as those of the embeddings are
  const FileId id = engine()->open(path, whole && in.ConsumeBool() ? OpenMode::pages : OpenMode::update);
  const size_t unit = whole ? 4096 : 1;
  const auto budget = Budget::create(UINT64_MAX);
  std::vector<Buffer> slabs;
  std::vector<std::vector<uint8_t>> expected;
  for (size_t left = in.ConsumeIntegralInRange<size_t>(1, 4); left; --left) {
    const size_t bytes = in.ConsumeIntegralInRange<size_t>(0, whole ? 3 : 5000) * unit;
    expected.emplace_back(bytes, static_cast<uint8_t>(left + 100));
    slabs.emplace_back(*budget, "slabs", bytes);  // which begins at a page
    std::copy(expected.back().begin(), expected.back().end(), slabs.back().as<uint8_t>());
  }
  const auto place = [&]() -> std::optional<SlabPlace> {
    if (in.ConsumeBool()) return std::nullopt;
    // Whole pages, as everything here where pages are written.
    const uint64_t far = (in.ConsumeIntegral<uint64_t>() >> in.ConsumeIntegralInRange(1, 40)) / unit * unit;
    const uint64_t near = in.ConsumeIntegralInRange<uint64_t>(0, kFileBytes / unit + 2) * unit;
    return SlabPlace{id, in.ConsumeProbability<float>() < 0.05f ? far : near};
  };
  std::vector<SlabMove> moves;
  std::vector<uint32_t> written, read;
  bool right = true, written_far = false;
  for (auto& slab : slabs) {
    SlabMove move;
    move.slab = {slab.data(), slab.size()};
    move.write = place(), move.read = place();
    // A write goes on behind the end, but nobody has so large a disk.
    if (move.write && move.write->offset > 4 * kFileBytes)
      move.write->offset %= 4 * kFileBytes, written_far = true;
    moves.push_back(move);
  }
  for (size_t i = 0; i < moves.size() && right; ++i) {
    auto& slab = expected[i];
    written.push_back(moves[i].write ? crc32c_table(slab.data(), slab.size()) : 0);
    if (moves[i].write && !slab.empty()) {
      const size_t at = moves[i].write->offset;
      file.resize(std::max(file.size(), at + slab.size()));
      std::copy(slab.begin(), slab.end(), file.begin() + static_cast<std::ptrdiff_t>(at));
    }
    if (moves[i].read && !slab.empty()) {
      const uint64_t at = moves[i].read->offset;
      right = at <= file.size() && slab.size() <= file.size() - at;
      if (right) std::copy_n(file.begin() + static_cast<std::ptrdiff_t>(at), slab.size(), slab.begin());
    }
    read.push_back(moves[i].read && right ? crc32c_table(slab.data(), slab.size()) : 0);
  }
  try {
    SlabSwap swap(engine(), moves);
    swap.wait();
    holds(right && swap.done());
    for (size_t i = 0; i < slabs.size(); ++i)
      holds(std::equal(expected[i].begin(), expected[i].end(), slabs[i].as<uint8_t>()));
    for (size_t i = 0; i < moves.size(); ++i)
      holds(swap.moves()[i].written_crc == written[i] && swap.moves()[i].read_crc == read[i]);
  } catch (const Error& error) {
    // The latter for offsets that no file can have.
    holds(error.kind() == ErrorKind::io || error.kind() == ErrorKind::argument);
    holds(!right || written_far);
  }
  engine()->close(id);
  holds(read_values<uint8_t>(path, file.size()) == file || !right);
  return 0;
}
