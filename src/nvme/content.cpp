#include "nvme/content.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/checksum.h"
#include "base/error.h"

namespace outcrop::nvme {
namespace {

using namespace std::string_view_literals;
using Bytes = std::span<const std::byte>;

constexpr auto kMagic = "OUTCROPD"sv;
constexpr uint32_t kVersion = 1;
constexpr size_t kLabelBytes = 64;

// What the formats' own documents say is where. The more telling come first: a file system's name before the
// boot signature that it shares with partition tables.
struct Signature {
  const char* name;
  uint64_t offset;  // from the beginning
  std::string_view magic;
};
constexpr Signature kAtBeginning[] = {
    {"GPT partition table", 512, "EFI PART"sv},
    {"GPT partition table", 4096, "EFI PART"sv},
    {"LUKS volume", 0, "LUKS\xba\xbe"sv},
    {"LUKS volume (second header)", 0x4000, "SKUL\xba\xbe"sv},
    {"BitLocker volume", 3, "-FVE-FS-"sv},
    {"NTFS file system", 3, "NTFS    "sv},
    {"exFAT file system", 3, "EXFAT   "sv},
    {"FAT file system", 82, "FAT32   "sv},
    {"FAT file system", 54, "FAT16   "sv},
    {"FAT file system", 54, "FAT12   "sv},
    {"FAT file system", 54, "FAT     "sv},
    {"xfs file system", 0, "XFSB"sv},
    {"btrfs file system", 0x10040, "_BHRfS_M"sv},
    {"bcachefs or bcache", 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"sv},
    {"f2fs file system", 1024, "\x10\x20\xf5\xf2"sv},
    {"erofs file system", 1024, "\xe2\xe1\xf5\xe0"sv},
    {"ReiserFS file system", 0x10034, "ReIsEr"sv},
    {"JFS file system", 0x8000, "JFS1"sv},
    {"gfs2 file system", 0x10000, "\x01\x16\x19\x70"sv},
    {"ocfs2 file system", 0x2000, "OCFSV2"sv},
    {"nilfs2 file system", 1030, "\x34\x34"sv},
    {"HFS+ file system", 1024, "H+\x00\x04"sv},
    {"HFSX file system", 1024, "HX\x00\x05"sv},
    {"APFS container", 32, "NXSB"sv},
    {"squashfs file system", 0, "hsqs"sv},
    {"ISO 9660 file system", 0x8001, "CD001"sv},
    {"Ceph BlueStore", 0, "bluestore block device"sv},
    {"Linux RAID member", 0, "\xfc\x4e\x2b\xa9"sv},
    {"Linux RAID member", 4096, "\xfc\x4e\x2b\xa9"sv},
    {"ext2, ext3 or ext4 file system", 1080, "\x53\xef"sv},
};
constexpr std::string_view kSwapMagics[] = {"SWAPSPACE2"sv,  "SWAP-SPACE"sv,  "S1SUSPEND\0"sv,
                                            "S2SUSPEND\0"sv, "ULSUSPEND\0"sv, "LINHIB0001"sv};
constexpr uint64_t kZfsLabel = 256 << 10, kZfsUberblocks = 128 << 10;

bool has(Bytes bytes, uint64_t offset, std::string_view magic) {
  return offset + magic.size() <= bytes.size() &&
         std::memcmp(bytes.data() + offset, magic.data(), magic.size()) == 0;
}

std::string at(const char* name, uint64_t offset) {
  return std::string(name) + " at byte " + std::to_string(offset);
}

// A vdev label's second half is a ring of uberblocks, each at a multiple of 1 KiB (or of the disk's sector).
bool zfs_label(Bytes bytes, uint64_t label) {
  for (uint64_t o = label + kZfsUberblocks; o + 1024 <= std::min<uint64_t>(label + kZfsLabel, bytes.size());
       o += 1024)
    if (has(bytes, o, "\x0c\xb1\xba\x00\x00\x00\x00\x00"sv) ||
        has(bytes, o, "\x00\x00\x00\x00\x00\xba\xb1\x0c"sv))
      return true;
  return false;
}

std::optional<std::string> known_at_beginning(Bytes head) {
  for (const auto& s : kAtBeginning)
    if (has(head, s.offset, s.magic)) return at(s.name, s.offset);
  for (uint64_t page : {4096, 8192, 16384, 65536})
    for (const auto magic : kSwapMagics)
      if (has(head, page - 10, magic)) return at("Linux swap", page - 10);
  for (uint64_t o = 0; o < 2048; o += 512)
    if (has(head, o, "LABELONE"sv)) return at("LVM physical volume", o);
  for (uint64_t label : {uint64_t{0}, kZfsLabel})
    if (zfs_label(head, label)) return at("ZFS member", label);
  if (has(head, 510, "\x55\xaa"sv)) return at("MBR partition table or boot sector", 510);
  return std::nullopt;
}

// Offsets are of the disk; tail is its end.
std::optional<std::string> known_at_end(Bytes tail, uint64_t disk_bytes) {
  const uint64_t base = disk_bytes - tail.size();
  const auto there = [&](uint64_t offset, std::string_view magic) {
    return offset >= base && has(tail, offset - base, magic);
  };
  const auto before_end = [&](uint64_t n) { return disk_bytes >= n ? disk_bytes - n : 0; };
  for (uint64_t block : {512, 4096})
    if (there(before_end(block), "EFI PART"sv)) return at("GPT partition table (backup)", before_end(block));
  const uint64_t old_raid = disk_bytes / 65536 * 65536 - std::min<uint64_t>(disk_bytes, 65536);
  for (uint64_t o : {before_end(8192) / 4096 * 4096, old_raid})
    if (there(o, "\xfc\x4e\x2b\xa9"sv)) return at("Linux RAID member", o);
  for (uint64_t o : {before_end(1024), before_end(512)}) {
    if (there(o, "Intel Raid ISM Cfg"sv)) return at("Intel RAID member", o);
    if (there(o, "\xde\x11\xde\x11"sv)) return at("DDF RAID member", o);
  }
  const uint64_t whole = disk_bytes / kZfsLabel * kZfsLabel;
  for (uint64_t labels : {1, 2})
    if (whole >= labels * kZfsLabel && whole - labels * kZfsLabel >= base &&
        zfs_label(tail, whole - labels * kZfsLabel - base))
      return at("ZFS member", whole - labels * kZfsLabel);
  return std::nullopt;
}

template <class T>
T field(Bytes bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

uint32_t header_crc(Bytes page) {
  const std::byte none[4]{};
  uint32_t crc = crc32c(page.data(), 12);
  crc = crc32c(none, sizeof none, crc);
  return crc32c(page.data() + 16, kHeaderBytes - 16, crc);
}

// Empty: good.
std::string header_fault(Bytes head, const Header& header, uint64_t disk_bytes) {
  if (head.size() < kHeaderBytes) return "an Outcrop header that is cut off";
  if (field<uint32_t>(head, 8) != kVersion)
    return "an Outcrop header of version " + std::to_string(field<uint32_t>(head, 8)) +
           ", this is for version 1";
  if (field<uint32_t>(head, 12) != header_crc(head)) return "an Outcrop header with a wrong checksum";
  if (header.data_offset < kExaminedBytes || header.data_offset % 4096 != 0 ||
      header.data_offset > disk_bytes || header.data_bytes > disk_bytes - header.data_offset)
    return "an Outcrop header with " + std::to_string(header.data_bytes) + " bytes of data from byte " +
           std::to_string(header.data_offset) + " of a disk of " + std::to_string(disk_bytes);
  return {};
}

// First byte that is not zero and not of [skip, skip_end), as an offset of the disk, whose bytes from `from`
// on these are.
std::optional<uint64_t> stray_byte(Bytes bytes, uint64_t from, uint64_t skip, uint64_t skip_end) {
  static constexpr std::byte kZeros[4096]{};
  for (size_t page = 0; page < bytes.size(); page += sizeof kZeros) {
    const size_t end = std::min(page + sizeof kZeros, bytes.size());
    if (std::memcmp(bytes.data() + page, kZeros, end - page) == 0) continue;
    for (size_t i = page; i < end; ++i)
      if (bytes[i] != std::byte{0} && (from + i < skip || from + i >= skip_end)) return from + i;
  }
  return std::nullopt;
}

}  // namespace

Finding examine(Bytes head, Bytes tail, uint64_t disk_bytes) {
  const bool ours = has(head, 0, kMagic);
  Header header;
  if (ours && head.size() >= kHeaderBytes) {
    header = {field<uint64_t>(head, 16), field<uint64_t>(head, 24),
              std::string(reinterpret_cast<const char*>(head.data()) + 32, kLabelBytes)};
    header.label.resize(std::strlen(header.label.c_str()));
  }
  if (ours)
    if (auto fault = header_fault(head, header, disk_bytes); !fault.empty())
      return {Content::foreign, fault, {}};
  const uint64_t base = disk_bytes - tail.size();
  const uint64_t overlap = head.size() > base ? head.size() - base : 0;  // of a small disk
  auto stray = stray_byte(head, 0, 0, ours ? kHeaderBytes : 0);
  const bool in_head = stray.has_value();
  if (!stray)
    stray = stray_byte(tail.subspan(overlap), base + overlap, header.data_offset,
                       header.data_offset + header.data_bytes);
  if (!stray) return {ours ? Content::outcrop : Content::blank, {}, header};
  // Data may look like anything, so names are asked only of where something is that should not be.
  auto known = in_head ? known_at_beginning(head) : std::nullopt;
  if (!known && !(ours && in_head)) known = known_at_end(tail, disk_bytes);
  if (!known) known = at("unknown content", *stray);
  return {Content::foreign, *known, {}};
}

std::string make_header(const Header& header) {
  if (header.label.size() > kLabelBytes || header.data_offset < kExaminedBytes ||
      header.data_offset % 4096 != 0)
    throw Error(ErrorKind::argument,
                "a header has at most 64 characters of label and its data at a multiple of 4096 "
                "bytes from 1 MiB on, not " +
                    std::to_string(header.data_offset));
  std::string page(kHeaderBytes, '\0');
  const auto put = [&](size_t offset, const void* from, size_t n) {
    std::memcpy(page.data() + offset, from, n);
  };
  put(0, kMagic.data(), kMagic.size());
  put(8, &kVersion, 4);
  put(16, &header.data_offset, 8);
  put(24, &header.data_bytes, 8);
  put(32, header.label.data(), header.label.size());
  const uint32_t crc = header_crc(std::as_bytes(std::span(page)));
  put(12, &crc, 4);
  return page;
}

}  // namespace outcrop::nvme
