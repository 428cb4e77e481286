#include "io/row_file.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace outcrop {

RowFile::RowFile(std::shared_ptr<BlockIo> engine, FileId id, const RowLayout& rows, uint64_t count)
    : io(std::move(engine)), file(id), layout(rows), num_rows(count), file_bytes(io->size_bytes(id)) {
  if (layout.row_bytes == 0 || layout.stride < layout.row_bytes)
    throw Error(ErrorKind::argument, "rows of " + std::to_string(layout.row_bytes) +
                                         " bytes with a stride of " + std::to_string(layout.stride) +
                                         " bytes overlap or are empty");
  // Checked by division: the product of hostile numbers could wrap.
  const uint64_t room = layout.base > file_bytes || file_bytes - layout.base < layout.row_bytes
                            ? 0
                            : (file_bytes - layout.base - layout.row_bytes) / layout.stride + 1;
  if (num_rows > room)
    throw Error(ErrorKind::io, io->path(file) + " of " + std::to_string(file_bytes) + " bytes holds " +
                                   std::to_string(room) + " rows, not " + std::to_string(num_rows) +
                                   ": the file is truncated");
}

std::shared_ptr<IoJob> RowFile::start(const RowWindow& window, std::byte* pages) const {
  std::vector<IoRequest> requests;
  requests.reserve(window.reads.size());
  for (const PageRead& r : window.reads)  // a file not padded to whole pages ends within its last one
    requests.push_back({file, r.offset, std::min(r.length, file_bytes - r.offset), pages + r.at});
  return io->submit(IoOp::read, std::move(requests));
}

void RowFile::check_pages(const uint32_t* crcs, size_t n, std::string remedy) {
  const uint64_t pages = num_rows ? layout.end_page(num_rows - 1) : 0;
  if (n < pages || file_bytes < pages * kPageBytes)
    throw Error(ErrorKind::format, io->path(file) + " has " + std::to_string(n) + " checksums for " +
                                       std::to_string(pages) + " pages; " + remedy);
  sums = PageSums({crcs, n}, std::move(remedy));
}

// The pages of a window follow each other without gaps, whatever reads they came from.
void RowFile::check(const RowWindow& window, const std::byte* pages) {
  if (sums.empty() || window.reads.empty()) return;
  std::vector<uint64_t> numbers;
  for (const PageRead& r : window.reads)
    for (uint64_t at = 0; at < r.length; at += kPageBytes) numbers.push_back((r.offset + at) / kPageBytes);
  sums.check(io->path(file), numbers, pages + window.reads.front().at);
}

void RowFile::copy_out(const RowWindow& window, const RowEntry* rows, const std::byte* pages, std::byte* out,
                       uint64_t out_stride) const {
  PageWalk walk = window.start;
  for (size_t i = window.begin; i < window.end; ++i)
    std::memcpy(out + rows[i].row * out_stride, pages + walk.add(rows[i].id), layout.row_bytes);
}

void check_scratch(uint64_t scratch_bytes, uint64_t least, uint64_t row_bytes) {
  if (scratch_bytes < least)
    throw Error(ErrorKind::argument, "row scratch of " + std::to_string(scratch_bytes) +
                                         " bytes is too small for rows of " + std::to_string(row_bytes) +
                                         " bytes; at least " + std::to_string(least) + " bytes are needed");
}

}  // namespace outcrop
