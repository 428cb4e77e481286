// Open files and the table that names them by small ids.
//
// A File closes its descriptor when the last holder lets go: jobs hold the files they use, so close() during
// I/O is safe. Invariant: a slot (FileId) is given to another file only after the File that had it is gone,
// so an id inside a running job can never mean two files. `serial` tells apart the files that had one slot in
// turn.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "io/block_io.h"

namespace outcrop {

class File {
 public:
  // direct: use O_DIRECT where mode is read or pages and the file system has it. Throws Error(io) naming the
  // path.
  File(std::string path, OpenMode mode, bool direct);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  bool writable() const { return mode_ != OpenMode::read; }
  bool whole_pages() const { return mode_ == OpenMode::pages; }
  bool direct() const { return direct_.load(std::memory_order_relaxed); }
  // Gives up O_DIRECT (some file systems accept it at open and refuse it at the first read).
  void use_buffered();
  uint64_t size_bytes() const;
  void sync() const;        // fdatasync
  void drop_cache() const;  // fsync, then asks the kernel to forget the pages
  void resize(uint64_t bytes) const;
  // `bytes` more are being written, through the page cache. Each time that `window` of them have come
  // together, waits until those of the window before are on the disk and sends these there.
  void write_back(uint64_t bytes, uint64_t window);

  FileId slot = 0;
  uint64_t serial = 0;
  std::atomic<bool> closed{false};  // by its user; jobs may still hold it

 private:
  const std::string path_;
  const OpenMode mode_;
  std::atomic<bool> direct_{false};
  std::atomic<uint64_t> unwritten_{0};
  int fd_ = -1;
};

class FileTable {
 public:
  std::shared_ptr<File> open(const std::string& path, OpenMode mode, bool direct);
  std::shared_ptr<File> close(FileId id);  // the file, still open while the result lives
  // Throws Error(argument) if `id` is not open.
  std::shared_ptr<File> get(FileId id) const;

 private:
  struct Slots {  // shared with the deleters of files that outlive the table
    std::mutex mutex;
    std::set<FileId> free;
    FileId next = 0;
  };
  std::shared_ptr<Slots> slots_ = std::make_shared<Slots>();
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<File>> files_;
  uint64_t serial_ = 0;
};

}  // namespace outcrop
