// Rows put in order by numbers that may lie: as indexing in memory does, or refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <map>

#include "base/error.h"
#include "check.h"
#include "files.h"
#include "graph/permute.h"

using namespace outcrop;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static WorkerPool workers(1);
  FuzzedDataProvider in(data, size);
  PermuteOptions options;
  options.scratch_folder = folder();
  options.numbers_path = folder() + "/numbers.bin";
  options.workers = &workers;
  options.num_rows = in.ConsumeIntegralInRange<uint64_t>(1, 60);
  options.row_bytes = in.ConsumeIntegralInRange<uint64_t>(1, 3000);
  options.slots = in.ConsumeIntegralInRange<uint64_t>(1, 3);
  options.first = in.ConsumeIntegralInRange<uint64_t>(0, 3);
  std::vector<int64_t> numbers(options.first, -1);
  bool right = true;
  std::map<int64_t, uint64_t> times;
  for (size_t left = in.ConsumeIntegralInRange<size_t>(1, 80); left; --left) {
    const bool lies = in.ConsumeProbability<float>() < 0.01f;
    numbers.push_back(
        lies ? in.ConsumeIntegral<int64_t>()
             : in.ConsumeIntegralInRange<int64_t>(0, static_cast<int64_t>(options.num_rows) - 1));
    right &= numbers.back() >= 0 && numbers.back() < static_cast<int64_t>(options.num_rows) &&
             ++times[numbers.back()] <= options.slots;
  }
  options.count = numbers.size() - options.first;
  write_values(options.numbers_path, numbers);
  const uint64_t least = RowPermuter::least_memory(options.count, options.row_bytes);
  options.memory_bytes = in.ConsumeIntegralInRange<uint64_t>(least, 2 * least + (1 << 20));
  std::vector<std::byte> rows(options.num_rows * options.row_bytes);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i * 7 + i / options.row_bytes);
  const std::string out = folder() + "/out.bin";
  try {
    const auto budget = Budget::create(UINT64_MAX);
    RowPermuter permuter(engine(), *budget, options);
    for (uint64_t done = 0; done < options.num_rows;) {
      const uint64_t some = in.ConsumeIntegralInRange<uint64_t>(1, options.num_rows - done);
      permuter.add(rows.data() + done * options.row_bytes, some);
      done += some;
    }
    permuter.finish(out);
    holds(right);
    const auto found = read_values<std::byte>(out, options.count * options.row_bytes);
    for (size_t i = 0; i < options.count; ++i) {
      const auto from = static_cast<size_t>(numbers[options.first + i]) * options.row_bytes;
      holds(std::equal(&rows[from], &rows[from] + options.row_bytes, &found[i * options.row_bytes]));
    }
  } catch (const Error& error) {
    holds(!right && error.kind() == ErrorKind::format);
  }
  return 0;
}
