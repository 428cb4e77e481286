// Numbers as messages write them.
#pragma once
#include <cstdint>
#include <string>

namespace outcrop {

// "1.5 MiB", as outcrop.config.format_bytes.
std::string format_bytes(uint64_t count);

// "1572864 bytes (1.5 MiB)", below 10000 "512 bytes", as outcrop.config.exact_bytes: the size is rounded down, so that
// it is no more than what there is.
std::string exact_bytes(uint64_t count);

// The same for bytes that are the least that works: the size is rounded up, so that it works, too, where it
// is given as an option. As outcrop.config.least_bytes.
std::string least_bytes(uint64_t count);

}  // namespace outcrop
