// CRC-32C of each page of a file, to be compared with pages that were read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace outcrop {

struct PageSums {
  const uint32_t* crcs = nullptr;  // of page 0 on; null: nothing is compared
  uint64_t pages = 0;
  std::string remedy;  // what an error tells the user to do

  // Throws Error(checksum), naming `path` and the byte where the page begins, unless pages [first, first + n)
  // of the file are those at `data`. `found` has room for n checksums.
  void check(const std::string& path, uint64_t first, size_t n, const std::byte* data, uint32_t* found) const;
  // Throws Error(checksum) unless page `page` has checksum `crc`.
  void compare(const std::string& path, uint64_t page, uint32_t crc) const;
};

}  // namespace outcrop
