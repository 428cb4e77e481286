// usable_group(): what the system says of a device, before anything is opened.
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include "base/error.h"
#include "nvme/vfio.h"

namespace outcrop::nvme {
namespace {

namespace fs = std::filesystem;
constexpr const char* kNvmeClass = "0x010802";

// domain:bus:device.function, in small hexadecimal digits, as the kernel names them.
bool is_pci_address(const std::string& s) {
  constexpr std::string_view kHex = "0123456789abcdef", kTail = ":xx:xx.x";
  if (s.size() < 4 + kTail.size() || s.size() > 8 + kTail.size()) return false;
  const size_t domain = s.size() - kTail.size();
  for (size_t i = 0; i < s.size(); ++i) {
    const char wanted = i < domain ? 'x' : kTail[i - domain];
    if (wanted == 'x' ? kHex.find(s[i]) == kHex.npos : s[i] != wanted) return false;
  }
  return s.back() < '8';
}

std::string first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string link_name(const fs::path& link) {
  std::error_code none;
  return fs::read_symlink(link, none).filename().string();
}

// Names of the block devices below a controller that a kernel driver has: nvme0n1 and its partitions.
std::set<std::string> block_devices(const fs::path& device) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& controller : fs::directory_iterator(device / "nvme", none))
    for (const auto& disk : fs::directory_iterator(controller.path(), none)) {
      const std::string name = disk.path().filename().string();
      if (!name.starts_with("nvme") || name.find('n', 4) == std::string::npos) continue;
      names.insert(name);
      for (const auto& part : fs::directory_iterator(disk.path(), none))
        if (part.path().filename().string().starts_with(name + "p"))
          names.insert(part.path().filename().string());
    }
  return names;
}

std::string uses(const fs::path& device, const SystemPaths& paths) {
  const auto names = block_devices(device);
  std::string text;
  for (const auto& name : names) text += (text.empty() ? " as " : ", ") + ("/dev/" + name);
  std::ifstream mounts(paths.mounts);
  std::string source, target, rest;
  while (mounts >> source >> target && std::getline(mounts, rest))
    if (source.starts_with("/dev/") && names.contains(source.substr(5)))
      text += "; " + source + " is MOUNTED at " + target;
  return text;
}

}  // namespace

std::string usable_group(const std::string& address, const SystemPaths& paths) {
  const std::string name = "NVMe " + address + ": ";
  if (!is_pci_address(address))
    throw Error(ErrorKind::argument, name + "not a PCI address; they look like 0000:3b:00.0 (lspci -D)");
  const fs::path device = fs::path(paths.sys) / "bus/pci/devices" / address;
  if (!fs::exists(device))
    throw Error(ErrorKind::io, name + "no such device in " + device.parent_path().string());
  if (const auto kind = first_line(device / "class"); kind != kNvmeClass)
    throw Error(ErrorKind::io,
                name + "not an NVMe controller (its class is " + kind + ", theirs " + kNvmeClass + ")");
  const std::string driver = link_name(device / "driver");
  if (driver != "vfio-pci") {
    const std::string has = driver.empty() ? "no driver has it" : "the driver '" + driver + "' has it";
    throw Error(ErrorKind::io,
                name + has + uses(device, paths) +
                    ". Outcrop takes no device from a driver. If nothing on this disk is needed by "
                    "the system, bind it to vfio-pci by hand (docs/nvme.md)");
  }
  const std::string group = link_name(device / "iommu_group");
  if (group.empty())
    throw Error(ErrorKind::io,
                name +
                    "it is in no IOMMU group: turn the IOMMU on (in the firmware, and intel_iommu=on "
                    "on the kernel's command line for Intel)");
  if (fs::path no_iommu = fs::path(paths.dev) / "vfio" / ("noiommu-" + group); fs::exists(no_iommu))
    throw Error(ErrorKind::io, name + no_iommu.string() +
                                   " is VFIO without an IOMMU, where a device may write "
                                   "anywhere: refused. Turn the IOMMU on");
  return group;
}

}  // namespace outcrop::nvme
