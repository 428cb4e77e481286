#include "pack/scatter.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"

namespace outcrop {
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
  if (streams.tail_bytes && (streams.tail_bytes < kPageBytes ||
                             out_[0].buffer.size() < streams.tail_bytes + kPageBytes + row_bytes_))
    throw Error(ErrorKind::argument, "tails of streams have a page at least, and fit the output buffer");
  unsigned which = 0;
  size_t begin = 0, end = group_end(streams, 0), p = 0;
  int64_t appended = 0;  // to place p, by an earlier group
  read_ids(ids_file, streams, begin, end, which);
  while (begin < streams.count) {
    const size_t next_end = group_end(streams, end);
    if (end < streams.count) read_ids(ids_file, streams, end, next_end, which ^ 1);
    ids_job_[which]->wait();
    const std::byte* ids = ids_[which].data();
    for (size_t s = begin; s < end;) {
      const auto place_end = [&] {
        return streams.shared ? static_cast<size_t>(streams.shared[p + 1]) : p + 1;
      };
      for (; place_end() <= s; ++p) appended = 0;
      const size_t stop = std::min(end, place_end());
      const int64_t rows = std::accumulate(streams.ids_count + s, streams.ids_count + stop, int64_t{0});
      const bool tailed = streams.tail_bytes > 0;
      const Place place{out_file,
                        out_pages,
                        streams.out_offset[p] + appended,
                        tailed ? streams.tails + p * streams.tail_bytes : nullptr,
                        streams.tail_bytes,
                        tailed ? streams.written + p : nullptr};
      const auto add = [&]<class Id>(const Id* first) {
        const Wanted<Id> wanted{chunk, first, streams.ids_count + s, streams.crc + s, rows};
        tailed ? append_to_tail(wanted, place) : append(wanted, place);
      };
      if (id_bytes_ == 4)
        add(reinterpret_cast<const int32_t*>(ids));
      else
        add(reinterpret_cast<const int64_t*>(ids));
      ids += static_cast<size_t>(rows) * id_bytes_;
      appended += rows * static_cast<int64_t>(row_bytes_);
      s = stop;
    }
    begin = end;
    end = next_end;
    which ^= 1;
  }
  flush();
  for (auto& o : out_) o.wait();
}

template <class Id>
void Scatter::take(Wanted<Id>& wanted, int64_t rows, std::byte* out) const {
  const FeatureChunk& chunk = wanted.chunk;
  wanted.left -= rows;
  while (rows > 0) {
    const int64_t here = std::min(rows, *wanted.counts - wanted.taken);
    const std::byte* const first = out;
    for (int64_t i = 0; i < here; ++i, out += row_bytes_) {
      const int64_t row = static_cast<int64_t>(wanted.ids[i]) - chunk.first_row;
      if (row <= wanted.last || row >= chunk.rows)
        throw Error(ErrorKind::format, "the node ids of a mini-batch do not rise within a hop (node " +
                                           std::to_string(wanted.ids[i]) +
                                           "): the samples are damaged; prepare the run again");
      wanted.last = row;
      std::memcpy(out, chunk.data + static_cast<size_t>(row) * stride_, row_bytes_);
    }
    *wanted.crcs = crc32c(first, static_cast<size_t>(out - first), *wanted.crcs);
    wanted.ids += here;
    wanted.taken += here;
    rows -= here;
    if (wanted.taken == *wanted.counts) {
      ++wanted.counts;
      ++wanted.crcs;
      wanted.taken = 0;
      wanted.last = -1;
    }
  }
}

template <class Id>
void Scatter::append(Wanted<Id> wanted, Place place) {
  while (wanted.left > 0) {
    if (room(out_[current_].used) == 0) flush();
    Output& out = out_[current_];
    const int64_t rows = std::min(wanted.left, room(out.used));
    std::byte* data = out.buffer.data() + out.used;
    const size_t bytes = static_cast<size_t>(rows) * row_bytes_;
    take(wanted, rows, data);
    out.requests.push_back({place.file, static_cast<uint64_t>(place.offset), bytes, data});
    out.used += bytes;
    place.offset += static_cast<int64_t>(bytes);
  }
}

template <class Id>
void Scatter::append_to_tail(Wanted<Id> wanted, Place place) {
  int64_t& written = *place.written;
  auto held = static_cast<size_t>(place.offset - written);
  while (wanted.left > 0) {
    if (held + static_cast<size_t>(wanted.left) * row_bytes_ <= place.tail_bytes) {
      take(wanted, wanted.left, place.tail + held);
      return;
    }
    // Pages of the buffer are pages of the file.
    const size_t in_page = static_cast<size_t>(written) % kPageBytes;
    size_t begin = align_up(out_[current_].used, kPageBytes) + in_page;
    if (begin + place.tail_bytes + row_bytes_ > out_[current_].buffer.size()) {
      flush();
      begin = in_page;
    }
    Output& out = out_[current_];
    std::byte* data = out.buffer.data() + begin;
    std::memcpy(data, place.tail, held);
    const int64_t rows = std::min(wanted.left, room(begin + held));
    const size_t bytes = static_cast<size_t>(rows) * row_bytes_;
    take(wanted, rows, data + held);
    out.used = begin + held + bytes;

    const auto first = static_cast<uint64_t>(written), end = first + held + bytes;
    const uint64_t pages = align_up(first, kPageBytes), stop = align_down(end, kPageBytes);
    if (pages > first) out.requests.push_back({place.file, first, pages - first, data});
    if (stop > pages) out.pages.push_back({place.pages, pages, stop - pages, data + (pages - first)});
    held = end - stop;
    std::memcpy(place.tail, data + (stop - first), held);
    written = static_cast<int64_t>(stop);
  }
}

void Scatter::move_tails(IoOp op, FileId out_file, const PackStreams& streams) {
  std::vector<IoRequest> requests;
  for (size_t p = 0; p < streams.places; ++p) {
    const int64_t held = streams.out_offset[p] - streams.written[p];
    if (held < 0 || static_cast<size_t>(held) > streams.tail_bytes)
      throw Error(ErrorKind::argument, "a stream has more to write than its tail holds");
    if (held)
      requests.push_back({out_file, static_cast<uint64_t>(streams.written[p]), static_cast<uint64_t>(held),
                          streams.tails + p * streams.tail_bytes});
  }
  if (!requests.empty()) io_->submit(op, std::move(requests))->wait();
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
