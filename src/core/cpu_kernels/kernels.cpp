#include "cpu_kernels/kernels.h"

#include <set>

#include "cpu_kernels/lanes.h"
#include "cpu_kernels/word.h"
#include "kernels/assemble.h"

namespace outcrop {

namespace {

template <typename Word, typename Index>
int64_t run_gather(const CpuRows& rows, const void* index, int64_t count, int64_t warps) {
  kernels::int64 wrong = 0;
  kernels::Gather<Index> g;
  g.table = reinterpret_cast<const kernels::uint8*>(rows.table);
  g.table_stride = rows.table_stride;
  g.num_rows = rows.num_rows;
  g.index = static_cast<const Index*>(index);
  g.count = count;
  g.out = reinterpret_cast<kernels::uint8*>(rows.out);
  g.out_stride = rows.out_stride;
  g.row_words = rows.row_bytes / static_cast<int64_t>(sizeof(Word));
  g.wrong = &wrong;
  every_lane(warps, [&](const kernels::Lane& me) { kernels::gather<Word>(g, me); });
  return wrong - 1;
}

}  // namespace

int64_t cpu_gather(const CpuRows& rows, const void* index, int index_bytes, int64_t count, int word_bytes,
                   int64_t warps) {
  return with_word(word_bytes, [&]<typename Word>(Word) {
    return index_bytes == 4 ? run_gather<Word, kernels::int32>(rows, index, count, warps)
                            : run_gather<Word, kernels::int64>(rows, index, count, warps);
  });
}

int64_t cpu_assemble(const CpuTable* tables, const uint64_t* place, int64_t count, std::byte* out,
                     int64_t row_bytes, int word_bytes, int64_t warps) {
  kernels::int64 wrong = 0;
  kernels::Assemble a{};
  for (int i = 0; i < kernels::kTables; ++i) {
    a.tables[i] = {reinterpret_cast<const kernels::uint8*>(tables[i].rows), tables[i].stride,
                   tables[i].count};
  }
  a.place = reinterpret_cast<const kernels::uint64*>(place);
  a.count = count;
  a.out = reinterpret_cast<kernels::uint8*>(out);
  a.out_stride = row_bytes;
  a.row_words = row_bytes / word_bytes;
  a.wrong = &wrong;
  with_word(word_bytes, [&]<typename Word>(Word) {
    every_lane(warps, [&](const kernels::Lane& me) { kernels::assemble<Word>(a, me); });
    return 0;
  });
  return wrong - 1;
}

int64_t cpu_gather_requests(uint64_t address, int64_t row_bytes) {
  int64_t requests = 0;
  for (int64_t round = 0; round < kernels::rounds_of(address, row_bytes); ++round) {
    std::set<uint64_t> lines;
    for (int lane = 0; lane < kernels::kWarp; ++lane) {
      const int64_t at = kernels::chunk_of(address, round, lane);
      if (kernels::touches(at, row_bytes))
        lines.insert((address + static_cast<uint64_t>(at)) / kernels::kLineBytes);
    }
    requests += static_cast<int64_t>(lines.size());
  }
  return requests;
}

}  // namespace outcrop
