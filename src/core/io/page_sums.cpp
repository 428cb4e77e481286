#include "io/page_sums.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/buffer.h"
#include "base/checksum.h"
#include "base/error.h"

namespace outcrop {
namespace {

constexpr size_t kAtOnce = 64;

void compare(std::span<const uint32_t> crcs, const std::string& path, const std::string& remedy,
             uint64_t page, uint32_t found) {
  if (page < crcs.size() && found == crcs[page]) return;
  throw Error(ErrorKind::checksum, path + ": the page at byte " + std::to_string(page * kPageBytes) +
                                       " was damaged after it was written; " + remedy);
}

}  // namespace

void check_run(std::span<const uint32_t> crcs, const std::string& path, const std::string& remedy,
               uint64_t first, size_t n, const std::byte* data) {
  std::array<uint32_t, kAtOnce> found;
  for (size_t begin = 0; begin < n; begin += kAtOnce) {
    const size_t count = std::min(kAtOnce, n - begin);
    crc32c_pages(data + begin * kPageBytes, count, found.data());
    for (size_t i = 0; i < count; ++i) compare(crcs, path, remedy, first + begin + i, found[i]);
  }
}

PageSums::PageSums(std::span<const uint32_t> crcs, std::string remedy)
    : crcs_(crcs), remedy_(std::move(remedy)), known_(crcs.size()) {}

void PageSums::check(const std::string& path, std::span<const uint64_t> numbers, const std::byte* data) {
  const auto is_new = [&](uint64_t page) { return page >= known_.size() || !known_[page]; };
  std::array<uint32_t, kAtOnce> found;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin;
    while (end < numbers.size() && end - begin < kAtOnce && is_new(numbers[end])) ++end;
    crc32c_pages(data + begin * kPageBytes, end - begin, found.data());
    for (size_t i = begin; i < end; ++i) {
      compare(crcs_, path, remedy_, numbers[i], found[i - begin]);
      known_[numbers[i]] = true;
    }
    begin = end;
    while (begin < numbers.size() && !is_new(numbers[begin])) ++begin;
  }
}

}  // namespace outcrop
