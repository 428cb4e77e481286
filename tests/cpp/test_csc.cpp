// CscBuilder against a brute-force set of edges; file sizes, padding and checksums as the array store wants
// them.
#include <algorithm>
#include <filesystem>
#include <map>

#include "base/checksum.h"
#include "base/random.h"
#include "graph/csc.h"
#include "io_test_util.h"

namespace outcrop::testing {
namespace {

namespace fs = std::filesystem;
using Edges = std::vector<std::pair<int64_t, int64_t>>;

template <class T>
std::vector<T> contents(const fs::path& path, const ArrayFile& file) {
  const BytesVector bytes = read_plainly(path);
  EXPECT_EQ(bytes.size(), file.file_bytes);
  EXPECT_EQ(file.file_bytes, align_up(file.data_bytes, kPageBytes));
  EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<ptrdiff_t>(file.data_bytes), bytes.end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(crc32c_table(bytes.data(), file.data_bytes), file.crc32c);
  std::vector<T> values(file.data_bytes / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), file.data_bytes);
  return values;
}

class Csc : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "outcrop-csc-XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  CscResult build(const Edges& edges, CscOptions options, unsigned threads = 2) {
    options.scratch_folder = folder_;
    auto budget = Budget::create(options.memory_bytes);
    auto io = BlockIo::create({}, Budget::create(UINT64_MAX));
    WorkerPool pool(threads);
    CscBuilder builder(io, budget, options, &pool);
    std::vector<int64_t> src, dst;
    for (auto [s, d] : edges) src.push_back(s), dst.push_back(d);
    const size_t half = edges.size() / 2;
    builder.add(src.data(), dst.data(), half);
    builder.add(src.data() + half, dst.data() + half, edges.size() - half);
    EXPECT_EQ(builder.edges_added(), edges.size());
    const CscResult r = builder.finish(folder_ / "indptr.bin", folder_ / "indices.bin");
    EXPECT_EQ(budget->now_bytes(), 0u);
    EXPECT_LE(budget->peak_bytes(), options.memory_bytes);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 4) << "scratch files were left";
    check_sums("indptr", r.indptr);
    check_sums("indices", r.indices);
    return r;
  }

  // The file of page checksums beside an array has one for each page of it, as it lies on disk.
  void check_sums(const std::string& name, const ArrayFile& file) {
    const BytesVector bytes = read_plainly(folder_ / (name + ".bin"));
    std::vector<uint32_t> want;
    for (size_t at = 0; at < bytes.size(); at += kPageBytes)
      want.push_back(crc32c_table(bytes.data() + at, kPageBytes));
    const uint64_t size = want.size() * sizeof(uint32_t);
    const ArrayFile sums{size, align_up(size, kPageBytes), file.page_crc};
    EXPECT_EQ(contents<uint32_t>(folder_ / (name + "_page_crc.bin"), sums), want);
  }

  // An edge as one number, in the order of the lists; ids below 2^32.
  static uint64_t key(int64_t target, int64_t source) {
    return static_cast<uint64_t>(target) << 32 | static_cast<uint64_t>(source);
  }

  void expect_equal(const Edges& edges, const CscOptions& options) {
    const CscResult r = build(edges, options);
    uint64_t loops = 0;
    std::vector<uint64_t> want;
    want.reserve(2 * edges.size());
    for (auto [s, d] : edges) {
      if (s == d && !options.keep_self_loops) {
        ++loops;
        continue;
      }
      want.push_back(key(d, s));
      if (options.reverse && s != d) want.push_back(key(s, d));
    }
    std::sort(want.begin(), want.end());
    const size_t all = want.size();
    if (!options.keep_duplicates) want.erase(std::unique(want.begin(), want.end()), want.end());
    EXPECT_EQ(r.self_loops_dropped, loops);
    EXPECT_EQ(r.duplicates_dropped, all - want.size());
    ASSERT_EQ(r.num_edges, want.size());
    const auto indptr = contents<int64_t>(folder_ / "indptr.bin", r.indptr);
    ASSERT_EQ(indptr.size(), static_cast<size_t>(r.num_nodes) + 1);
    const auto indices = r.wide ? contents<int64_t>(folder_ / "indices.bin", r.indices) : [&] {
      const auto narrow = contents<uint32_t>(folder_ / "indices.bin", r.indices);
      return std::vector<int64_t>(narrow.begin(), narrow.end());
    }();
    std::vector<uint64_t> got;
    got.reserve(want.size());
    uint64_t empty = 0, most = 0, beyond = 0;
    for (int64_t v = 0; v < r.num_nodes; ++v) {
      for (int64_t e = indptr[v]; e < indptr[v + 1]; ++e) {
        got.push_back(key(v, indices[e]));
        beyond |= static_cast<uint64_t>(indices[e]) >> 32;
      }
      empty += indptr[v] == indptr[v + 1];
      most = std::max<uint64_t>(most, indptr[v + 1] - indptr[v]);
    }
    EXPECT_EQ(beyond, 0u);
    EXPECT_EQ(got, want);
    EXPECT_EQ(r.nodes_without_in_edges, empty);
    EXPECT_EQ(r.max_in_degree, most);
  }

  fs::path folder_;
};

Edges random_edges(size_t n, int64_t nodes, uint64_t seed) {
  RandomStream random(seed, n);
  Edges edges(n);
  for (auto& e : edges)
    e = {static_cast<int64_t>(random.below(nodes)), static_cast<int64_t>(random.below(nodes))};
  return edges;
}

// Against sets of edges, edge type by edge type; in one piece and sorted outside memory.
TEST_F(Csc, ListsOfEdgeTypesEqualASetOfEdgesPerType) {
  const std::vector<int64_t> first_nodes{0, 700, 701, 701, 1500};
  const std::vector<Relation> ends{
      {0, 0, 0, false}, {3, 0, 0, true}, {0, 1, 0, false}, {2, 3, 0, false}, {3, 3, 0, true}};
  for (const uint64_t memory : {uint64_t{256} << 10, uint64_t{64} << 20}) {
    CscOptions options;
    options.scratch_folder = folder_;
    options.memory_bytes = memory;
    options.keep_self_loops = false;
    options.relations = std::make_shared<const Relations>(first_nodes, ends);
    const Relations& relations = *options.relations;
    WorkerPool pool(2);
    CscBuilder builder(BlockIo::create({}, Budget::create(UINT64_MAX)), Budget::create(memory), options,
                       &pool);
    RandomStream random(7, 1);
    std::vector<int64_t> indptr{0}, indices;
    std::vector<float> weights;
    std::vector<uint64_t> counts;
    for (size_t r = 0; r < ends.size(); ++r) {
      const Relation& relation = relations[r];
      const int64_t sources = relations.num_nodes(relation.source),
                    targets = relations.num_nodes(relation.target);
      std::map<std::pair<int64_t, int64_t>, float> kept;  // (target, source) -> the first weight
      std::vector<int64_t> src, dst;
      std::vector<float> weight;
      for (int i = 0; i < (sources ? 30000 : 0); ++i) {
        src.push_back(static_cast<int64_t>(random.next32() % static_cast<uint64_t>(sources)));
        dst.push_back(static_cast<int64_t>(random.next32() % static_cast<uint64_t>(targets)));
        weight.push_back(static_cast<float>(i));
        if (relation.source != relation.target || src.back() != dst.back())
          kept.try_emplace({dst.back(), src.back()}, weight.back());
      }
      builder.add(src.data(), dst.data(), src.size(), relation.weighted ? weight.data() : nullptr, r);
      auto at = kept.begin();
      for (int64_t target = 0; target < targets; ++target) {
        for (; at != kept.end() && at->first.first == target; ++at) {
          indices.push_back(relations.first_node(relation.source) + at->first.second);
          if (relation.weighted) weights.push_back(at->second);
        }
        indptr.push_back(static_cast<int64_t>(indices.size()));
      }
      counts.push_back(kept.size());
    }
    const CscResult result =
        builder.finish(folder_ / "indptr.bin", folder_ / "indices.bin", 0, folder_ / "weights.bin");
    EXPECT_EQ(result.sort.runs > 0, memory < (1 << 20));
    EXPECT_EQ(result.num_lists, relations.num_lists());
    EXPECT_EQ(contents<int64_t>(folder_ / "indptr.bin", result.indptr), indptr);
    const auto found = contents<uint32_t>(folder_ / "indices.bin", result.indices);
    EXPECT_TRUE(std::equal(found.begin(), found.end(), indices.begin(), indices.end()));
    EXPECT_EQ(contents<float>(folder_ / "weights.bin", result.weights), weights);
    ASSERT_EQ(result.relations.size(), counts.size());
    for (size_t r = 0; r < counts.size(); ++r) EXPECT_EQ(result.relations[r].num_edges, counts[r]);
  }
}

TEST_F(Csc, EqualsBruteForce) {
  for (int64_t nodes : {1, 2, 1000, 100000})
    for (size_t num_edges : {0, 1, 1000, 120000}) {
      const Edges edges = random_edges(num_edges, nodes, 3);
      for (int mask = 0; mask < 16; ++mask) {
        CscOptions o;
        o.num_nodes = nodes;
        o.memory_bytes = 300 << 10;  // 120,000 edges are several runs
        o.keep_duplicates = mask & 1;
        o.keep_self_loops = mask & 2;
        o.reverse = mask & 4;
        o.wide = mask & 8;
        expect_equal(edges, o);
      }
    }
}

TEST_F(Csc, CountsNodesWhenNotTold) {
  CscOptions o;
  EXPECT_EQ(build({{3, 9}, {2, 2}}, o).num_nodes, 10);
  o.num_nodes = -1;
  EXPECT_EQ(build({}, o).num_nodes, 0);
}

TEST_F(Csc, EmptyGraphHasIndptrOfZeros) {
  CscOptions o;
  o.num_nodes = 5;
  const CscResult r = build({}, o);
  EXPECT_EQ(contents<int64_t>(folder_ / "indptr.bin", r.indptr), std::vector<int64_t>(6, 0));
  EXPECT_EQ(fs::file_size(folder_ / "indices.bin"), 0u);
  EXPECT_EQ(r.nodes_without_in_edges, 5u);
}

TEST_F(Csc, LargeIdsSurvive) {
  CscOptions o;
  o.num_nodes = -1;
  o.wide = true;
  auto io = BlockIo::create({}, Budget::create(UINT64_MAX));
  CscBuilder builder(io, Budget::create(UINT64_MAX), [&] {
    o.num_nodes = 6;
    o.scratch_folder = folder_;
    return o;
  }());
  const std::vector<int64_t> src{5, 0}, dst{1, 1};
  builder.add(src.data(), dst.data(), 2);
  const CscResult r = builder.finish(folder_ / "indptr.bin", folder_ / "indices.bin");
  EXPECT_EQ(contents<int64_t>(folder_ / "indices.bin", r.indices), (std::vector<int64_t>{0, 5}));
}

TEST_F(Csc, NamesTheEdgeWithAnImpossibleId) {
  for (int64_t bad : {int64_t{-1}, int64_t{7}, INT64_MAX, INT64_MIN}) {
    CscOptions o;
    o.num_nodes = 7;
    try {
      build({{0, 1}, {1, 2}, {2, bad}}, o);
      FAIL() << "no error for " << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::argument);
      const std::string text = e.what();
      EXPECT_NE(text.find("edge 2 "), std::string::npos) << text;
      EXPECT_NE(text.find(std::to_string(bad)), std::string::npos) << text;
      EXPECT_NE(text.find("7 nodes"), std::string::npos) << text;
    }
  }
}

TEST_F(Csc, SameFilesForAnyBudgetAndThreads) {
  const Edges edges = random_edges(200000, 5000, 11);
  CscOptions o;
  const CscResult a = build(edges, o, 1);
  o.memory_bytes = 256 << 10;
  const CscResult b = build(edges, o, 3);
  EXPECT_EQ(a.sort.runs, 0u);
  EXPECT_GT(b.sort.runs, 2u);
  EXPECT_EQ(a.indptr.crc32c, b.indptr.crc32c);
  EXPECT_EQ(a.indices.crc32c, b.indices.crc32c);
}

}  // namespace
}  // namespace outcrop::testing
