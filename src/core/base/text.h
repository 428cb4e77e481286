// Numbers as messages write them.
#pragma once
#include <cstdint>
#include <string>

namespace outcrop {

// "1.5 MiB", as outcrop.config.format_bytes.
std::string format_bytes(uint64_t count);

// "1572864 bytes (1.5 MiB)", below 10000 "512 bytes", as outcrop.config.exact_bytes.
std::string exact_bytes(uint64_t count);

}  // namespace outcrop
