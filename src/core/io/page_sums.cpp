#include "io/page_sums.h"

#include "base/buffer.h"
#include "base/checksum.h"
#include "base/error.h"

namespace outcrop {

void PageSums::compare(const std::string& path, uint64_t page, uint32_t crc) const {
  if (page < pages && crc == crcs[page]) return;
  throw Error(ErrorKind::checksum, path + ": the page at byte " + std::to_string(page * kPageBytes) +
                                       " was damaged after it was written; " + remedy);
}

void PageSums::check(const std::string& path, uint64_t first, size_t n, const std::byte* data,
                     uint32_t* found) const {
  crc32c_pages(data, n, found);
  for (size_t i = 0; i < n; ++i) compare(path, first + i, found[i]);
}

}  // namespace outcrop
