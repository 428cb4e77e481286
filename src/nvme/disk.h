// A disk of Outcrop's behind queue pairs that the disk itself serves: the same rings that core/rings's
// controller thread serves from a file. Read only: see controller.h. docs/nvme.md is about setting it up.
//
//   Disk disk("0000:3b:00.0", budget, {});
//   DmaMapping staging(disk.space(), buffer, bytes);          // addresses that commands name: staging.bus()
//   kernels::QueuePair pair = disk.create_queue(1024);        // for a GPU, kernels on the CPU, or ReadQueue
//
// Refused with Error(io) or Error(format): a device that is not bound to vfio-pci, and a disk with anything
// on it that is not Outcrop's (content.h). The disk outlives its mappings' use and its queues.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "nvme/content.h"
#include "nvme/controller.h"
#include "nvme/vfio.h"

namespace outcrop::nvme {

struct DiskOptions {
  ControllerOptions controller;
  bool blank_too = false;  // also one that is all zero where it is looked at: to measure a new disk
  SystemPaths paths;
};

// Reads [offset, offset + bytes) of the disk behind `queue` through `staging`, in whole pages of it, many in
// flight. offset and bytes: multiples of a block. Throws Error(io) that names a page that cannot be read.
std::vector<std::byte> read_range(ReadQueue& queue, const DmaMemory& staging, uint64_t offset, uint64_t bytes,
                                  const std::string& name);

class Disk {
 public:
  Disk(const std::string& address, std::shared_ptr<Budget> budget, const DiskOptions& options);

  const ControllerInfo& info() const { return controller_.info(); }
  const NamespaceInfo& geometry() const { return controller_.disk(); }
  const Header& header() const { return finding_.header; }
  std::shared_ptr<DmaSpace> space() const { return device_.space(); }
  // All doorbells, for cuMemHostRegister with IOMEMORY.
  Registers registers() const { return device_.registers(); }
  kernels::QueuePair create_queue(uint32_t depth) { return controller_.create_queue(depth); }
  void shutdown() { controller_.shutdown(); }

 private:
  VfioDevice device_;
  Controller controller_;
  Finding finding_;
};

// Throws Error(format) unless the disk may be used. Needs a free queue pair of the controller.
Finding check_content(Controller& controller, std::shared_ptr<DmaSpace> space, Budget& budget,
                      const DiskOptions& options, const std::string& name);

}  // namespace outcrop::nvme
