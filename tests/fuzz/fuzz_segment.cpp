// Segment tables with any ids: outside the range, falling, more batches than were announced, rows that lie.
#include <fuzzer/FuzzedDataProvider.h>

#include "base/error.h"
#include "check.h"
#include "pack/segment.h"

using namespace outcrop;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static WorkerPool workers(1);
  FuzzedDataProvider in(data, size);
  try {
    const int64_t most = in.ConsumeIntegralInRange<int64_t>(0, 60);
    SegmentTable table(Budget::create(1 << 24), most);
    const int64_t first = in.ConsumeIntegralInRange<int64_t>(0, 30),
                  count = in.ConsumeIntegralInRange<int64_t>(0, 70);
    std::vector<int64_t> hot;
    for (size_t left = in.ConsumeIntegralInRange<size_t>(0, 5); left; --left)
      hot.push_back(in.ConsumeIntegralInRange<int64_t>(-1, 110));
    table.begin_range(first, count, hot);
    std::vector<std::vector<int32_t>> batches(in.ConsumeIntegralInRange<size_t>(1, 6));
    table.begin_segment(static_cast<int64_t>(batches.size()), in.ConsumeIntegralInRange<int64_t>(0, 3), 7,
                        in.ConsumeIntegralInRange<int64_t>(0, 9));
    for (auto& ids : batches) {
      for (int32_t id = -2; id < 100; ++id)  // no id twice, as the table is promised
        if (in.ConsumeProbability<float>() < 0.2f) ids.push_back(id);
      table.count<int32_t>(ids);
    }
    for (size_t b = 0; b < batches.size(); ++b) table.sign<int32_t>(static_cast<int64_t>(b), batches[b]);
    std::vector<int64_t> shared(static_cast<size_t>(table.order(workers)));
    table.shared(0, shared);
    holds(distinct(shared));
    for (const int64_t id : shared) holds(id >= first && id < first + count);
    for (const auto& ids : batches) {
      std::vector<int32_t> rows(ids.size());
      table.look_up<int32_t>(ids, rows.data());
      const int64_t marked = table.mark<int32_t>(ids, in.ConsumeIntegralInRange<int64_t>(1, 9000));
      holds(marked == std::count_if(rows.begin(), rows.end(), [](int32_t row) { return row >= 0; }));
      const SharedReads reads = table.finish_batch();
      holds(reads.rows == marked && reads.runs <= reads.pages);
    }
    std::vector<int64_t> ids(in.ConsumeIntegralInRange<size_t>(0, 9));
    std::vector<int32_t> rows(ids.size());
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = in.ConsumeIntegralInRange<int64_t>(-3, 120), rows[i] = in.ConsumeIntegral<int32_t>();
    table.assign<int64_t>(ids, rows);
    for (const auto& of : batches) table.clear<int32_t>(of);
  } catch (const Error&) {
  }
  return 0;
}
