#include "base/buffer.h"

#include <sys/mman.h>

#include <cerrno>

#include "base/error.h"

namespace outcrop {
namespace {
constexpr size_t kHugePageBytes = size_t{2} << 20;
}

Buffer::Buffer(Budget& budget, const std::string& tag, size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  mapped_ = align_up(bytes, kPageBytes);
  reservation_ = budget.reserve(tag, mapped_);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (budget.rehearsal() ? MAP_NORESERVE : 0);
  void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (p == MAP_FAILED) throw_io("cannot map " + std::to_string(mapped_) + " bytes for '" + tag + "'", errno);
  // Fewer TLB misses for big gathers; a hint, so the result does not matter.
  if (mapped_ >= 2 * kHugePageBytes) (void)madvise(p, mapped_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(p);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    this->~Buffer();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapped_ = std::exchange(other.mapped_, 0);
    reservation_ = std::move(other.reservation_);
  }
  return *this;
}

Buffer::~Buffer() {
  if (data_) munmap(data_, mapped_);
  data_ = nullptr;
  reservation_.release();
}

}  // namespace outcrop
