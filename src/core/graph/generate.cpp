#include "graph/generate.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/random.h"

namespace outcrop {
namespace {

using Wide = unsigned __int128;

// Streams of one seed, so that edges, features and means are independent.
enum : uint64_t { kRanks = 1, kEdges, kFeatures, kMeans };
uint64_t stream_key(uint64_t seed, uint64_t stream) { return mix64(mix64(seed) + stream); }

// Sum of four uniform 16-bit numbers less its mean: near normal, standard deviation 37,837.
int32_t noise(RandomStream& random) {
  const uint32_t x = random.next32(), y = random.next32();
  return static_cast<int32_t>((x & 0xffff) + (x >> 16) + (y & 0xffff) + (y >> 16)) - 131070;
}

const auto kBinomial = [] {
  std::array<std::array<uint64_t, 65>, 65> table{};
  for (unsigned n = 0; n < 65; ++n) {
    table[n][0] = 1;
    for (unsigned k = 1; k <= n; ++k) table[n][k] = table[n - 1][k - 1] + (k < n ? table[n - 1][k] : 0);
  }
  return table;
}();

// How many numbers below x have `ones` bits set.
uint64_t count_below_with_ones(uint64_t x, unsigned ones) {
  uint64_t count = 0;
  unsigned seen = 0;
  for (int bit = 63; bit >= 0; --bit)
    if (x >> bit & 1) {
      if (ones >= seen) count += kBinomial[bit][ones - seen];
      if (++seen > ones) break;
    }
  return count;
}

void check(const GraphModel& m) {
  std::string problems;
  auto refuse = [&](const std::string& text) { problems += (problems.empty() ? "" : "; ") + text; };
  if (m.num_nodes < 1) refuse("number of nodes is " + std::to_string(m.num_nodes) + ", at least 1 is needed");
  if (m.num_nodes > int64_t{1} << 48) refuse("more than 2^48 nodes");
  if (m.num_edges < 0) refuse("number of edges is " + std::to_string(m.num_edges));
  if (m.num_classes < 1)
    refuse("number of classes is " + std::to_string(m.num_classes) + ", at least 1 is needed");
  if (m.num_classes > std::max<int64_t>(m.num_nodes, 1)) refuse("more classes than nodes");
  if (m.feature_dim < 0) refuse("number of features is " + std::to_string(m.feature_dim));
  if (!(m.homophily >= 0 && m.homophily <= 1)) refuse("homophily is outside 0 to 1");
  if (!(m.skew >= 0 && m.skew < 1)) refuse("skew is outside [0, 1)");
  if (!(m.a > 0 && m.b > 0 && m.c > 0 && m.a + m.b + m.c < 1))
    refuse("a, b, c and 1 - a - b - c must be positive");
  if (!(m.signal >= 0 && m.signal <= 1000)) refuse("signal is outside 0 to 1000");
  if (problems.empty()) {
    const Wide most = Wide(m.num_nodes) * std::min<uint64_t>(m.num_nodes - 1, GraphGenerator::kMaxDegree);
    if (Wide(m.num_edges) > most)
      refuse(std::to_string(m.num_edges) + " distinct edges do not fit " + std::to_string(m.num_nodes) +
             " nodes");
  }
  if (!problems.empty()) throw Error(ErrorKind::argument, "cannot generate this graph: " + problems);
}

uint16_t float_to_half(float value) {  // |value| < 65504, round to nearest even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude < 0x38800000) {  // subnormal: align to 2^-24 by adding 0.5, whose last bit is 2^-24
    float positive;
    std::memcpy(&positive, &magnitude, 4);
    positive += 0.5f;
    uint32_t sum;
    std::memcpy(&sum, &positive, 4);
    return static_cast<uint16_t>(sign | (sum - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

uint16_t float_to_bfloat16(float value) {  // finite, round to nearest even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void store(int32_t value, float* out) { *out = static_cast<float>(value) * 0x1p-15f; }
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
void store(int32_t value, Half* out) { out->bits = float_to_half(static_cast<float>(value) * 0x1p-15f); }
void store(int32_t value, BFloat16* out) {
  out->bits = float_to_bfloat16(static_cast<float>(value) * 0x1p-15f);
}
// The same value in steps of 2^-5.
void store(int32_t value, int8_t* out) {
  *out = static_cast<int8_t>(std::clamp((value + 512) >> 10, -127, 127));
}

}  // namespace

DegreeTable::DegreeTable(const std::vector<uint64_t>& nodes, const std::vector<double>& weights,
                         uint64_t num_edges, uint64_t max_degree)
    : groups_(nodes.size()), guide_(4096), num_edges_(num_edges) {
  const auto cap = static_cast<double>(max_degree), wanted = static_cast<double>(num_edges);
  auto total_at = [&](double factor) {
    double sum = 0;
    for (size_t g = 0; g < nodes.size(); ++g)
      sum += static_cast<double>(nodes[g]) * std::min(cap, factor * weights[g]);
    return sum;
  };
  double low = 0, high = 1;
  while (total_at(high) < wanted * (1 - 1e-12) && high < 1e300) high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = low + (high - low) / 2;
    (total_at(middle) < wanted ? low : high) = middle;
  }
  uint64_t given = 0;
  double sum = 0;
  for (size_t g = 0; g < nodes.size(); ++g) {
    sum += static_cast<double>(nodes[g]) * std::min(cap, high * weights[g]);
    const uint64_t upto = std::min(num_edges, static_cast<uint64_t>(std::llround(sum)));
    groups_[g].nodes = nodes[g];
    groups_[g].total = std::min(upto - std::min(upto, given), nodes[g] * max_degree);
    given += groups_[g].total;
  }
  for (size_t g = 0; g < nodes.size() && given < num_edges; ++g) {  // what rounding and caps left over
    const uint64_t more = std::min(num_edges - given, nodes[g] * max_degree - groups_[g].total);
    groups_[g].total += more;
    given += more;
  }
  uint64_t before = 0;
  for (auto& group : groups_) {
    group.edges_before = before;
    before += group.total;
  }
  size_t g = 0;
  for (size_t slot = 0; slot < guide_.size(); ++slot) {
    const auto edge = static_cast<uint64_t>(Wide(num_edges_) * slot / guide_.size());
    while (g + 1 < groups_.size() && groups_[g + 1].edges_before <= edge) ++g;
    guide_[slot] = static_cast<uint16_t>(g);
  }
}

uint64_t DegreeTable::degree(size_t g, uint64_t i) const {
  const Group& group = groups_[g];
  return static_cast<uint64_t>(Wide(i + 1) * group.total / group.nodes - Wide(i) * group.total / group.nodes);
}

size_t DegreeTable::group_of_edge(uint64_t e) const {
  size_t g = guide_[static_cast<size_t>(Wide(e) * guide_.size() / num_edges_)];
  while (g + 1 < groups_.size() && groups_[g + 1].edges_before <= e) ++g;
  return g;
}

GraphGenerator::GraphGenerator(Budget& budget, const GraphModel& model)
    : model_((check(model), model)),
      id_of_rank_(stream_key(model.seed, kRanks), static_cast<uint64_t>(model.num_nodes)) {
  const auto n = static_cast<uint64_t>(model.num_nodes);
  std::vector<uint64_t> nodes;
  std::vector<double> weights;
  if (model.rmat) {
    scale_ = std::max<unsigned>(1, n > 1 ? std::bit_width(n - 1) : 1);
    const double d = 1 - model.a - model.b - model.c, one = model.b + d;
    for (unsigned ones = 0; ones <= scale_; ++ones) {
      nodes.push_back(count_below_with_ones(n, ones));
      weights.push_back(std::pow(one, ones) * std::pow(1 - one, scale_ - ones));
    }
    one_given_ = {static_cast<uint16_t>(std::lround(65535 * model.c / (model.a + model.c))),
                  static_cast<uint16_t>(std::lround(65535 * d / one))};
  } else {
    const double power = 1 - model.skew;
    for (uint64_t first = 0; first < n;) {
      const uint64_t count = std::min(n - first, std::max<uint64_t>(1, first / 8));
      first_rank_.push_back(first);
      nodes.push_back(count);
      const auto x = static_cast<double>(first);
      weights.push_back((std::pow(x + static_cast<double>(count) + 1, power) - std::pow(x + 1, power)) /
                        static_cast<double>(count));
      first += count;
    }
  }
  degree_table_ = std::make_unique<DegreeTable>(nodes, weights, static_cast<uint64_t>(model.num_edges),
                                                std::min<uint64_t>(n - 1, kMaxDegree));
  const auto dim = static_cast<uint64_t>(model.feature_dim),
             classes = static_cast<uint64_t>(model.num_classes);
  if (dim == 0) return;
  class_means_ = Buffer(budget, "class-means", classes * dim * sizeof(int32_t));
  const double per_dimension = model.signal / std::sqrt(static_cast<double>(dim));
  for (uint64_t k = 0; k < classes; ++k) {
    RandomStream random(stream_key(model.seed, kMeans), k);
    for (uint64_t j = 0; j < dim; ++j)
      class_means_.as<int32_t>()[k * dim + j] =
          static_cast<int32_t>(std::clamp(std::round(per_dimension * noise(random)), -8e6, 8e6));
  }
}

uint64_t GraphGenerator::degree_of_rank(uint64_t rank) const {
  if (model_.rmat) {
    const auto ones = static_cast<unsigned>(std::popcount(rank));
    return degree_table_->degree(ones, count_below_with_ones(rank, ones));
  }
  const size_t g = static_cast<size_t>(std::upper_bound(first_rank_.begin(), first_rank_.end(), rank) -
                                       first_rank_.begin()) -
                   1;
  return degree_table_->degree(g, rank - first_rank_[g]);
}

void GraphGenerator::degrees(int64_t first, int64_t n, int64_t* out, WorkerPool& pool) const {
  pool.split(static_cast<size_t>(n), 1024, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      out[i] = static_cast<int64_t>(degree_of_rank(id_of_rank_.inverse(static_cast<uint64_t>(first) + i)));
  });
}

void GraphGenerator::labels(int64_t first, int64_t n, int64_t* out, WorkerPool& pool) const {
  pool.split(static_cast<size_t>(n), 4096, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      out[i] = static_cast<int64_t>(id_of_rank_.inverse(static_cast<uint64_t>(first) + i) %
                                    static_cast<uint64_t>(model_.num_classes));
  });
}

uint64_t GraphGenerator::draw_by_degree(RandomStream& random) const {
  const uint64_t edge = random.below(static_cast<uint64_t>(model_.num_edges));
  const size_t g = degree_table_->group_of_edge(edge);
  const DegreeTable::Group& group = degree_table_->group(g);
  return first_rank_[g] + static_cast<uint64_t>(Wide(edge - group.edges_before) * group.nodes / group.total);
}

uint64_t GraphGenerator::draw_rank(uint64_t target_rank, RandomStream& random) const {
  const auto n = static_cast<uint64_t>(model_.num_nodes), classes = static_cast<uint64_t>(model_.num_classes);
  for (;;) {
    uint64_t rank = 0;
    if (model_.rmat) {
      uint64_t word = 0;
      for (unsigned bit = scale_; bit-- > 0; word >>= 16) {
        if ((scale_ - 1 - bit) % 4 == 0) word = random.next64();
        rank = rank << 1 | ((word & 0xffff) < one_given_[target_rank >> bit & 1]);
      }
    } else {
      const bool same_class = random.uniform() < model_.homophily;
      rank = draw_by_degree(random);
      if (same_class) rank = rank - rank % classes + target_rank % classes;
    }
    if (rank < n) return rank;
  }
}

template <class Index>
void GraphGenerator::sources_of(uint64_t node, Index* out, uint64_t degree) const {
  constexpr int kRounds = 16;
  if (degree == 0) return;
  RandomStream random(stream_key(model_.seed, kEdges), node);
  const uint64_t rank = id_of_rank_.inverse(node);
  Index* end = out;
  for (int round = 0; round < kRounds && end < out + degree; ++round) {
    for (Index* p = end; p < out + degree; ++p)
      *p = static_cast<Index>(id_of_rank_.forward(draw_rank(rank, random)));
    std::sort(out, out + degree);
    end = std::unique(out, out + degree);
    end = std::remove(out, end, static_cast<Index>(node));
  }
  // Few distinct sources are likely (a small or very skewed graph): take the next free ids.
  const auto n = static_cast<uint64_t>(model_.num_nodes);
  Index* sorted_end = end;
  for (uint64_t id = random.below(n); end < out + degree; id = id + 1 == n ? 0 : id + 1)
    if (id != node && !std::binary_search(out, sorted_end, static_cast<Index>(id)))
      *end++ = static_cast<Index>(id);
  if (sorted_end != end) std::sort(out, end);
}

template <class Index>
void GraphGenerator::sources(int64_t first, int64_t n, const int64_t* offsets, Index* out,
                             WorkerPool& pool) const {
  pool.split(static_cast<size_t>(n), 64, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i)
      sources_of(static_cast<uint64_t>(first) + i, out + offsets[i],
                 static_cast<uint64_t>(offsets[i + 1] - offsets[i]));
  });
}
template void GraphGenerator::sources(int64_t, int64_t, const int64_t*, uint32_t*, WorkerPool&) const;
template void GraphGenerator::sources(int64_t, int64_t, const int64_t*, int64_t*, WorkerPool&) const;

namespace {
template <class T>
void feature_row(const int32_t* mean, uint64_t dim, RandomStream random, T* out) {
  for (uint64_t j = 0; j < dim; ++j) store(mean[j] + noise(random), out + j);
}
}  // namespace

void GraphGenerator::features(int64_t first, int64_t n, FeatureType type, void* out, WorkerPool& pool) const {
  const auto dim = static_cast<uint64_t>(model_.feature_dim),
             classes = static_cast<uint64_t>(model_.num_classes);
  const uint64_t key = stream_key(model_.seed, kFeatures);
  pool.split(static_cast<size_t>(n), 256, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const uint64_t node = static_cast<uint64_t>(first) + i;
      const int32_t* mean = class_means_.as<int32_t>() + id_of_rank_.inverse(node) % classes * dim;
      const RandomStream random(key, node);
      switch (type) {
        case FeatureType::float32:
          feature_row(mean, dim, random, static_cast<float*>(out) + i * dim);
          break;
        case FeatureType::float16:
          feature_row(mean, dim, random, static_cast<Half*>(out) + i * dim);
          break;
        case FeatureType::bfloat16:
          feature_row(mean, dim, random, static_cast<BFloat16*>(out) + i * dim);
          break;
        case FeatureType::int8:
          feature_row(mean, dim, random, static_cast<int8_t*>(out) + i * dim);
          break;
      }
    }
  });
}

}  // namespace outcrop
