#include "base/checksum.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#endif

namespace outcrop {
namespace {

constexpr size_t kPage = 4096, kLine = 64;
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

// x^n modulo the polynomial.
uint32_t power_of_x(uint64_t n) {
  uint32_t result = 1u << 31, power = 1u << 30;  // x^0, x^1
  for (; n; n >>= 1) {
    if (n & 1) result = multiply(result, power);
    power = multiply(power, power);
  }
  return result;
}

#if defined(__x86_64__)
uint64_t load(const unsigned char* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}

// Goes over as many bytes as are three lanes or several times that. Three independent lanes hide the three cycles
// that the instruction takes. What comes of a lane is moved on over those behind it by a product without carries: that
// of two reflected remainders has a factor x too much, and the instruction one of x^32.
template <size_t kLane>
__attribute__((target("sse4.2,crc32,pclmul"))) void three_lanes(const unsigned char*& p, size_t& size,
                                                                uint64_t& c) {
  static const __m128i operators = _mm_set_epi64x(power_of_x(8 * kLane - 33), power_of_x(16 * kLane - 33));
  for (; size >= 3 * kLane; p += 3 * kLane, size -= 3 * kLane) {
    uint64_t c1 = 0, c2 = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      c = _mm_crc32_u64(c, load(p + i));
      c1 = _mm_crc32_u64(c1, load(p + kLane + i));
      c2 = _mm_crc32_u64(c2, load(p + 2 * kLane + i));
    }
    const __m128i first = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(c)), operators, 0x00);
    const __m128i second = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(c1)), operators, 0x10);
    c = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_xor_si128(first, second)))) ^ c2;
  }
}

__attribute__((target("sse4.2,crc32,pclmul"))) uint32_t crc32c_hardware(const void* data, size_t size,
                                                                        uint32_t crc) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t c = ~crc;
  three_lanes<2048>(p, size, c);
  three_lanes<256>(p, size, c);
  three_lanes<64>(p, size, c);
  for (; size >= 8; p += 8, size -= 8) c = _mm_crc32_u64(c, load(p));
  for (; size; ++p, --size) c = _mm_crc32_u8(static_cast<uint32_t>(c), *p);
  return ~static_cast<uint32_t>(c);
}

bool has_hardware() {
  static const bool found = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  return found;
}

__attribute__((target("sse4.2,crc32"))) void crc32c_three(const unsigned char* p, size_t bytes, size_t stride,
                                                          uint32_t* out) {
  uint64_t a = 0xFFFFFFFFu, b = a, c = a;
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    // What comes from a disk is in no cache, and the processor itself fetches nothing beyond a page.
    if (i % kLine == 0)
      for (size_t row = 3; row < 6; ++row) __builtin_prefetch(p + row * stride + i);
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
  if (has_hardware()) return crc32c_hardware(data, size, crc);
#endif
  return crc32c_table(data, size, crc);
}

void crc32c_rows(const void* data, size_t rows, size_t row_bytes, size_t stride, uint32_t* out) {
  const auto* p = static_cast<const unsigned char*>(data);
  size_t i = 0;
#if defined(__x86_64__)
  for (; has_hardware() && i + 3 <= rows; i += 3) crc32c_three(p + i * stride, row_bytes, stride, out + i);
#endif
  for (; i < rows; ++i) out[i] = crc32c(p + i * stride, row_bytes);
}

void crc32c_pages(const void* data, size_t pages, uint32_t* out) {
  crc32c_rows(data, pages, kPage, kPage, out);
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b) {
  return multiply(crc_a, power_of_x(8 * bytes_b)) ^ crc_b;
}

}  // namespace outcrop
