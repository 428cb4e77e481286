// CRC-32C of each page of a file, compared with pages when they are read first.
//
// Rows are a fraction of a page, so an epoch of random reads takes each page many times: comparing all of
// them took as long as reading them from the page cache. A bit for each page says that it was found right.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace outcrop {

// Pages [first, first + n) of the file `path`, whose pages have checksums `crcs`, lie at `data`. Throws
// Error(checksum), naming the file and the byte where the page begins, for one that differs.
void check_run(std::span<const uint32_t> crcs, const std::string& path, const std::string& remedy,
               uint64_t first, size_t n, const std::byte* data);

class PageSums {
 public:
  PageSums() = default;  // nothing is compared
  // crcs: of page 0 on, must outlive this. remedy: what an error tells the user to do.
  PageSums(std::span<const uint32_t> crcs, std::string remedy);

  bool empty() const { return crcs_.empty(); }
  // Page numbers[i] of the file `path` lies at data + i * 4096. Throws as check_run for one that is new and
  // differs. Not for several threads at once.
  void check(const std::string& path, std::span<const uint64_t> numbers, const std::byte* data);

 private:
  std::span<const uint32_t> crcs_;
  std::string remedy_;
  std::vector<bool> known_;
};

}  // namespace outcrop
