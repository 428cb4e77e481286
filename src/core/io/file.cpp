#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"

namespace outcrop {
namespace {

const char* purpose(OpenMode mode) {
  switch (mode) {
    case OpenMode::read:
      return " for reading";
    case OpenMode::create:
      return " for writing anew";
    case OpenMode::update:
    case OpenMode::pages:
      return " for update";
  }
  return "";
}

int open_retrying(const std::string& path, int flags) {
  int fd;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

File::File(std::string path, OpenMode mode, bool direct) : path_(std::move(path)), mode_(mode) {
  int flags = writable() ? O_RDWR | O_CREAT : O_RDONLY;
  if (mode == OpenMode::create) flags |= O_TRUNC;
  if (direct && (mode == OpenMode::read || mode == OpenMode::pages)) {
    fd_ = open_retrying(path_, flags | O_DIRECT);
    direct_ = fd_ >= 0;
    if (fd_ < 0 && errno != EINVAL) throw_io("cannot open " + path_ + purpose(mode), errno);
  }
  if (fd_ < 0) fd_ = open_retrying(path_, flags);
  if (fd_ < 0) throw_io("cannot open " + path_ + purpose(mode), errno);
  struct stat s;
  if (fstat(fd_, &s) != 0 || !(S_ISREG(s.st_mode) || S_ISBLK(s.st_mode))) {
    ::close(fd_);
    throw Error(ErrorKind::io, "cannot open " + path_ + purpose(mode) + ": it is not a regular file", EINVAL);
  }
}

File::~File() { ::close(fd_); }

void File::use_buffered() {
  const int flags = fcntl(fd_, F_GETFL);
  if (flags < 0 || fcntl(fd_, F_SETFL, flags & ~O_DIRECT) != 0)
    throw_io("cannot turn off O_DIRECT of " + path_, errno);
  direct_ = false;
}

uint64_t File::size_bytes() const {
  struct stat s;
  if (fstat(fd_, &s) != 0) throw_io("cannot tell the size of " + path_, errno);
  if (!S_ISBLK(s.st_mode)) return static_cast<uint64_t>(s.st_size);
  const off_t end = lseek(fd_, 0, SEEK_END);  // nobody here uses the file position
  if (end < 0) throw_io("cannot tell the size of " + path_, errno);
  return static_cast<uint64_t>(end);
}

void File::sync() const {
  if (fdatasync(fd_) != 0) throw_io("cannot write " + path_ + " out to its disk", errno);
}

void File::drop_cache() const {
  if (writable() && fsync(fd_) != 0) throw_io("cannot write " + path_ + " out to its disk", errno);
  (void)posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);  // a hint
}

void File::resize(uint64_t bytes) const {
  const std::string what = "cannot resize " + path_ + " to " + std::to_string(bytes) + " bytes";
  if (bytes > size_bytes()) {
    // Takes the space now, so that a full disk shows here and not in the middle of the writes.
    if (fallocate(fd_, 0, 0, static_cast<off_t>(bytes)) == 0) return;
    if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) throw_io(what, errno);
  }
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) throw_io(what, errno);
}

void File::write_back(uint64_t bytes, uint64_t window) {
  if (unwritten_.fetch_add(bytes, std::memory_order_relaxed) + bytes < window) return;
  unwritten_ = 0;
  constexpr unsigned kOldThenNew = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE;
  if (sync_file_range(fd_, 0, 0, kOldThenNew) != 0 && (errno == EIO || errno == ENOSPC))
    throw_io("cannot write " + path_ + " out to its disk", errno);
}

std::shared_ptr<File> FileTable::open(const std::string& path, OpenMode mode, bool direct) {
  auto opened = std::make_unique<File>(path, mode, direct);
  {
    std::lock_guard lock(slots_->mutex);
    if (slots_->free.empty()) {
      opened->slot = slots_->next++;
    } else {
      opened->slot = *slots_->free.begin();
      slots_->free.erase(slots_->free.begin());
    }
  }
  std::shared_ptr<File> file(opened.release(), [slots = slots_](File* f) {
    const FileId slot = f->slot;
    delete f;
    std::lock_guard lock(slots->mutex);
    slots->free.insert(slot);
  });
  std::lock_guard lock(mutex_);
  file->serial = ++serial_;
  if (files_.size() <= file->slot) files_.resize(file->slot + 1);
  files_[file->slot] = file;
  return file;
}

std::shared_ptr<File> FileTable::close(FileId id) {
  auto file = get(id);
  file->closed = true;
  std::lock_guard lock(mutex_);
  files_[id].reset();
  return file;
}

std::shared_ptr<File> FileTable::get(FileId id) const {
  std::lock_guard lock(mutex_);
  if (id >= files_.size() || !files_[id])
    throw Error(ErrorKind::argument, "file " + std::to_string(id) + " is not open");
  return files_[id];
}

}  // namespace outcrop
