#include "nvme/dma.h"

#include <sys/mman.h>

#include "base/error.h"

namespace outcrop::nvme {

DmaMapping::DmaMapping(std::shared_ptr<DmaSpace> space, std::byte* data, size_t bytes)
    : space_(std::move(space)), data_(data), bytes_(bytes) {
  if (bytes == 0 || bytes % kPageBytes != 0 || reinterpret_cast<uintptr_t>(data) % kPageBytes != 0)
    throw Error(ErrorKind::argument, "memory for a device must be whole pages of " +
                                         std::to_string(kPageBytes) + " bytes, not " + std::to_string(bytes) +
                                         " bytes at " + std::to_string(reinterpret_cast<uintptr_t>(data)));
  bus_ = space_->map(data, bytes);
}

DmaMapping& DmaMapping::operator=(DmaMapping&& other) noexcept {
  if (this != &other) {
    this->~DmaMapping();
    space_ = std::move(other.space_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    bus_ = std::exchange(other.bus_, 0);
  }
  return *this;
}

DmaMapping::~DmaMapping() {
  if (space_ && data_) space_->unmap(bus_, bytes_);
  data_ = nullptr;
}

DmaMemory::DmaMemory(std::shared_ptr<DmaSpace> space, Budget& budget, const std::string& tag, size_t bytes)
    : buffer_(budget, tag, align_up(bytes, kPageBytes)) {
  // A child process must not make these pages copies of what the device writes to. A hint; forks without it
  // are harmless as long as the child only calls exec.
  (void)madvise(buffer_.data(), buffer_.size(), MADV_DONTFORK);
  mapping_ = DmaMapping(std::move(space), buffer_.data(), buffer_.size());
}

}  // namespace outcrop::nvme
