// Writes one array file front to back: bounded double buffer, CRC-32C on the way, zero padding to whole
// pages. The result matches the conventions of outcrop/store/arrays.py, so an ArraySpec can be made from it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "base/buffer.h"
#include "io/block_io.h"

namespace outcrop {

struct ArrayFile {
  uint64_t data_bytes = 0;
  uint64_t file_bytes = 0;  // data_bytes rounded up to whole pages
  uint32_t crc32c = 0;      // of the data, without the padding
  uint32_t page_crc = 0;    // of the file of page checksums, where one is written
};

class ArrayFileWriter {
 public:
  // buffer_bytes: at least two pages; half is filled while the other half is written.
  // sums: beside `path` the CRC-32C of each of its pages is written (page_sums_path); takes two pages of the
  // buffer, which has four at least.
  ArrayFileWriter(std::shared_ptr<BlockIo> io, Budget& budget, const std::string& path, size_t buffer_bytes,
                  bool sums = false);
  ~ArrayFileWriter();
  ArrayFileWriter(const ArrayFileWriter&) = delete;
  ArrayFileWriter& operator=(const ArrayFileWriter&) = delete;

  // sizeof(T) divides the page size.
  template <class T>
  void push(T value) {
    if (filled_ + sizeof(T) > half_) flush();
    std::memcpy(active_ + filled_, &value, sizeof(T));
    filled_ += sizeof(T);
  }
  void append(const std::byte* data, size_t bytes);
  // Pads, waits, pushes the file to the device and closes it.
  ArrayFile finish();

 private:
  void flush();

  std::shared_ptr<BlockIo> io_;
  Buffer buffer_;
  size_t half_;
  std::byte* active_;
  size_t filled_ = 0;
  uint64_t written_ = 0;
  uint32_t crc_ = 0;
  FileId file_ = 0;
  bool open_ = false;
  std::shared_ptr<IoJob> job_;
  std::unique_ptr<ArrayFileWriter> sums_;
};

// "folder/name.bin" -> "folder/name_page_crc.bin", as outcrop/store/arrays.py names it.
std::string page_sums_path(const std::string& path);

}  // namespace outcrop
