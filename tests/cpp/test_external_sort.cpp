// The external sort must equal std::stable_sort for every size, budget, record type and number of merge
// passes.
#include <algorithm>
#include <filesystem>
#include <span>
#include <type_traits>

#include "base/random.h"
#include "graph/csc.h"
#include "graph/external_sort.h"
#include "io_test_util.h"

namespace outcrop::testing {
namespace {

namespace fs = std::filesystem;

// A key and something that is not part of it: shows stability.
struct Tagged {
  static constexpr unsigned kKeyWords = 1;
  uint64_t key = 0;
  uint32_t payload = 0;
  uint32_t sequence = 0;
  uint64_t word(unsigned) const { return key; }
};

PackedEdge draw(RandomStream& r, uint64_t range, uint32_t, PackedEdge*) {
  return PackedEdge::make(r.below(range), r.below(range), 0, 0);
}
WideEdge draw(RandomStream& r, uint64_t range, uint32_t, WideEdge*) {
  return WideEdge::make(r.below(range) << 20, r.below(range) << 24, 0, 0);
}
Tagged draw(RandomStream& r, uint64_t range, uint32_t i, Tagged*) { return {r.below(range), r.next32(), i}; }

struct Case {
  size_t records;
  uint64_t memory_bytes, min_block_bytes, range;
  unsigned threads;
};

class Scratch {
 public:
  Scratch() {
    std::string name = (fs::temp_directory_path() / "outcrop-sort-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Scratch() { fs::remove_all(path_); }
  std::string path() const { return path_; }
  bool empty() const { return fs::is_empty(path_); }

 private:
  fs::path path_;
};

template <class R>
class ExternalSortOf : public ::testing::Test {};
using Records = ::testing::Types<PackedEdge, WideEdge, Tagged>;
TYPED_TEST_SUITE(ExternalSortOf, Records);

// Records with keys below `range`, as they are given and in the order that is wanted.
template <class R>
struct Drawn {
  Drawn(size_t records, uint64_t range) : given(records) {
    RandomStream random(7, records);
    for (size_t i = 0; i < records; ++i)
      given[i] = draw(random, range, static_cast<uint32_t>(i), static_cast<R*>(nullptr));
    wanted = given;
    std::stable_sort(wanted.begin(), wanted.end(), [](const R& a, const R& b) { return key_less(a, b); });
  }
  std::vector<R> given, wanted;
};

template <class R>
SortStats expect_sorted(const Case& c, const Drawn<R>& drawn) {
  Scratch scratch;
  auto budget = Budget::create(c.memory_bytes);
  auto io = BlockIo::create({}, Budget::create(UINT64_MAX));
  WorkerPool pool(c.threads);
  SortStats stats;
  {
    ExternalSorter<R> sorter(io, *budget, {scratch.path(), c.memory_bytes, &pool, c.min_block_bytes});
    sorter.add(drawn.given.data(), drawn.given.size());
    EXPECT_TRUE(scratch.empty()) << "the scratch file must have no name";
    std::vector<R> got;
    sorter.finish([&](const R* r, size_t n) { got.insert(got.end(), r, r + n); });
    static_assert(std::has_unique_object_representations_v<R>);  // so that equal records have equal bytes
    EXPECT_TRUE(equal_bytes(std::as_bytes(std::span(got)), std::as_bytes(std::span(drawn.wanted))))
        << c.records << " records of " << sizeof(R) << " bytes, " << c.memory_bytes << " bytes of memory";
    EXPECT_EQ(budget->now_bytes(), 0u);
    EXPECT_LE(budget->peak_bytes(), c.memory_bytes);
    EXPECT_TRUE(scratch.empty());
    stats = sorter.stats();
    EXPECT_EQ(stats.records, c.records);
  }
  return stats;
}

template <class R>
SortStats expect_sorted(const Case& c) {
  return expect_sorted(c, Drawn<R>(c.records, c.range));
}

constexpr uint64_t kMiB = 1 << 20;

TYPED_TEST(ExternalSortOf, EqualsStableSort) {
  const uint64_t none = uint64_t{1} << 32;
  for (size_t records : {0, 1, 2, 3, 1000, 65535, 65536, 65537, 300000})
    for (uint64_t range : {none, uint64_t{10}}) {  // of 10 nearly all keys are equal
      const Drawn<TypeParam> drawn(records, range);
      for (unsigned threads : {1u, 2u, 3u})
        expect_sorted<TypeParam>({records, kMiB, 16 << 10, range, threads}, drawn);
    }
}

TYPED_TEST(ExternalSortOf, FitsInMemoryWithoutSpilling) {
  const size_t most = kMiB / 2 / sizeof(TypeParam);
  EXPECT_EQ(expect_sorted<TypeParam>({most, kMiB, 16 << 10, 1 << 30, 2}).runs, 0u);
  const SortStats over = expect_sorted<TypeParam>({most + 1, kMiB, 16 << 10, 1 << 30, 2});
  EXPECT_EQ(over.runs, 2u);
  EXPECT_EQ(over.merge_passes, 1u);
  EXPECT_EQ(over.spilled_bytes, (most + 1) * sizeof(TypeParam));
}

TYPED_TEST(ExternalSortOf, MergesInSeveralPasses) {
  // 128 KiB hold 7 runs per pass at blocks of 8 KiB; half of it is one run.
  const size_t run = 64 * 1024 / sizeof(TypeParam);
  const SortStats stats = expect_sorted<TypeParam>({60 * run, 128 << 10, 8 << 10, 1 << 30, 2});
  EXPECT_EQ(stats.runs, 60u);
  EXPECT_EQ(stats.merge_passes, 3u);  // 60 -> 9 -> 2 -> 1
  EXPECT_EQ(stats.spilled_bytes, 3 * 60 * run * sizeof(TypeParam));
  EXPECT_EQ(expect_sorted<TypeParam>({9 * run, 128 << 10, 64 << 10, 1 << 30, 1}).merge_passes,
            4u);  // two at a time
}

TEST(ExternalSort, RefusesTooLittleMemory) {
  auto io = BlockIo::create({}, Budget::create(UINT64_MAX));
  auto budget = Budget::create(UINT64_MAX);
  EXPECT_THROW(ExternalSorter<PackedEdge>(io, *budget, {"/tmp", 4096}), Error);
}

TEST(ExternalSort, NamesAMissingScratchFolder) {
  auto io = BlockIo::create({}, Budget::create(UINT64_MAX));
  auto budget = Budget::create(UINT64_MAX);
  ExternalSorter<PackedEdge> sorter(io, *budget, {"/nowhere/at/all", 128 << 10});
  try {
    for (int i = 0; i < 100000; ++i) sorter.push({1});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::io);
    EXPECT_NE(std::string(e.what()).find("/nowhere/at/all"), std::string::npos);
  }
}

}  // namespace
}  // namespace outcrop::testing
