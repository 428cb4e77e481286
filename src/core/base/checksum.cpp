#include "base/checksum.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace outcrop {
namespace {

constexpr size_t kPage = 4096;
constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected

constexpr auto kTable = [] {
  std::array<uint32_t, 256> t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = c & 1 ? c >> 1 ^ kPolynomial : c >> 1;
    t[i] = c;
  }
  return t;
}();

// a * b modulo the polynomial, in the reflected representation (bit 31 is x^0).
uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
    if (a & bit) product ^= b;
    b = b & 1 ? b >> 1 ^ kPolynomial : b >> 1;
  }
  return product;
}

// x^(8 * bytes) modulo the polynomial.
uint32_t shift_operator(uint64_t bytes) {
  uint32_t result = 1u << 31, power = 1u << 23;  // x^0, x^8
  for (; bytes; bytes >>= 1) {
    if (bytes & 1) result = multiply(result, power);
    power = multiply(power, power);
  }
  return result;
}

#if defined(__x86_64__)
// Three independent lanes hide the three-cycle latency of the instruction.
constexpr size_t kLaneBytes = 2048;

__attribute__((target("sse4.2,crc32"))) uint32_t crc32c_hardware(const void* data, size_t size,
                                                                 uint32_t crc) {
  static const uint32_t shift1 = shift_operator(kLaneBytes), shift2 = shift_operator(2 * kLaneBytes);
  auto load = [](const unsigned char* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
  };
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t c = ~crc;
  while (size >= 3 * kLaneBytes) {
    uint64_t c1 = 0, c2 = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      c = _mm_crc32_u64(c, load(p + i));
      c1 = _mm_crc32_u64(c1, load(p + kLaneBytes + i));
      c2 = _mm_crc32_u64(c2, load(p + 2 * kLaneBytes + i));
    }
    c = multiply(static_cast<uint32_t>(c), shift2) ^ multiply(static_cast<uint32_t>(c1), shift1) ^
        static_cast<uint32_t>(c2);
    p += 3 * kLaneBytes;
    size -= 3 * kLaneBytes;
  }
  for (; size >= 8; p += 8, size -= 8) c = _mm_crc32_u64(c, load(p));
  for (; size; ++p, --size) c = _mm_crc32_u8(static_cast<uint32_t>(c), *p);
  return ~static_cast<uint32_t>(c);
}

__attribute__((target("sse4.2,crc32"))) void crc32c_three(const unsigned char* p, size_t bytes, size_t stride,
                                                          uint32_t* out) {
  uint64_t a = 0xFFFFFFFFu, b = a, c = a;
  const auto load = [](const unsigned char* at) {
    uint64_t v;
    std::memcpy(&v, at, 8);
    return v;
  };
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    a = _mm_crc32_u64(a, load(p + i));
    b = _mm_crc32_u64(b, load(p + stride + i));
    c = _mm_crc32_u64(c, load(p + 2 * stride + i));
  }
  for (; i < bytes; ++i) {
    a = _mm_crc32_u8(static_cast<uint32_t>(a), p[i]);
    b = _mm_crc32_u8(static_cast<uint32_t>(b), p[stride + i]);
    c = _mm_crc32_u8(static_cast<uint32_t>(c), p[2 * stride + i]);
  }
  out[0] = ~static_cast<uint32_t>(a), out[1] = ~static_cast<uint32_t>(b), out[2] = ~static_cast<uint32_t>(c);
}
#endif

}  // namespace

uint32_t crc32c_table(const void* data, size_t size, uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  while (size--) crc = crc >> 8 ^ kTable[(crc ^ *p++) & 0xff];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t size, uint32_t crc) {
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  if (hardware) return crc32c_hardware(data, size, crc);
#endif
  return crc32c_table(data, size, crc);
}

void crc32c_rows(const void* data, size_t rows, size_t row_bytes, size_t stride, uint32_t* out) {
  const auto* p = static_cast<const unsigned char*>(data);
  size_t i = 0;
#if defined(__x86_64__)
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  for (; hardware && i + 3 <= rows; i += 3) crc32c_three(p + i * stride, row_bytes, stride, out + i);
#endif
  for (; i < rows; ++i) out[i] = crc32c(p + i * stride, row_bytes);
}

void crc32c_pages(const void* data, size_t pages, uint32_t* out) {
  crc32c_rows(data, pages, kPage, kPage, out);
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b) {
  return multiply(crc_a, shift_operator(bytes_b)) ^ crc_b;
}

}  // namespace outcrop
