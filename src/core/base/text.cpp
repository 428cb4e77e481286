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

std::string exact_bytes(uint64_t count) {
  return std::to_string(count) + " bytes" + (count < 10'000 ? "" : " (" + format_bytes(count) + ")");
}

}  // namespace outcrop
