// Interim backend: synchronous pread/pwrite, buffered. Replaced by the real backends.
#include "io/block_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>

#include "base/error.h"

namespace outcrop {
bool FaultPlan::any() const { return false; }
namespace {
struct DoneJob : IoJob {
  void wait() override {}
  bool done() const override { return true; }
};
class SyncIo final : public BlockIo {
 public:
  FileId open(const std::string& path, OpenMode mode) override {
    int fd = ::open(path.c_str(), mode == OpenMode::read ? O_RDONLY | O_CLOEXEC : O_RDWR | O_CREAT | O_CLOEXEC | (mode == OpenMode::create ? O_TRUNC : 0), 0644);
    if (fd < 0) throw_io("cannot open " + path, errno);
    std::lock_guard l(m_);
    files_[fd] = path;
    return fd;
  }
  void close(FileId f) override { std::lock_guard l(m_); files_.erase(f); ::close(f); }
  uint64_t size_bytes(FileId f) const override { struct stat s; fstat(f, &s); return s.st_size; }
  const std::string& path(FileId f) const override { std::lock_guard l(m_); return files_.at(f); }
  std::shared_ptr<IoJob> submit(IoOp op, std::vector<IoRequest> rs) override {
    for (auto& r : rs) {
      uint64_t done = 0;
      while (done < r.length) {
        ssize_t n = op == IoOp::read ? pread(r.file, r.data + done, r.length - done, r.offset + done)
                                     : pwrite(r.file, r.data + done, r.length - done, r.offset + done);
        if (n < 0) throw_io("I/O on " + path(r.file), errno);
        if (n == 0) throw Error(ErrorKind::io, path(r.file) + " ends early");
        done += n;
      }
      std::lock_guard l(m_);
      if (op == IoOp::read) { c_.read_bytes += r.length; c_.read_ops++; } else { c_.write_bytes += r.length; c_.write_ops++; }
    }
    return std::make_shared<DoneJob>();
  }
  void sync(FileId f) override { fdatasync(f); }
  void drop_cache(FileId f) override { fsync(f); posix_fadvise(f, 0, 0, POSIX_FADV_DONTNEED); }
  void resize(FileId f, uint64_t b) override { if (ftruncate(f, b)) throw_io("resize " + path(f), errno); }
  IoCounters counters() const override { std::lock_guard l(m_); return c_; }
  std::string backend_name() const override { return "sync"; }
 private:
  mutable std::mutex m_;
  std::map<FileId, std::string> files_;
  IoCounters c_;
};
}  // namespace
std::shared_ptr<BlockIo> BlockIo::create(const IoOptions&, std::shared_ptr<Budget>) { return std::make_shared<SyncIo>(); }
void BlockIo::read(FileId f, uint64_t o, void* d, uint64_t n) { submit(IoOp::read, {{f, o, n, static_cast<std::byte*>(d)}})->wait(); }
void BlockIo::write(FileId f, uint64_t o, const void* d, uint64_t n) {
  submit(IoOp::write, {{f, o, n, static_cast<std::byte*>(const_cast<void*>(d))}})->wait();
}
}  // namespace outcrop
