// Which disks are refused, from images that the formats' own tools made (where they are installed) and from
// the magic numbers that their documents give; and which devices, from a made-up /sys.
#include <fstream>
#include <functional>

#include "io_test_util.h"
#include "nvme/content.h"
#include "nvme/vfio.h"

namespace outcrop::testing {
namespace {

using namespace nvme;
namespace fs = std::filesystem;

constexpr uint64_t kMiB = 1 << 20, kDisk = 5 * kMiB;

Finding examine_file(const std::string& path) {
  const uint64_t size = fs::file_size(path), n = std::min(size, kExaminedBytes);
  BytesVector head(n), tail(n);
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(n));
  in.seekg(static_cast<std::streamoff>(size - n));
  in.read(reinterpret_cast<char*>(tail.data()), static_cast<std::streamsize>(n));
  return examine(head, tail, size);
}

// A disk of kDisk bytes of which only the ends exist.
struct Ends {
  BytesVector head = BytesVector(kMiB), tail = BytesVector(kMiB);
  uint64_t bytes = kDisk;
  void put(uint64_t at, const std::string& what) {
    for (size_t i = 0; i < what.size(); ++i) {
      if (at + i < kMiB) head[at + i] = static_cast<std::byte>(what[i]);
      if (at + i >= bytes - kMiB) tail[at + i - (bytes - kMiB)] = static_cast<std::byte>(what[i]);
    }
  }
  Finding examined() const { return examine(head, tail, bytes); }
};

bool installed(const std::string& tool) {
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"})
    if (fs::exists(folder + tool)) return true;
  return false;
}

TEST(NvmeContent, WhatToolsMakeIsRefusedByName) {
  struct Case {
    const char *tool, *name, *arguments;
    uint64_t mib = 8;
  };
  const Case cases[] = {
      {"mkfs.ext4", "ext2, ext3 or ext4", "mkfs.ext4 -q -F $F"},
      {"mkswap", "Linux swap", "mkswap $F"},
      {"sfdisk", "GPT partition table at byte 512",
       "echo 'label: gpt' | sfdisk --no-reread --no-tell-kernel $F"},
      {"mkfs.vfat", "FAT file system", "mkfs.vfat $F"},
      {"mkfs.vfat", "FAT file system", "mkfs.vfat -F 32 $F", 64},
      {"mkfs.xfs", "xfs file system", "mkfs.xfs -q -f $F", 320},
      {"mkfs.btrfs", "btrfs file system", "mkfs.btrfs -q -f $F", 128},
      {"mkntfs", "NTFS file system", "mkntfs -q -F -Q $F"},
      {"cryptsetup", "LUKS volume",
       "cryptsetup -q luksFormat --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 $F $P", 32},
  };
  const TempFolder folder;
  std::ofstream(folder.file("password")) << "secret12";
  int made = 0;
  for (const Case& c : cases) {
    if (!installed(c.tool)) continue;
    const std::string file = folder.file("image"), log = folder.file("log");
    std::ofstream(file).flush();
    fs::resize_file(file, c.mib << 20);
    ASSERT_EQ(examine_file(file).content, Content::blank);
    const std::string command = "export PATH=$PATH:/usr/sbin:/sbin F=" + file +
                                " P=" + folder.file("password") + "; " + c.arguments + " >" + log + " 2>&1";
    ASSERT_EQ(std::system(command.c_str()), 0) << c.arguments << ": " << std::ifstream(log).rdbuf();
    const Finding finding = examine_file(file);
    EXPECT_EQ(finding.content, Content::foreign) << c.arguments;
    EXPECT_EQ(finding.what.rfind(c.name, 0), 0u) << finding.what << " after " << c.arguments;
    fs::remove(file);
    ++made;
  }
  if (made == 0) GTEST_SKIP() << "no tool that makes file systems is installed";
}

// Offsets as documents have them: sectors, blocks, distances from the end.
TEST(NvmeContent, DocumentedMagicNumbersAreRefusedByName) {
  struct Case {
    const char* name;
    uint64_t at;
    std::string magic;
  };
  const std::string raid = "\xfc\x4e\x2b\xa9", uber = std::string("\x0c\xb1\xba\0\0\0\0\0", 8);
  const Case cases[] = {
      {"GPT partition table", 512, "EFI PART"},
      {"GPT partition table", 4096, "EFI PART"},
      {"GPT partition table (backup)", kDisk - 512, "EFI PART"},
      {"GPT partition table (backup)", kDisk - 4096, "EFI PART"},
      {"MBR partition table", 510, "\x55\xaa"},
      {"LVM physical volume", 0, "LABELONE"},
      {"LVM physical volume", 512, "LABELONE"},
      {"LVM physical volume", 3 * 512, "LABELONE"},
      {"Linux RAID member", 0, raid},                  // metadata 1.1
      {"Linux RAID member", 4096, raid},               // 1.2
      {"Linux RAID member", kDisk - 16 * 512, raid},   // 1.0
      {"Linux RAID member", kDisk - 64 * 1024, raid},  // 0.90
      {"LUKS volume", 0, "LUKS\xba\xbe"},
      {"ZFS member", 128 << 10, uber},
      {"ZFS member", (128 << 10) + 5 * 1024, uber},
      {"ZFS member", (256 + 128) << 10, uber},           // L1
      {"ZFS member", kDisk - (512 - 128) * 1024, uber},  // L2
      {"ZFS member", kDisk - (256 - 128) * 1024, uber},  // L3
      {"ZFS member", 128 << 10, std::string("\0\0\0\0\0\xba\xb1\x0c", 8)},
      {"btrfs file system", (64 << 10) + 64, "_BHRfS_M"},
      {"xfs file system", 0, "XFSB"},
      {"ext2, ext3 or ext4", 1024 + 56, "\x53\xef"},
      {"NTFS file system", 3, "NTFS    "},
      {"exFAT file system", 3, "EXFAT   "},
      {"BitLocker volume", 3, "-FVE-FS-"},
      {"FAT file system", 82, "FAT32   "},
      {"FAT file system", 54, "FAT16   "},
      {"f2fs file system", 1024, "\x10\x20\xf5\xf2"},
      {"Linux swap", 4096 - 10, "SWAPSPACE2"},
      {"Linux swap", 65536 - 10, "SWAPSPACE2"},  // pages of 64 KiB
      {"Linux swap", 4096 - 10, std::string("S1SUSPEND\0", 10)},
      {"APFS container", 32, "NXSB"},
      {"ISO 9660 file system", 16 * 2048 + 1, "CD001"},
      {"bcachefs or bcache", 8 * 512 + 24,
       "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
      {"Intel RAID member", kDisk - 1024, "Intel Raid ISM Cfg Sig. "},
      {"DDF RAID member", kDisk - 512, "\xde\x11\xde\x11"},
      {"unknown content at byte 77777", 77777, "x"},
      {"unknown content at byte ", kDisk - 1, "x"},
      {"unknown content at byte ", kDisk - kMiB, "x"},
  };
  for (const Case& c : cases) {
    Ends disk;
    disk.put(c.at, c.magic);
    const Finding finding = disk.examined();
    EXPECT_EQ(finding.content, Content::foreign) << c.name << " at " << c.at;
    EXPECT_EQ(finding.what.rfind(c.name, 0), 0u) << finding.what << ", not " << c.name << " at " << c.at;
  }
}

TEST(NvmeContent, OnlyAGoodHeaderOnAnOtherwiseEmptyDiskIsOurs) {
  const Header header{kMiB, 3 * kMiB, "features of a graph"};
  Ends ours;
  ours.put(0, make_header(header));
  ours.put(kDisk - kMiB - 5, "x");  // the data's last bytes could be anything, also what others' magic is
  EXPECT_EQ(ours.examined().content, Content::outcrop);
  EXPECT_EQ(ours.examined().header.label, header.label);
  EXPECT_EQ(ours.examined().header.data_bytes, header.data_bytes);

  Ends full;
  full.put(0, make_header({kMiB, 4 * kMiB, ""}));
  full.put(kDisk - 512, "EFI PART");
  EXPECT_EQ(full.examined().content, Content::outcrop);  // it is data
  Ends small;
  small.bytes = kMiB + 8192;
  small.put(0, make_header({kMiB, 4096, ""}));
  EXPECT_EQ(small.examined().content, Content::outcrop);
  small.put(kMiB + 4096, "x");
  EXPECT_EQ(small.examined().what, "unknown content at byte " + std::to_string(kMiB + 4096));

  const auto spoilt = [&](const std::function<void(Ends&)>& spoil) {
    Ends disk;
    disk.put(0, make_header(header));
    spoil(disk);
    const Finding finding = disk.examined();
    EXPECT_EQ(finding.content, Content::foreign);
    return finding.what;
  };
  EXPECT_EQ(spoilt([](Ends& d) { d.put(8, "\2"); }), "an Outcrop header of version 2, this is for version 1");
  EXPECT_EQ(spoilt([](Ends& d) { d.put(100, "x"); }), "an Outcrop header with a wrong checksum");
  EXPECT_EQ(spoilt([](Ends& d) { d.put(12, "abcd"); }), "an Outcrop header with a wrong checksum");
  EXPECT_EQ(spoilt([](Ends& d) { d.put(1080, "\x53\xef"); }), "an Outcrop header with a wrong checksum");
  EXPECT_EQ(spoilt([](Ends& d) { d.put(4096, "x"); }), "unknown content at byte 4096");
  EXPECT_EQ(spoilt([](Ends& d) { d.put(65536 + 64, "_BHRfS_M"); }), "btrfs file system at byte 65600");
  EXPECT_EQ(spoilt([](Ends& d) { d.put(kDisk - 512, "EFI PART"); }),
            "GPT partition table (backup) at byte " + std::to_string(kDisk - 512));
  EXPECT_NE(spoilt([](Ends& d) {
              d.put(0, make_header({kMiB, kDisk, ""}));
            }).find("of a disk of 5242880"),
            std::string::npos);
  EXPECT_NE(spoilt([](Ends& d) {
              d.put(0, make_header({UINT64_MAX / 4096 * 4096, 4096, ""}));
            }).find("from byte"),
            std::string::npos);

  EXPECT_THROW(make_header({4096, 1, ""}), Error);
  EXPECT_THROW(make_header({kMiB + 1, 1, ""}), Error);
  EXPECT_THROW(make_header({kMiB, 1, std::string(65, 'x')}), Error);
  EXPECT_EQ(examine(BytesVector(10), BytesVector(10), 10).content, Content::blank);
}

// A /sys with one device.
class NvmeSystem : public ::testing::Test {
 protected:
  NvmeSystem() {
    fs::create_directories(device());
    write(device() / "class", "0x010802\n");
    paths_ = {root() / "sys", root() / "dev", root() / "mounts"};
    write(paths_.mounts,
          "proc /proc proc rw 0 0\n/dev/nvme1n1p2 /home/ann ext4 rw 0 0\n/dev/nvme11n1 /x xfs rw 0 0\n");
    fs::create_directories(root() / "dev/vfio");
  }
  fs::path root() const { return folder_.file("root"); }
  fs::path device() const { return root() / "sys/bus/pci/devices/0000:3b:00.0"; }
  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }
  void driver(const std::string& name) { fs::create_symlink("../../drivers/" + name, device() / "driver"); }
  std::string refusal(const std::string& address = "0000:3b:00.0") {
    try {
      return "accepted in group " + usable_group(address, paths_);
    } catch (const Error& e) {
      return e.what();
    }
  }
  TempFolder folder_;
  SystemPaths paths_;
};

TEST_F(NvmeSystem, ADeviceOfVfioIsAccepted) {
  driver("vfio-pci");
  EXPECT_NE(refusal().find("turn the IOMMU on"), std::string::npos);
  fs::create_symlink("../../../kernel/iommu_groups/17", device() / "iommu_group");
  EXPECT_EQ(refusal(), "accepted in group 17");
  write(root() / "dev/vfio/noiommu-17", "");
  EXPECT_NE(refusal().find("VFIO without an IOMMU"), std::string::npos);
}

TEST_F(NvmeSystem, OthersAreRefusedWithWhatHasThem) {
  EXPECT_NE(refusal().find("no driver has it. Outcrop takes no device"), std::string::npos);
  driver("nvme");
  fs::create_directories(device() / "nvme/nvme1/nvme1n1/nvme1n1p2");
  fs::create_directories(device() / "nvme/nvme1/power");
  EXPECT_NE(
      refusal().find("the driver 'nvme' has it as /dev/nvme1n1, /dev/nvme1n1p2; /dev/nvme1n1p2 is MOUNTED at "
                     "/home/ann. Outcrop takes no device from a driver"),
      std::string::npos)
      << refusal();
  write(device() / "class", "0x020000\n");
  EXPECT_NE(refusal().find("not an NVMe controller (its class is 0x020000"), std::string::npos);
  EXPECT_NE(refusal("0000:3b:00.1").find("no such device"), std::string::npos);
  for (const char* wrong :
       {"3b:00.0", "../../x", "0000:3b:00.9", "", "0000:3B:00.0", "0000:3b/00.0", "000:3b:00.0"})
    EXPECT_NE(refusal(wrong).find("not a PCI address"), std::string::npos) << wrong;
}

}  // namespace
}  // namespace outcrop::testing
