#include "graph/array_file.h"

#include <algorithm>
#include <string_view>

#include "base/checksum.h"

namespace outcrop {

ArrayFileWriter::ArrayFileWriter(std::shared_ptr<BlockIo> io, Budget& budget, const std::string& path,
                                 size_t buffer_bytes, bool sums)
    : io_(std::move(io)),
      buffer_(budget, "write-buffer",
              align_up(std::max<size_t>(buffer_bytes, sums ? 4 * kPageBytes : 1), 2 * kPageBytes) -
                  (sums ? 2 * kPageBytes : 0)),
      half_(buffer_.size() / 2),
      active_(buffer_.data()),
      file_(io_->open(path, OpenMode::create)),
      open_(true) {
  if (sums) sums_ = std::make_unique<ArrayFileWriter>(io_, budget, page_sums_path(path), 2 * kPageBytes);
}

ArrayFileWriter::~ArrayFileWriter() {
  job_.reset();  // waits: the job refers to buffer_
  if (open_) io_->close(file_);
}

void ArrayFileWriter::append(const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    if (filled_ == half_) flush();
    const size_t n = std::min(bytes, half_ - filled_);
    std::memcpy(active_ + filled_, data, n);
    filled_ += n, data += n, bytes -= n;
  }
}

void ArrayFileWriter::flush() {
  if (filled_ == 0) return;
  crc_ = crc32c(active_, filled_, crc_);
  if (sums_) {
    std::memset(active_ + filled_, 0, align_up(filled_, kPageBytes) - filled_);
    for (size_t at = 0; at < filled_; at += kPageBytes) sums_->push(crc32c(active_ + at, kPageBytes));
  }
  if (job_) job_->wait();
  job_ = io_->submit(IoOp::write, {{file_, written_, filled_, active_}});
  written_ += filled_;
  filled_ = 0;
  active_ = active_ == buffer_.data() ? buffer_.data() + half_ : buffer_.data();
}

ArrayFile ArrayFileWriter::finish() {
  flush();
  if (job_) job_->wait();
  job_.reset();
  const uint64_t file_bytes = align_up(written_, kPageBytes);
  if (const size_t padding = file_bytes - written_) {
    std::memset(active_, 0, padding);
    io_->write(file_, written_, active_, padding);
  }
  io_->drop_cache(file_);
  io_->close(file_);
  open_ = false;
  return {written_, file_bytes, crc_, sums_ ? sums_->finish().crc32c : 0};
}

std::string page_sums_path(const std::string& path) {
  constexpr std::string_view kEnd = ".bin";
  const bool named = path.ends_with(kEnd);
  return path.substr(0, path.size() - (named ? kEnd.size() : 0)) + "_page_crc.bin";
}

}  // namespace outcrop
