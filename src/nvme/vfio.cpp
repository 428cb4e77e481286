#include "nvme/vfio.h"

#include <fcntl.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace outcrop::nvme {
namespace {

[[noreturn]] void fail(const std::string& address, const std::string& what, int error_number = 0) {
  const std::string message = "NVMe " + address + ": " + what;
  if (error_number) throw_io(message, error_number);
  throw Error(ErrorKind::io, message);
}

using Range = std::pair<uint64_t, uint64_t>;  // first and last bus address

// What the IOMMU can translate, without what the platform keeps for itself (interrupt messages).
std::vector<Range> usable_ranges(int container) {
  vfio_iommu_type1_info header{};
  header.argsz = sizeof header;
  std::vector<Range> ranges;
  if (ioctl(container, VFIO_IOMMU_GET_INFO, &header) == 0 && header.flags & VFIO_IOMMU_INFO_CAPS) {
    std::vector<std::byte> bytes(header.argsz);
    std::memcpy(bytes.data(), &header, sizeof header);
    auto* info = reinterpret_cast<vfio_iommu_type1_info*>(bytes.data());
    if (ioctl(container, VFIO_IOMMU_GET_INFO, info) != 0) return {};
    for (uint32_t at = info->cap_offset; at + sizeof(vfio_info_cap_header) <= bytes.size();) {
      const auto* cap = reinterpret_cast<const vfio_info_cap_header*>(bytes.data() + at);
      if (cap->id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
        const auto* list = reinterpret_cast<const vfio_iommu_type1_info_cap_iova_range*>(cap);
        for (uint32_t i = 0; i < list->nr_iovas; ++i)
          ranges.emplace_back(list->iova_ranges[i].start, list->iova_ranges[i].end);
      }
      if (cap->next <= at) break;
      at = cap->next;
    }
  }
  if (ranges.empty()) ranges.emplace_back(uint64_t{1} << 32, (uint64_t{1} << 36) - 1);
  return ranges;
}

// The container: bus addresses are given out upwards and come back when their mapping dies.
class VfioSpace final : public DmaSpace {
 public:
  VfioSpace(int container, std::string address) : container_(container), address_(std::move(address)) {}
  ~VfioSpace() override { close(container_); }
  int container() const { return container_; }

  // Once the container has its IOMMU.
  void find_ranges() {
    for (const auto& [first, last] : usable_ranges(container_)) {
      const uint64_t from = align_up(std::max<uint64_t>(first, kPageBytes), kPageBytes);
      if (last > from) free_.emplace_back(from, last);
    }
  }

  uint64_t map(std::byte* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    auto range = std::find_if(free_.begin(), free_.end(),
                              [&](const Range& r) { return r.second - r.first + 1 >= bytes; });
    if (range == free_.end())
      fail(address_, "the IOMMU has no bus addresses left for " + std::to_string(bytes) + " bytes");
    vfio_iommu_type1_dma_map request{};
    request.argsz = sizeof request;
    request.flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE;
    request.vaddr = reinterpret_cast<uintptr_t>(data);
    request.iova = range->first;
    request.size = bytes;
    if (ioctl(container_, VFIO_IOMMU_MAP_DMA, &request) != 0)
      fail(address_,
           "cannot map " + std::to_string(bytes) + " bytes for the device" +
               (errno == ENOMEM ? " (mapped memory is locked: raise ulimit -l, or map less)" : ""),
           errno);
    range->first += bytes;
    if (range->first > range->second) free_.erase(range);
    return request.iova;
  }

  void unmap(uint64_t bus, size_t bytes) noexcept override {
    std::lock_guard lock(mutex_);
    vfio_iommu_type1_dma_unmap request{};
    request.argsz = sizeof request;
    request.iova = bus;
    request.size = bytes;
    if (ioctl(container_, VFIO_IOMMU_UNMAP_DMA, &request) == 0) give_back({bus, bus + bytes - 1});
  }

 private:
  void give_back(Range freed) {
    auto next = std::lower_bound(free_.begin(), free_.end(), freed);
    if (next != free_.end() && freed.second + 1 == next->first) {
      freed.second = next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->second + 1 == freed.first)
      std::prev(next)->second = freed.second;
    else
      free_.insert(next, freed);
  }

  const int container_;
  const std::string address_;
  std::mutex mutex_;
  std::vector<Range> free_;  // ascending, not touching
};

int open_or_say(const std::string& address, const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) return fd;
  const int error_number = errno;
  std::string remedy;
  if (error_number == ENOENT) remedy = " (load the module: modprobe vfio-pci)";
  if (error_number == EACCES || error_number == EPERM)
    remedy = " (give this user the file: chown $USER " + path + ", or run as root)";
  if (error_number == EBUSY) remedy = " (another process has the device)";
  fail(address, "cannot open " + path + remedy, error_number);
}

}  // namespace

VfioDevice::Fd::~Fd() {
  if (fd >= 0) close(fd);
}

VfioDevice::VfioDevice(const std::string& address, const SystemPaths& paths) : address_(address) {
  open_group(address, paths);
  map_registers();
  let_it_reach_memory();
}

VfioDevice::~VfioDevice() {
  if (registers_.window()) munmap(registers_.window(), registers_.bytes());
}

void VfioDevice::open_group(const std::string& address, const SystemPaths& paths) {
  const std::string group = usable_group(address, paths);
  auto space = std::make_shared<VfioSpace>(open_or_say(address, paths.dev + "/vfio/vfio"), address);
  const int container = space->container();
  if (ioctl(container, VFIO_GET_API_VERSION) != VFIO_API_VERSION ||
      ioctl(container, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1)
    fail(address, "this kernel's VFIO has no type 1 IOMMU (load the module: modprobe vfio_iommu_type1)");
  group_.fd = open_or_say(address, paths.dev + "/vfio/" + group);
  vfio_group_status status{};
  status.argsz = sizeof status;
  if (ioctl(group_.fd, VFIO_GROUP_GET_STATUS, &status) != 0) fail(address, "cannot ask for its group", errno);
  if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
    fail(address, "IOMMU group " + group +
                      " is not viable: other devices of it have kernel drivers; bind all of " + paths.sys +
                      "/kernel/iommu_groups/" + group + "/devices to vfio-pci, or use another slot");
  if (ioctl(group_.fd, VFIO_GROUP_SET_CONTAINER, &container) != 0)
    fail(address, "cannot take IOMMU group " + group + " (does another process have it?)", errno);
  if (ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0)
    fail(address,
         "the IOMMU refuses (without interrupt remapping the administrator has to allow it: "
         "vfio_iommu_type1.allow_unsafe_interrupts=1; dmesg says why)",
         errno);
  space->find_ranges();
  space_ = std::move(space);
  device_.fd = ioctl(group_.fd, VFIO_GROUP_GET_DEVICE_FD, address.c_str());
  if (device_.fd < 0) fail(address, "cannot open it in IOMMU group " + group, errno);
}

void VfioDevice::map_registers() {
  vfio_region_info region{};
  region.argsz = sizeof region;
  region.index = VFIO_PCI_BAR0_REGION_INDEX;
  if (ioctl(device_.fd, VFIO_DEVICE_GET_REGION_INFO, &region) != 0)
    fail(address_, "cannot ask for its registers", errno);
  if (!(region.flags & VFIO_REGION_INFO_FLAG_MMAP) || region.size < 2 * kPageBytes)
    fail(address_, "its registers (" + std::to_string(region.size) + " bytes) cannot be mapped");
  void* p = mmap(nullptr, region.size, PROT_READ | PROT_WRITE, MAP_SHARED, device_.fd,
                 static_cast<off_t>(region.offset));
  if (p == MAP_FAILED) fail(address_, "cannot map its registers", errno);
  registers_ = Registers(static_cast<std::byte*>(p), region.size);
}

// Memory access and bus mastering, bits of the command register in its configuration space; VFIO takes them
// back when the device is closed.
void VfioDevice::let_it_reach_memory() {
  vfio_region_info region{};
  region.argsz = sizeof region;
  region.index = VFIO_PCI_CONFIG_REGION_INDEX;
  uint16_t command = 0;
  if (ioctl(device_.fd, VFIO_DEVICE_GET_REGION_INFO, &region) != 0)
    fail(address_, "cannot ask for its configuration", errno);
  const auto where = static_cast<off_t>(region.offset + PCI_COMMAND);
  bool good = pread(device_.fd, &command, sizeof command, where) == sizeof command;
  command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER;
  good = good && pwrite(device_.fd, &command, sizeof command, where) == sizeof command;
  if (!good) fail(address_, "cannot turn on its access to memory", errno);
}

}  // namespace outcrop::nvme
