// Address tables of records that lie: rows are put where they say, checked against a second buffer, or refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstring>

#include "base/checksum.h"
#include "base/error.h"
#include "check.h"
#include "pack/assemble.h"

using namespace outcrop;

namespace {

void expand(FuzzedDataProvider& in, size_t rows, size_t row_bytes) {
  static WorkerPool workers(2);
  std::vector<int64_t> cached;
  for (size_t i = 0; i < rows; ++i)
    if (in.ConsumeBool()) cached.push_back(static_cast<int64_t>(i));
  if (!cached.empty() && in.ConsumeBool())
    cached[in.ConsumeIntegralInRange<size_t>(0, cached.size() - 1)] = in.ConsumeIntegral<int64_t>();
  std::vector<std::byte> x(rows * row_bytes);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<std::byte>(i * 31 + i / 256);
  const std::vector<std::byte> before = x;
  const bool rising = rises(cached) && distinct(cached) &&
                      (cached.empty() || (cached.front() >= 0 && cached.back() < static_cast<int64_t>(rows)));
  try {
    const uint32_t crc = expand_rows(workers, x.data(), rows, row_bytes, cached, true);
    holds(rising);
    const size_t skipped = cached.size() * row_bytes;
    holds(crc == crc32c_table(before.data() + skipped, before.size() - skipped));
    size_t next = cached.size(), k = 0;
    for (size_t i = 0; i < rows; ++i) {
      if (k < cached.size() && cached[k] == static_cast<int64_t>(i)) {
        ++k;
        continue;
      }
      holds(std::memcmp(&x[i * row_bytes], &before[next++ * row_bytes], row_bytes) == 0);
    }
  } catch (const Error&) {
    holds(!rising && x == before);
  }
}

void fill(FuzzedDataProvider& in, size_t rows, size_t row_bytes) {
  const size_t held = in.ConsumeIntegralInRange<size_t>(0, 9),
               stride = row_bytes + in.ConsumeIntegralInRange(0, 5);
  std::vector<std::byte> x(rows * row_bytes), table(held * stride);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i + 1);
  std::vector<int32_t> positions, from;
  bool inside = true;
  for (size_t left = in.ConsumeIntegralInRange<size_t>(0, 40); left; --left) {
    positions.push_back(in.ConsumeIntegralInRange<int32_t>(-1, static_cast<int32_t>(rows)));
    from.push_back(in.ConsumeIntegralInRange<int32_t>(-1, static_cast<int32_t>(held)));
    if (in.ConsumeProbability<float>() < 0.05f) from.back() = in.ConsumeIntegral<int32_t>();
    inside &= positions.back() >= 0 && static_cast<size_t>(positions.back()) < rows && from.back() >= 0 &&
              static_cast<size_t>(from.back()) < held;
  }
  try {
    fill_rows(x.data(), rows, row_bytes, positions, from, table.data(), held, stride);
    holds(inside);
    std::vector<std::byte> wanted(x.size());
    for (size_t i = 0; i < positions.size(); ++i)
      std::memcpy(&wanted[static_cast<size_t>(positions[i]) * row_bytes],
                  &table[static_cast<size_t>(from[i]) * stride], row_bytes);
    holds(x == wanted);
  } catch (const Error&) {
    holds(!inside);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  const size_t row_bytes = in.ConsumeIntegralInRange<size_t>(1, 70),
               rows = in.ConsumeIntegralInRange<size_t>(0, 60);
  if (in.ConsumeBool())
    expand(in, rows, row_bytes);
  else
    fill(in, rows, row_bytes);
  return 0;
}
