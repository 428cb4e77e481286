// CRC-32C (Castagnoli), as in iSCSI and Snappy: hardware instruction where there is one, table otherwise.
#pragma once
#include <cstddef>
#include <cstdint>

namespace outcrop {

// Continues `crc` (0 to start) over size bytes.
uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0);
// out[i] = CRC-32C of page i of 4096 bytes. Three pages at a time: the instruction takes three cycles and one
// can begin in each.
void crc32c_pages(const void* data, size_t pages, uint32_t* out);
// out[i] = CRC-32C of the row_bytes bytes from data + i * stride on; three rows at a time, as pages.
void crc32c_rows(const void* data, size_t rows, size_t row_bytes, size_t stride, uint32_t* out);
// crc of A followed by B from crc(A), crc(B) and the length of B in bytes.
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);
// The portable version, for tests.
uint32_t crc32c_table(const void* data, size_t size, uint32_t crc = 0);

}  // namespace outcrop
