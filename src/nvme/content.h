// Whose disk this is, from bytes read off it: a pure function. A disk is used only if it carries Outcrop's
// header and, in what is looked at (the first and the last MiB), whatever is neither header nor data is zero.
// So a partition table, a file system, a volume manager's or RAID's label, or anything unknown, is refused;
// where it is one of the known kinds, by its name.
//
// Header, the first page of the disk (little-endian): 0 "OUTCROPD", 8 uint32 version 1, 12 uint32 CRC-32C of
// the page with this word zero, 16 uint64 where the data begins (a multiple of 4096, at least 1 MiB), 24
// uint64 its bytes, 32 64 characters that say what it is, padded with zeros; zeros. Nothing here writes it:
// docs/nvme.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace outcrop::nvme {

constexpr uint64_t kExaminedBytes = uint64_t{1} << 20;  // at either end
constexpr size_t kHeaderBytes = 4096;

struct Header {
  uint64_t data_offset = 0, data_bytes = 0;
  std::string label;
};

enum class Content { outcrop, blank, foreign };

struct Finding {
  Content content;
  std::string what;  // of a foreign one, for people: "GPT partition table at byte 512"
  Header header;     // of Outcrop's
};

// head and tail: the first and last min(kExaminedBytes, disk_bytes) bytes of the disk. blank: all zero.
Finding examine(std::span<const std::byte> head, std::span<const std::byte> tail, uint64_t disk_bytes);

// The page to put at the beginning of a disk by ordinary means. Throws Error(argument).
std::string make_header(const Header& header);

}  // namespace outcrop::nvme
