// A PCI function handed to this process by Linux's VFIO: its registers mapped, its DMA fenced by the IOMMU
// (Documentation/driver-api/vfio.rst). The function must have been bound to vfio-pci by the administrator:
// nothing here binds or unbinds, and one that a kernel driver has (whose disk may be mounted) is refused
// before anything is opened. Without an IOMMU (also VFIO's no-IOMMU mode) it is refused, too: a wrong address
// would be anybody's memory.
#pragma once
#include <memory>
#include <string>

#include "nvme/dma.h"
#include "nvme/registers.h"

namespace outcrop::nvme {

struct SystemPaths {  // replaced by tests
  std::string sys = "/sys", dev = "/dev", mounts = "/proc/self/mounts";
};

// The IOMMU group of an NVMe controller that is bound to vfio-pci. Throws Error(argument) for an address that
// is none, Error(io) that says what to do for one that is not there, not an NVMe controller, bound to another
// driver (with the file systems that are mounted from it), or without IOMMU.
std::string usable_group(const std::string& address, const SystemPaths& paths = {});

class VfioDevice {
 public:
  // address: "0000:3b:00.0". Throws Error(argument), Error(io).
  explicit VfioDevice(const std::string& address, const SystemPaths& paths = {});
  ~VfioDevice();
  VfioDevice(const VfioDevice&) = delete;
  VfioDevice& operator=(const VfioDevice&) = delete;

  Registers registers() const { return registers_; }
  // Lives on as long as mappings do.
  std::shared_ptr<DmaSpace> space() const { return space_; }

 private:
  void open_group(const std::string& address, const SystemPaths& paths);
  void map_registers();
  void let_it_reach_memory();

  struct Fd {
    int fd = -1;
    ~Fd();
  };
  Fd group_;
  std::shared_ptr<DmaSpace> space_;
  Fd device_;
  std::string address_;
  Registers registers_{nullptr, 0};
};

}  // namespace outcrop::nvme
