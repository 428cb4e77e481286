// Arrays of a topology that stay on disk: elements by position, page by page through the I/O engine.
//
// gather() takes the pieces (runs of elements inside one page) that a wave of mini-batches wants, sorts them
// by page, serves those whose page is in the cache, and reads every other page once, neighbouring pages in
// one request, a window of them while the one before is served. Pages that were read enter the cache, which
// keeps those that are wanted most: a clock with small counters (a hit raises a page's counter, the hand
// lowers it and evicts a page that stands at zero). All memory is taken from the budget when the array is
// made. Not thread-safe.
//
// Behind its end an array may go on in memory (go_on): that is where lists lie that are cached whole
// (wave.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/budget.h"
#include "base/buffer.h"
#include "io/block_io.h"
#include "io/page_sums.h"

namespace outcrop {

// Elements [position, position + count), all in one page, to element `out` of the output.
struct Piece {
  uint64_t position = 0;
  uint32_t count = 0;
  uint32_t out = 0;
};

struct PageStats {
  uint64_t wanted = 0;  // distinct pages, summed over gathers
  uint64_t hits = 0;    // of them found in the cache
  uint64_t read = 0;    // read from disk: wanted - hits
  uint64_t held = 0;    // pieces behind the end, in memory
};

// Memory for one gather at a time, shared by the arrays of a topology.
class PageScratch {
 public:
  PageScratch(Budget& budget, uint64_t bytes);
  static constexpr uint64_t kMinBytes = 64 << 10;
  size_t pages() const { return pages_.size() / kPageBytes; }
  size_t pieces() const { return pieces_; }  // that are sorted together

 private:
  friend class PagedArray;
  Buffer pages_;
  Reservation keys_bytes_;
  size_t pieces_;
  std::vector<uint64_t> keys_, keys_scratch_;
};

class PagedArray {
 public:
  // `count` elements of element_bytes (4 or 8) at the start of `file`, which stays open as long as the array.
  // Throws Error(io) where the file is too small.
  PagedArray(std::shared_ptr<BlockIo> io, Budget& budget, FileId file, uint64_t element_bytes, uint64_t count,
             uint64_t cache_bytes);
  // Bytes of tables for an array of this size, taken out of cache_bytes.
  static uint64_t table_bytes(uint64_t element_bytes, uint64_t count);

  // out[piece.out + i] = array[piece.position + i]. Reads pages in groups of scratch.pieces() pieces.
  void gather(PageScratch& scratch, std::span<const Piece> pieces, std::byte* out);
  // Appends pieces for elements [position, position + n) that go to `out` on.
  void add_pieces(std::vector<Piece>& pieces, uint64_t position, uint64_t n, uint32_t out) const;
  // From now on each page is compared with its checksum when it is read first; `crcs` must live as long as
  // this. Throws Error(format) if there are fewer than pages.
  void check_pages(const uint32_t* crcs, size_t n, std::string remedy);
  // Element size() + i is element i of `held`, which has `count` and must live as long as the array.
  void go_on(const std::byte* held, uint64_t count) { held_ = held, held_count_ = count; }
  uint64_t size() const { return count_; }
  uint64_t element_bytes() const { return element_bytes_; }
  const PageStats& stats() const { return stats_; }
  size_t cache_pages() const { return frames_.size(); }

 private:
  struct Frame {
    uint32_t page = 0;
    uint8_t counter = 0;
  };
  void gather_group(PageScratch& scratch, std::span<const Piece> pieces, std::byte* out);
  void serve(const std::byte* page, const Piece& piece, std::byte* out) const;
  void serve_held(const Piece& piece, std::byte* out);
  std::shared_ptr<IoJob> read_pages(std::span<const uint32_t> pages, std::byte* to);
  void check(std::span<const uint32_t> pages, const std::byte* data);
  void admit(uint32_t page, const std::byte* data);

  std::shared_ptr<BlockIo> io_;
  FileId file_;
  uint64_t element_bytes_, per_page_, count_, file_bytes_;
  Reservation table_bytes_;
  std::vector<int32_t> frame_of_;  // page -> frame, or -1
  std::vector<Frame> frames_;
  Buffer cache_;
  size_t used_ = 0, hand_ = 0;
  PageStats stats_;
  PageSums sums_;
  std::vector<uint64_t> numbers_;  // of the pages of a window
  const std::byte* held_ = nullptr;
  uint64_t held_count_ = 0;
};

}  // namespace outcrop
