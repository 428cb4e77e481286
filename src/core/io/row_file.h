// A file of rows as RowReader and RowStream read it: windows of pages in, rows out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "io/block_io.h"
#include "io/coalesce.h"
#include "io/page_sums.h"

namespace outcrop {

struct RowFile {
  // Throws Error(argument) for an impossible layout, Error(io) where num_rows are more than the file holds.
  RowFile(std::shared_ptr<BlockIo> engine, FileId id, const RowLayout& rows, uint64_t num_rows);

  const std::shared_ptr<BlockIo> io;
  const FileId file;
  const RowLayout layout;
  const uint64_t num_rows, file_bytes;
  PageSums sums;  // none: what is read is taken as it comes

  // From now on every page is compared when it is read first. `crcs` has one for each page that rows lie on
  // and must live as long as this. Throws Error(format) if there are fewer, or the file is not whole pages.
  void check_pages(const uint32_t* crcs, size_t n, std::string remedy);

  // Starts reading the pages of a window to `pages`.
  std::shared_ptr<IoJob> start(const RowWindow& window, std::byte* pages) const;
  // Compares what a window has read with its checksums, where there are any. Throws Error(checksum).
  // One thread at a time.
  void check(const RowWindow& window, const std::byte* pages);
  // out[rows[i].row] = the row, for the rows of a window whose pages are there.
  void copy_out(const RowWindow& window, const RowEntry* rows, const std::byte* pages, std::byte* out,
                uint64_t out_stride) const;
};

// Throws Error(argument) where `scratch_bytes` are fewer than rows of row_bytes need.
void check_scratch(uint64_t scratch_bytes, uint64_t least, uint64_t row_bytes);

}  // namespace outcrop
