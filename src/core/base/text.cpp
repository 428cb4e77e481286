#include "base/text.h"

#include <cstdio>

namespace outcrop {

std::string format_bytes(uint64_t count) {
  if (count < 1024) return std::to_string(count) + " B";
  auto size = static_cast<double>(count);
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (size /= 1024; size >= 1024 && unit < 3; ++unit) size /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", size, units[unit]);
  return text;
}

namespace {

// count bytes, and from 10000 on the tenths of a unit in them: those that are full, or as many as hold them all.
std::string with_units(uint64_t count, bool round_up) {
  if (count < 10'000) return std::to_string(count) + " bytes";
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  unsigned shift = 10;
  const auto tenths = [&] {
    const uint64_t whole = uint64_t{1} << shift, rest = count & (whole - 1);
    return (count >> shift) * 10 + ((rest * 10 + (round_up ? whole - 1 : 0)) >> shift);
  };
  for (; tenths() >= 10'240 && unit < 3; ++unit) shift += 10;
  return std::to_string(count) + " bytes (" + std::to_string(tenths() / 10) + "." +
         std::to_string(tenths() % 10) + " " + units[unit] + ")";
}

}  // namespace

std::string exact_bytes(uint64_t count) { return with_units(count, false); }

std::string least_bytes(uint64_t count) { return with_units(count, true); }

}  // namespace outcrop
