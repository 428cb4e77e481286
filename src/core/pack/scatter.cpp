#include "pack/scatter.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"

namespace outcrop {

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

void Scatter::run(const FeatureChunk& chunk, FileId ids_file, FileId out_file, const PackStreams& streams) {
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
      int64_t at = streams.out_offset[s];
      if (id_bytes_ == 4)
        append(chunk, out_file, reinterpret_cast<const int32_t*>(ids), count, at, streams.crc[s]);
      else
        append(chunk, out_file, reinterpret_cast<const int64_t*>(ids), count, at, streams.crc[s]);
      ids += static_cast<size_t>(count) * id_bytes_;
    }
    begin = end;
    end = next_end;
    which ^= 1;
  }
  flush();
  for (auto& o : out_)
    if (o.job) o.job->wait();
}

template <class Id>
void Scatter::append(const FeatureChunk& chunk, FileId out_file, const Id* ids, int64_t count,
                     int64_t& out_offset, uint32_t& crc) {
  size_t segment = out_[current_].used;
  int64_t last = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = static_cast<int64_t>(ids[i]) - chunk.first_row;
    if (row <= last || row >= chunk.rows)
      throw Error(ErrorKind::format, "the node ids of a mini-batch do not rise within a hop (node " +
                                         std::to_string(ids[i]) +
                                         "): the samples are damaged; prepare the run again");
    last = row;
    if (out_[current_].used + row_bytes_ > out_[current_].buffer.size()) {
      close_segment(out_file, segment, out_offset, crc);
      flush();
      segment = 0;
    }
    Output& out = out_[current_];
    std::memcpy(out.buffer.data() + out.used, chunk.data + static_cast<size_t>(row) * stride_, row_bytes_);
    out.used += row_bytes_;
  }
  close_segment(out_file, segment, out_offset, crc);
}

void Scatter::close_segment(FileId out_file, size_t segment_begin, int64_t& out_offset, uint32_t& crc) {
  Output& out = out_[current_];
  const size_t bytes = out.used - segment_begin;
  if (bytes == 0) return;
  std::byte* data = out.buffer.data() + segment_begin;
  crc = crc32c(data, bytes, crc);
  out.requests.push_back({out_file, static_cast<uint64_t>(out_offset), bytes, data});
  out_offset += static_cast<int64_t>(bytes);
}

// Starts writing the current buffer and goes on with the other one.
void Scatter::flush() {
  Output& full = out_[current_];
  if (!full.requests.empty()) full.job = io_->submit(IoOp::write, std::move(full.requests));
  full.requests.clear();
  current_ ^= 1;
  Output& next = out_[current_];
  if (next.job) next.job->wait();
  next.job.reset();
  next.used = 0;
}

}  // namespace outcrop
