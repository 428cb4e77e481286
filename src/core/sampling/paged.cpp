#include "sampling/paged.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/radix.h"
#include "base/text.h"

namespace outcrop {
namespace {

constexpr uint64_t kMaxReadPages = 256;
constexpr uint8_t kMaxCounter = 3;
constexpr unsigned kIndexBits = 32;

uint64_t pages_of(uint64_t element_bytes, uint64_t count) {
  return align_up(count * element_bytes, kPageBytes) / kPageBytes;
}

}  // namespace

PageScratch::PageScratch(Budget& budget, uint64_t bytes) {
  if (bytes < kMinBytes)
    throw Error(ErrorKind::budget, "reading the topology by pages needs at least " + least_bytes(kMinBytes) +
                                       " of scratch memory, " + exact_bytes(bytes) +
                                       " were given: raise the memory budget");
  pages_ = Buffer(budget, "topology-scratch", align_down(bytes / 2, kPageBytes));
  pieces_ = (bytes - pages_.size()) / (2 * sizeof(uint64_t));
  keys_bytes_ = budget.reserve("topology-scratch", pieces_ * 2 * sizeof(uint64_t));
  keys_.reserve(pieces_);
  keys_scratch_.reserve(pieces_);
}

uint64_t PagedArray::table_bytes(uint64_t element_bytes, uint64_t count) {
  return pages_of(element_bytes, count) * sizeof(int32_t);
}

PagedArray::PagedArray(std::shared_ptr<BlockIo> io, Budget& budget, FileId file, uint64_t element_bytes,
                       uint64_t count, uint64_t cache_bytes)
    : io_(std::move(io)),
      file_(file),
      element_bytes_(element_bytes),
      per_page_(kPageBytes / element_bytes),
      count_(count),
      file_bytes_(io_->size_bytes(file)) {
  if (count > file_bytes_ / element_bytes)
    throw Error(ErrorKind::io, io_->path(file) + " of " + std::to_string(file_bytes_) + " bytes holds " +
                                   std::to_string(file_bytes_ / element_bytes) + " elements, not " +
                                   std::to_string(count) + ": the file is truncated");
  const uint64_t pages = pages_of(element_bytes, count), table = table_bytes(element_bytes, count);
  if (pages > INT32_MAX)
    throw Error(ErrorKind::argument,
                io_->path(file) + " is too large to be read by pages: 8 TiB is the limit");
  table_bytes_ = budget.reserve("topology-cache", table);
  frame_of_.assign(pages, -1);
  const uint64_t left = cache_bytes > table ? cache_bytes - table : 0;
  const uint64_t frames = std::min(left / (kPageBytes + sizeof(Frame)), pages);
  if (frames) cache_ = Buffer(budget, "topology-cache", frames * kPageBytes);
  frames_.resize(frames);
}

void PagedArray::add_pieces(std::vector<Piece>& pieces, uint64_t position, uint64_t n, uint32_t out) const {
  while (n) {
    const uint64_t take = std::min(n, per_page_ - position % per_page_);
    pieces.push_back({position, static_cast<uint32_t>(take), out});
    position += take, n -= take, out += static_cast<uint32_t>(take);
  }
}

void PagedArray::gather(PageScratch& scratch, std::span<const Piece> pieces, std::byte* out) {
  for (size_t begin = 0; begin < pieces.size(); begin += scratch.pieces())
    gather_group(scratch, pieces.subspan(begin, std::min(scratch.pieces(), pieces.size() - begin)), out);
}

void PagedArray::serve(const std::byte* page, const Piece& piece, std::byte* out) const {
  const std::byte* from = page + piece.position % per_page_ * element_bytes_;
  std::byte* to = out + piece.out * element_bytes_;
  if (piece.count > 1)
    std::memcpy(to, from, piece.count * element_bytes_);
  else if (element_bytes_ == 4)
    std::memcpy(to, from, 4);
  else
    std::memcpy(to, from, 8);
}

void PagedArray::serve_held(const Piece& piece, std::byte* out) {
  const uint64_t from = piece.position - count_;
  if (from + piece.count > held_count_)
    throw Error(ErrorKind::argument, "element " + std::to_string(piece.position) + " of " + io_->path(file_) +
                                         " was wanted, " + std::to_string(count_) + " are there and " +
                                         std::to_string(held_count_) + " cached");
  ++stats_.held;
  std::memcpy(out + piece.out * element_bytes_, held_ + from * element_bytes_, piece.count * element_bytes_);
}

// One window after the other, each read while the one before it is served. Hits are served while a window is
// filled, before anything is evicted for it or for the one before.
void PagedArray::gather_group(PageScratch& scratch, std::span<const Piece> pieces, std::byte* out) {
  std::vector<uint64_t>& keys = scratch.keys_;
  keys.clear();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].position < count_)
      keys.push_back(pieces[i].position / per_page_ << kIndexBits | i);
    else
      serve_held(pieces[i], out);
  }
  const auto page_bits = static_cast<unsigned>(std::bit_width(frame_of_.size()));
  radix_sort(keys, scratch.keys_scratch_, kIndexBits, kIndexBits + page_bits);
  const auto page_at = [&](size_t k) { return static_cast<uint32_t>(keys[k] >> kIndexBits); };
  const auto piece_at = [&](size_t k) -> const Piece& { return pieces[static_cast<uint32_t>(keys[k])]; };

  struct Window {  // keys [begin, end)
    std::byte* pages;
    size_t begin = 0, end = 0;
    std::vector<uint32_t> missing;
    std::shared_ptr<IoJob> job;
  };
  const size_t most = scratch.pages() / 2;
  const auto fill = [&](Window& w, size_t begin) {
    w.begin = w.end = begin;
    w.missing.clear();
    while (w.end < keys.size()) {
      const uint32_t page = page_at(w.end);
      const int32_t frame = frame_of_[page];
      if (frame < 0 && w.missing.size() == most) break;
      ++stats_.wanted;
      if (frame >= 0) {
        ++stats_.hits;
        auto& counter = frames_[static_cast<size_t>(frame)].counter;
        counter = std::min<uint8_t>(kMaxCounter, counter + 1);
        const std::byte* data = cache_.data() + static_cast<size_t>(frame) * kPageBytes;
        for (; w.end < keys.size() && page_at(w.end) == page; ++w.end) serve(data, piece_at(w.end), out);
      } else {
        w.missing.push_back(page);
        while (w.end < keys.size() && page_at(w.end) == page) ++w.end;
      }
    }
    if (!w.missing.empty()) w.job = read_pages(w.missing, w.pages);
  };
  const auto take = [&](Window& w) {
    if (w.missing.empty()) return;
    w.job->wait();
    check(w.missing, w.pages);
    size_t m = 0;
    for (size_t k = w.begin; k < w.end && m < w.missing.size(); ++k) {
      while (m < w.missing.size() && w.missing[m] < page_at(k)) ++m;
      if (m < w.missing.size() && w.missing[m] == page_at(k))
        serve(w.pages + m * kPageBytes, piece_at(k), out);
    }
    for (size_t i = 0; i < w.missing.size(); ++i) admit(w.missing[i], w.pages + i * kPageBytes);
  };
  Window now{scratch.pages_.data(), 0, 0, {}, nullptr};
  Window next{scratch.pages_.data() + most * kPageBytes, 0, 0, {}, nullptr};
  for (fill(now, 0); now.begin < now.end; std::swap(now, next)) {
    fill(next, now.end);
    take(now);
  }
}

std::shared_ptr<IoJob> PagedArray::read_pages(std::span<const uint32_t> pages, std::byte* to) {
  stats_.read += pages.size();
  std::vector<IoRequest> requests;
  for (size_t i = 0; i < pages.size();) {
    size_t run = 1;
    while (i + run < pages.size() && run < kMaxReadPages && pages[i + run] == pages[i] + run) ++run;
    const uint64_t offset = uint64_t{pages[i]} * kPageBytes;
    // A file that was not padded to whole pages ends within its last one.
    requests.push_back(
        {file_, offset, std::min<uint64_t>(run * kPageBytes, file_bytes_ - offset), to + i * kPageBytes});
    i += run;
  }
  return io_->submit(IoOp::read, std::move(requests));
}

void PagedArray::check_pages(const uint32_t* crcs, size_t n, std::string remedy) {
  const uint64_t pages = pages_of(element_bytes_, count_);
  if (n < pages || file_bytes_ < pages * kPageBytes)
    throw Error(ErrorKind::format, io_->path(file_) + " has " + std::to_string(n) + " checksums for " +
                                       std::to_string(pages) + " pages; " + remedy);
  sums_ = PageSums({crcs, n}, std::move(remedy));
}

void PagedArray::check(std::span<const uint32_t> pages, const std::byte* data) {
  if (sums_.empty()) return;
  numbers_.assign(pages.begin(), pages.end());
  sums_.check(io_->path(file_), numbers_, data);
}

void PagedArray::admit(uint32_t page, const std::byte* data) {
  if (frames_.empty()) return;
  size_t frame = used_;
  if (used_ < frames_.size()) {
    ++used_;
  } else {
    while (frames_[hand_].counter) {
      --frames_[hand_].counter;
      hand_ = (hand_ + 1) % frames_.size();
    }
    frame = hand_;
    hand_ = (hand_ + 1) % frames_.size();
    frame_of_[frames_[frame].page] = -1;
  }
  frames_[frame] = {page, 0};
  frame_of_[page] = static_cast<int32_t>(frame);
  std::memcpy(cache_.data() + frame * kPageBytes, data, kPageBytes);
}

}  // namespace outcrop
