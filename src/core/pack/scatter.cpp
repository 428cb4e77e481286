#include "pack/scatter.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"

namespace outcrop {
namespace {

constexpr size_t kDirectBytes = 64 << 10;  // pieces from here on go past the page cache

}  // namespace

void Scatter::Output::wait() {
  for (auto* one : {&job, &pages_job}) {
    if (*one) (*one)->wait();
    one->reset();
  }
}

Scatter::Scatter(std::shared_ptr<BlockIo> io, Budget& budget, size_t row_bytes, size_t stride,
                 unsigned id_bytes, size_t ids_buffer_bytes, size_t out_buffer_bytes)
    : io_(std::move(io)), row_bytes_(row_bytes), stride_(stride), id_bytes_(id_bytes) {
  if (out_buffer_bytes < row_bytes)
    throw Error(ErrorKind::argument, "the output buffer is smaller than a row");
  for (auto& b : ids_) b = Buffer(budget, "pack-ids", ids_buffer_bytes);
  for (auto& o : out_) o.buffer = Buffer(budget, "pack-output", out_buffer_bytes);
}

// Streams [begin, end) whose ids fit in one ids buffer. At least one: the caller makes the buffer large
// enough for the longest stream of a chunk, which is never longer than the chunk has rows.
size_t Scatter::group_end(const PackStreams& streams, size_t begin) const {
  size_t bytes = 0, end = begin;
  while (end < streams.count) {
    bytes += static_cast<size_t>(streams.ids_count[end]) * id_bytes_;
    if (bytes > ids_[0].size()) break;
    ++end;
  }
  if (end == begin && begin < streams.count)
    throw Error(ErrorKind::budget, "packing needs " + least_bytes(bytes) +
                                       " for the node ids of one chunk, " + exact_bytes(ids_[0].size()) +
                                       " are set aside");
  return end;
}

void Scatter::read_ids(FileId file, const PackStreams& streams, size_t begin, size_t end, unsigned which) {
  std::vector<IoRequest> requests;
  std::byte* at = ids_[which].data();
  for (size_t s = begin; s < end; ++s) {
    const uint64_t bytes = static_cast<uint64_t>(streams.ids_count[s]) * id_bytes_;
    if (bytes) requests.push_back({file, static_cast<uint64_t>(streams.ids_offset[s]), bytes, at});
    at += bytes;
  }
  ids_job_[which] = io_->submit(IoOp::read, std::move(requests));
}

void Scatter::run(const FeatureChunk& chunk, FileId ids_file, FileId out_file, FileId out_pages,
                  const PackStreams& streams) {
  const bool past_cache = out_pages != out_file && out_[0].buffer.size() >= 2 * kDirectBytes + row_bytes_;
  unsigned which = 0;
  size_t begin = 0, end = group_end(streams, 0);
  read_ids(ids_file, streams, begin, end, which);
  while (begin < streams.count) {
    const size_t next_end = group_end(streams, end);
    if (end < streams.count) read_ids(ids_file, streams, end, next_end, which ^ 1);
    ids_job_[which]->wait();
    const std::byte* ids = ids_[which].data();
    for (size_t s = begin; s < end; ++s) {
      const int64_t count = streams.ids_count[s];
      const bool direct = past_cache && static_cast<size_t>(count) * row_bytes_ >= kDirectBytes;
      const Place place{out_file, out_pages, streams.out_offset[s], streams.crc[s], direct};
      if (id_bytes_ == 4)
        append(chunk, reinterpret_cast<const int32_t*>(ids), count, place);
      else
        append(chunk, reinterpret_cast<const int64_t*>(ids), count, place);
      ids += static_cast<size_t>(count) * id_bytes_;
    }
    begin = end;
    end = next_end;
    which ^= 1;
  }
  flush();
  for (auto& o : out_) o.wait();
}

template <class Id>
void Scatter::append(const FeatureChunk& chunk, const Id* ids, int64_t count, Place place) {
  size_t segment = begin_segment(place);
  int64_t last = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = static_cast<int64_t>(ids[i]) - chunk.first_row;
    if (row <= last || row >= chunk.rows)
      throw Error(ErrorKind::format, "the node ids of a mini-batch do not rise within a hop (node " +
                                         std::to_string(ids[i]) +
                                         "): the samples are damaged; prepare the run again");
    last = row;
    if (out_[current_].used + row_bytes_ > out_[current_].buffer.size()) {
      close_segment(segment, place);
      flush();
      segment = begin_segment(place);
    }
    Output& out = out_[current_];
    std::memcpy(out.buffer.data() + out.used, chunk.data + static_cast<size_t>(row) * stride_, row_bytes_);
    out.used += row_bytes_;
  }
  close_segment(segment, place);
}

// Pages of the buffer must be pages of the file where they go past the page cache.
size_t Scatter::begin_segment(const Place& place) {
  Output& out = out_[current_];
  if (place.direct) {
    const size_t in_page = static_cast<size_t>(place.offset) % kPageBytes;
    out.used += (in_page + kPageBytes - out.used % kPageBytes) % kPageBytes;
  }
  return out.used;
}

void Scatter::close_segment(size_t segment_begin, Place& place) {
  Output& out = out_[current_];
  if (out.used <= segment_begin) return;
  const size_t bytes = out.used - segment_begin;
  std::byte* data = out.buffer.data() + segment_begin;
  place.crc = crc32c(data, bytes, place.crc);
  const auto begin = static_cast<uint64_t>(place.offset), end = begin + bytes;
  const uint64_t first = place.direct ? align_up(begin, kPageBytes) : end;
  const uint64_t stop = std::max(first, align_down(end, kPageBytes));
  if (first >= end || stop == first) {
    out.requests.push_back({place.file, begin, bytes, data});
  } else {
    if (first > begin) out.requests.push_back({place.file, begin, first - begin, data});
    out.pages.push_back({place.pages, first, stop - first, data + (first - begin)});
    if (end > stop) out.requests.push_back({place.file, stop, end - stop, data + (stop - begin)});
  }
  place.offset += static_cast<int64_t>(bytes);
}

// Starts writing the current buffer and goes on with the other one.
void Scatter::flush() {
  Output& full = out_[current_];
  if (!full.requests.empty()) full.job = io_->submit(IoOp::write, std::move(full.requests));
  if (!full.pages.empty()) full.pages_job = io_->submit(IoOp::write, std::move(full.pages));
  full.requests.clear();
  full.pages.clear();
  current_ ^= 1;
  Output& next = out_[current_];
  next.wait();
  next.used = 0;
}

}  // namespace outcrop
