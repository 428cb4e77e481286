// Batches of typed graphs from buffers without a byte to spare, by pages and with several threads (for sanitizers):
// the same from everywhere, and counts that add up. What they must be otherwise is tested in Python.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "io_test_util.h"
#include "sampling/sampler.h"
#include "sampling/wave.h"

namespace outcrop::testing {
namespace {

// Papers, no venues, one institution and authors; lists of random length.
struct TypedGraph {
  std::shared_ptr<const Relations> relations;
  std::vector<int64_t> indptr{0};
  std::vector<uint32_t> indices;
  std::vector<float> weights;

  explicit TypedGraph(uint64_t seed) {
    const std::vector<int64_t> first{0, 300, 300, 301, 1000};
    std::vector<Relation> edges{{0, 0}, {3, 0}, {2, 0}, {0, 3}, {1, 3}, {3, 2}, {0, 0}};
    std::mt19937_64 rng(seed);
    for (size_t r = 0; r < edges.size(); ++r) {
      Relation& edge = edges[r];
      edge.weighted = r != 3;
      const int64_t sources = first[edge.source + 1] - first[edge.source];
      for (int64_t v = first[edge.target]; v < first[edge.target + 1]; ++v) {
        const auto degree = sources ? static_cast<size_t>(rng() % 16) : 0;
        const size_t begin = indices.size();
        for (size_t i = 0; i < degree; ++i)
          indices.push_back(static_cast<uint32_t>(
              first[edge.source] + static_cast<int64_t>(rng() % static_cast<uint64_t>(sources))));
        std::sort(indices.begin() + static_cast<ptrdiff_t>(begin), indices.end());
        if (edge.weighted)
          for (size_t i = 0; i < degree; ++i) weights.push_back(static_cast<float>(rng() % 3));
        edge.num_edges += static_cast<int64_t>(degree);
        indptr.push_back(static_cast<int64_t>(indices.size()));
      }
    }
    indptr.shrink_to_fit();
    indices.shrink_to_fit(), weights.shrink_to_fit();
    relations = std::make_shared<Relations>(first, edges);
  }

  Topology topology() const {
    Topology t;
    t.indptr = indptr.data();
    t.indices32 = indices.data();
    t.weights = weights.data();
    t.num_nodes = relations->num_nodes();
    t.num_edges = relations->num_edges();
    t.relations = relations;
    return t;
  }
};

SamplerOptions options_of(SamplerKind kind, bool replace, bool positions) {
  SamplerOptions options;
  options.kind = kind;
  options.fanouts = {{3, 2, 2}, {5, 1, 0}, {1, 0, 3}, {20, 2, 5}, {2, 2, 2}, {0, 10, 1}, {4, 4, 4}};
  if (!replace) options.fanouts[0][1] = -1;
  options.replace = replace;
  options.positions = positions;
  options.seed = 3;
  return options;
}

struct Seeds {  // of eight batches: papers, the institution, authors
  std::vector<int64_t> ids, offsets{0};
  Seeds() {
    for (int64_t b = 0; b < 8; ++b) {
      for (int64_t i = 0; i < 12; ++i) ids.push_back(b * 30 + 11 - i);
      ids.push_back(300);
      for (int64_t i = 0; i < 5; ++i) ids.push_back(400 + b + 7 * i);
      offsets.push_back(static_cast<int64_t>(ids.size()));
    }
  }
  std::span<const int64_t> batch(size_t b) const {
    return std::span(ids).subspan(static_cast<size_t>(offsets[b]),
                                  static_cast<size_t>(offsets[b + 1] - offsets[b]));
  }
};

void expect_same(const SampledBatch& a, const SampledBatch& b) {
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  ASSERT_EQ(a.edges.size(), b.edges.size());
  for (size_t t = 0; t < a.nodes.size(); ++t) {
    EXPECT_EQ(a.nodes[t].ids, b.nodes[t].ids);
    EXPECT_EQ(a.nodes[t].per_hop, b.nodes[t].per_hop);
  }
  for (size_t r = 0; r < a.edges.size(); ++r) {
    EXPECT_EQ(a.edges[r].rowptr, b.edges[r].rowptr);
    EXPECT_EQ(a.edges[r].col, b.edges[r].col);
    EXPECT_EQ(a.edges[r].per_hop, b.edges[r].per_hop);
    EXPECT_EQ(a.edges[r].positions, b.edges[r].positions);
  }
}

// Each position is that of an edge from the source that col says to the target of the row.
void expect_edges(const SampledBatch& batch, const TypedGraph& graph) {
  for (size_t r = 0; r < batch.edges.size(); ++r) {
    const SampledEdges& edges = batch.edges[r];
    const Relation& relation = (*graph.relations)[r];
    const auto& sources = batch.nodes[relation.source].ids;
    const auto& targets = batch.nodes[relation.target].ids;
    for (size_t row = 0; row + 1 < edges.rowptr.size(); ++row) {
      const int64_t list = relation.first_list + targets[row];
      for (auto e = static_cast<size_t>(edges.rowptr[row]); e < static_cast<size_t>(edges.rowptr[row + 1]);
           ++e) {
        const int64_t position = edges.positions[e] + relation.first_edge;
        ASSERT_GE(position, graph.indptr[static_cast<size_t>(list)]);
        ASSERT_LT(position, graph.indptr[static_cast<size_t>(list) + 1]);
        EXPECT_EQ(graph.indices[static_cast<size_t>(position)],
                  sources[static_cast<size_t>(edges.col[e])] + graph.relations->first_node(relation.source));
      }
    }
  }
}

class TypedSampling : public ::testing::TestWithParam<std::tuple<SamplerKind, bool, bool>> {
 protected:
  std::vector<SampledBatch> by_pages(const TypedGraph& graph, const SamplerOptions& options,
                                     const Seeds& seeds, unsigned threads) {
    auto budget = Budget::create(64 << 20);
    std::shared_ptr<BlockIo> io = BlockIo::create({}, budget);
    auto t = std::make_shared<PagedTopology>();
    t->relations = graph.relations;
    t->num_lists = graph.relations->num_lists();
    t->num_edges = graph.relations->num_edges();
    t->scratch = std::make_unique<PageScratch>(*budget, PageScratch::kMinBytes);
    t->indptr_pages = array(io, *budget, "indptr", graph.indptr);
    t->indices = array(io, *budget, "indices", graph.indices);
    t->weights = array(io, *budget, "weights", graph.weights);
    WaveSampler sampler(std::make_shared<WorkerPool>(threads), t, *budget, options, 8);
    return sampler.sample(seeds.ids, seeds.offsets, {});
  }

  template <class T>
  std::unique_ptr<PagedArray> array(const std::shared_ptr<BlockIo>& io, Budget& budget,
                                    const std::string& name, const std::vector<T>& values) {
    BytesVector bytes((values.size() * sizeof(T) + kPageBytes - 1) / kPageBytes * kPageBytes);
    std::memcpy(bytes.data(), values.data(), values.size() * sizeof(T));
    write_plainly(folder_.file(name), bytes);
    return std::make_unique<PagedArray>(io, budget, io->open(folder_.file(name), OpenMode::read), sizeof(T),
                                        values.size(), 3 * kPageBytes);
  }

  TempFolder folder_;
};

TEST_P(TypedSampling, IsTheSameFromMemoryAndByPages) {
  const auto [kind, replace, positions] = GetParam();
  const TypedGraph graph(7);
  const SamplerOptions options = options_of(kind, replace, positions);
  const Seeds seeds;
  NeighborSampler sampler(graph.topology(), options);
  std::vector<SampledBatch> expected;
  for (size_t b = 0; b < 8; ++b) expected.push_back(sampler.sample(seeds.batch(b), {0, 0, b}));
  for (const SampledBatch& batch : expected) {
    if (positions) expect_edges(batch, graph);
    for (const SampledEdges& edges : batch.edges)
      EXPECT_EQ(edges.positions.size(), positions ? edges.col.size() : 0);
  }
  for (unsigned threads : {1u, 3u}) {
    const std::vector<SampledBatch> paged = by_pages(graph, options, seeds, threads);
    for (size_t b = 0; b < 8; ++b) expect_same(paged[b], expected[b]);
  }
  std::vector<SampledBatch> apart(8);  // a sampler per thread
  WorkerPool pool(3);
  std::vector<std::unique_ptr<NeighborSampler>> samplers;
  for (unsigned i = 0; i < pool.threads(); ++i)
    samplers.push_back(std::make_unique<NeighborSampler>(graph.topology(), options));
  pool.run(8, [&](size_t b, unsigned worker) {
    apart[b] = samplers[worker]->sample(seeds.batch(b), {0, 0, b});
  });
  for (size_t b = 0; b < 8; ++b) expect_same(apart[b], expected[b]);
}

INSTANTIATE_TEST_SUITE_P(Samplers, TypedSampling,
                         ::testing::Combine(::testing::Values(SamplerKind::neighbor, SamplerKind::weighted),
                                            ::testing::Values(false), ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(WithReplacement, TypedSampling,
                         ::testing::Combine(::testing::Values(SamplerKind::neighbor), ::testing::Values(true),
                                            ::testing::Bool()));

TEST(TypedSamplingErrors, LeaveASamplerThatGoesOn) {
  const TypedGraph graph(8);
  SamplerOptions options = options_of(SamplerKind::neighbor, false, true);
  NeighborSampler sampler(graph.topology(), options);
  const Seeds seeds;
  const SampledBatch expected = sampler.sample(seeds.batch(0), {});
  const std::vector<int64_t> falling{400, 3}, twice{3, 3}, outside{1000};
  for (const auto& wrong : {falling, twice, outside}) EXPECT_THROW(sampler.sample(wrong, {}), Error);
  expect_same(sampler.sample(seeds.batch(0), {}), expected);
  options.max_batch_bytes = 40000;
  NeighborSampler small(graph.topology(), options);
  EXPECT_THROW(small.sample(seeds.batch(0), {}), Error);
  const std::vector<int64_t> one{0};
  options.fanouts.assign(7, {1});
  NeighborSampler fits(graph.topology(), options);
  EXPECT_EQ(fits.sample(one, {}).nodes[0].ids.front(), 0);
}

}  // namespace
}  // namespace outcrop::testing
