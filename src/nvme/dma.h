// Memory that a device may reach. What is not mapped here the IOMMU keeps from it. A mapping has a bus
// address, which is what commands name; it need not be the virtual one (an IOMMU's addresses have fewer
// bits).
//
// Commands that name a mapping have completed before it dies, or the queue has failed: what such a device
// still writes is turned away by the IOMMU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/buffer.h"

namespace outcrop::nvme {

class DmaSpace {
 public:
  virtual ~DmaSpace() = default;
  // Whole pages. Returns the bus address of the first byte. Throws Error(io).
  virtual uint64_t map(std::byte* data, size_t bytes) = 0;
  virtual void unmap(uint64_t bus, size_t bytes) noexcept = 0;
};

// Memory of others (staging buffers that CUDA pinned, say) as the device sees it.
class DmaMapping {
 public:
  DmaMapping() = default;
  DmaMapping(std::shared_ptr<DmaSpace> space, std::byte* data, size_t bytes);
  DmaMapping(DmaMapping&& other) noexcept { *this = std::move(other); }
  DmaMapping& operator=(DmaMapping&& other) noexcept;
  ~DmaMapping();
  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  uint64_t bus() const { return bus_; }

 private:
  std::shared_ptr<DmaSpace> space_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t bus_ = 0;
};

// Zeroed pages out of a budget, mapped.
class DmaMemory {
 public:
  DmaMemory() = default;
  DmaMemory(std::shared_ptr<DmaSpace> space, Budget& budget, const std::string& tag, size_t bytes);
  std::byte* data() const { return mapping_.data(); }
  size_t size() const { return mapping_.size(); }
  uint64_t bus() const { return mapping_.bus(); }
  template <class T>
  T* as(size_t offset = 0) const {
    return reinterpret_cast<T*>(data() + offset);
  }

 private:
  Buffer buffer_;
  DmaMapping mapping_;  // dies first
};

}  // namespace outcrop::nvme
