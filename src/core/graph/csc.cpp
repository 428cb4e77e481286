#include "graph/csc.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace outcrop {
namespace {
constexpr int64_t kMaxPackedNodes = int64_t{1} << 32;
constexpr uint64_t kMaxWriteBufferBytes = 2 << 20;
}  // namespace

class CscBuilder::Impl {
 public:
  virtual ~Impl() = default;
  virtual void add(const int64_t* src, const int64_t* dst, size_t n, const float* weights,
                   size_t edge_type) = 0;
  virtual CscResult finish(const std::string& indptr_path, const std::string& indices_path, int64_t min_nodes,
                           const std::string& weights_path, const std::string& numbers_path) = 0;
  uint64_t added = 0;
};

namespace {

template <class Edge, class Index>
class Sorted final : public CscBuilder::Impl {
 public:
  Sorted(std::shared_ptr<BlockIo> io, std::shared_ptr<Budget> budget, CscOptions options, WorkerPool* workers)
      : io_(std::move(io)),
        budget_(std::move(budget)),
        options_(std::move(options)),
        limit_(options_.num_nodes >= 0 ? options_.num_nodes : kMaxPackedNodes),
        self_loops_dropped_(options_.relations ? options_.relations->size() : 1),
        next_number_(self_loops_dropped_.size()),
        write_bytes_(align_down(std::min(kMaxWriteBufferBytes, options_.memory_bytes / 8), 2 * kPageBytes)),
        sorter_(
            std::in_place, io_, *budget_,
            SortOptions{options_.scratch_folder, options_.memory_bytes - kFiles * write_bytes_, workers}) {}

  void add(const int64_t* src, const int64_t* dst, size_t n, const float* weights,
           size_t edge_type) override {
    if (edge_type >= self_loops_dropped_.size())
      throw Error(ErrorKind::argument, "edges of type " + std::to_string(edge_type) +
                                           " are added, there are " +
                                           std::to_string(self_loops_dropped_.size()) + " edge types");
    const bool weighted =
        options_.relations ? (*options_.relations)[edge_type].weighted : bool(Edge::kWeighted);
    if (weighted != (weights != nullptr))
      throw Error(ErrorKind::argument,
                  weighted ? "edge weights are missing" : "edge weights are not expected");
    if (options_.relations)
      add_typed(src, dst, n, weights, edge_type);
    else
      add_untyped(src, dst, n, weights);
    added += n;
    next_number_[edge_type] += n;
  }

  void add_untyped(const int64_t* src, const int64_t* dst, size_t n, const float* weights) {
    const auto limit = static_cast<uint64_t>(limit_);
    for (size_t i = 0; i < n; ++i) {
      const auto s = static_cast<uint64_t>(src[i]),
                 d = static_cast<uint64_t>(dst[i]);  // negative ids become huge
      if (s >= limit || d >= limit) refuse(i, s >= limit ? src[i] : dst[i]);
      largest_ = std::max({largest_, src[i], dst[i]});
      if (s == d && !options_.keep_self_loops) {
        ++self_loops_dropped_[0];
        continue;
      }
      const float weight = Edge::kWeighted ? weights[i] : 1.0f;
      if (Edge::kWeighted && !(weight >= 0 && std::isfinite(weight))) refuse_weight(i, weight);
      const uint64_t number = next_number_[0] + i;
      sorter_->push(Edge::make(s, d, weight, number));
      if (options_.reverse && s != d) sorter_->push(Edge::make(d, s, weight, number));
    }
  }

  // Ids count within the types of the ends.
  void add_typed(const int64_t* src, const int64_t* dst, size_t n, const float* weights, size_t edge_type) {
    const Relations& relations = *options_.relations;
    const Relation& relation = relations[edge_type];
    const auto sources = static_cast<uint64_t>(relations.num_nodes(relation.source)),
               targets = static_cast<uint64_t>(relations.num_nodes(relation.target)),
               first_source = static_cast<uint64_t>(relations.first_node(relation.source)),
               first_list = static_cast<uint64_t>(relation.first_list);
    const bool drop_loops = !options_.keep_self_loops && relation.source == relation.target;
    for (size_t i = 0; i < n; ++i) {
      const auto s = static_cast<uint64_t>(src[i]), d = static_cast<uint64_t>(dst[i]);
      if (s >= sources) refuse_typed(i, edge_type, "source", src[i], relations.num_nodes(relation.source));
      if (d >= targets) refuse_typed(i, edge_type, "target", dst[i], relations.num_nodes(relation.target));
      if (drop_loops && s == d) {
        ++self_loops_dropped_[edge_type];
        continue;
      }
      const float weight = weights ? weights[i] : 1.0f;
      if (Edge::kWeighted && !(weight >= 0 && std::isfinite(weight))) refuse_weight(i, weight);
      sorter_->push(Edge::make(first_source + s, first_list + d, weight, next_number_[edge_type] + i));
    }
  }

  CscResult finish(const std::string& indptr_path, const std::string& indices_path, int64_t min_nodes,
                   const std::string& weights_path, const std::string& numbers_path) override {
    CscResult result;
    result.num_nodes = options_.num_nodes >= 0 ? options_.num_nodes : std::max(largest_ + 1, min_nodes);
    result.num_lists = options_.relations ? options_.relations->num_lists() : result.num_nodes;
    result.wide = sizeof(Index) == 8;
    ArrayFileWriter indptr(io_, *budget_, indptr_path, write_bytes_, true);
    ArrayFileWriter indices(io_, *budget_, indices_path, write_bytes_, true);
    std::optional<ArrayFileWriter> weights, numbers;
    if (Edge::kWeighted) weights.emplace(io_, *budget_, weights_path, write_bytes_, true);
    if (Edge::kNumbered) numbers.emplace(io_, *budget_, numbers_path, write_bytes_);
    indptr.push(int64_t{0});
    int64_t list = 0;         // whose end is not written yet
    uint64_t list_first = 0;  // edges before it
    uint64_t edges = 0;
    uint64_t max_degree = 0;                // of the edge type of the list
    int64_t end = end_of_lists(result, 0);  // of that edge type
    auto close_relations = [&] {            // all that end with the list before
      while (list == end && result.relations.size() < self_loops_dropped_.size()) {
        CscRelation done;
        done.self_loops_dropped = self_loops_dropped_[result.relations.size()];
        done.max_in_degree = std::exchange(max_degree, 0);
        done.num_edges = edges - result.num_edges;
        done.duplicates_dropped = duplicates_ - result.duplicates_dropped;
        result.num_edges = edges;
        result.duplicates_dropped = duplicates_;
        result.self_loops_dropped += done.self_loops_dropped;
        result.max_in_degree = std::max(result.max_in_degree, done.max_in_degree);
        result.relations.push_back(done);
        end = end_of_lists(result, result.relations.size());
      }
    };
    auto close_list = [&] {
      const uint64_t degree = edges - list_first;
      max_degree = std::max(max_degree, degree);
      result.nodes_without_in_edges += degree == 0;
      indptr.push(static_cast<int64_t>(edges));
      list_first = edges;
      if (++list == end) close_relations();
    };
    close_relations();
    Edge last{};
    bool any = false;
    sorter_->finish([&](const Edge* piece, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        const Edge edge = piece[i];
        if (any && edge.src() == last.src() && edge.dst() == last.dst() &&
            !keeps_duplicates(result.relations.size())) {
          ++duplicates_;
          continue;
        }
        last = edge;
        any = true;
        while (list < static_cast<int64_t>(edge.dst())) close_list();
        indices.push(static_cast<Index>(edge.src()));
        if (Edge::kWeighted && has_weights(result.relations.size())) weights->push(edge.weight_of());
        if (Edge::kNumbered && has_numbers(result.relations.size())) numbers->push(edge.number_of());
        ++edges;
      }
    });
    while (list < result.num_lists) close_list();
    result.sort = sorter_->stats();
    sorter_.reset();
    result.indptr = indptr.finish();
    result.indices = indices.finish();
    if (Edge::kWeighted) result.weights = weights->finish();
    if (Edge::kNumbered) result.numbers = numbers->finish();
    return result;
  }

 private:
  static constexpr size_t kFiles = 2 + Edge::kWeighted + Edge::kNumbered;  // written at the same time

  // The list behind those of edge type r.
  int64_t end_of_lists(const CscResult& result, size_t r) const {
    return options_.relations && r + 1 < options_.relations->size() ? (*options_.relations)[r + 1].first_list
                                                                    : result.num_lists;
  }
  bool has_weights(size_t r) const { return !options_.relations || (*options_.relations)[r].weighted; }
  bool has_numbers(size_t r) const { return Edge::kNumbered && options_.numbered[r]; }
  bool keeps_duplicates(size_t r) const {
    return has_numbers(r) ? options_.keep_numbered_duplicates : options_.keep_duplicates;
  }

  [[noreturn]] void refuse_typed(size_t i, size_t edge_type, const char* end, int64_t id,
                                 int64_t nodes) const {
    throw Error(ErrorKind::argument, "edge " + std::to_string(added + i) + ", of edge type " +
                                         std::to_string(edge_type) + ", names " + end + " " +
                                         std::to_string(id) + ", but there are " + std::to_string(nodes) +
                                         " nodes of that type: correct the edge list or the number of nodes");
  }
  [[noreturn]] void refuse_weight(size_t i, float weight) const {
    throw Error(ErrorKind::argument,
                "edge " + std::to_string(added + i) + " has weight " + std::to_string(weight) +
                    ": weights are finite numbers and not negative; leave such edges out, or "
                    "rename the weights (weight, edge_weight) and they are not imported");
  }
  [[noreturn]] void refuse(size_t i, int64_t id) const {
    const std::string which = "edge " + std::to_string(added + i) + " names node " + std::to_string(id);
    if (options_.num_nodes >= 0)
      throw Error(ErrorKind::argument, which + ", but there are " + std::to_string(options_.num_nodes) +
                                           " nodes (ids 0 to " + std::to_string(options_.num_nodes - 1) +
                                           "): correct the edge list or the number of nodes");
    if (id < 0) throw Error(ErrorKind::argument, which + ": ids must not be negative");
    throw Error(ErrorKind::argument, which + ": for ids of 2^32 and more the number of nodes must be given");
  }

  std::shared_ptr<BlockIo> io_;
  std::shared_ptr<Budget> budget_;
  CscOptions options_;
  int64_t limit_, largest_ = -1;
  std::vector<uint64_t> self_loops_dropped_;  // of each edge type
  std::vector<uint64_t> next_number_;         // of each edge type
  uint64_t duplicates_ = 0;
  size_t write_bytes_;
  std::optional<ExternalSorter<Edge>> sorter_;
};

}  // namespace

CscBuilder::CscBuilder(std::shared_ptr<BlockIo> io, std::shared_ptr<Budget> budget, CscOptions options,
                       WorkerPool* workers) {
  if (options.num_nodes < -1)
    throw Error(ErrorKind::argument, "number of nodes " + std::to_string(options.num_nodes) + " is negative");
  if (options.memory_bytes < kMinMemoryBytes)
    throw Error(ErrorKind::budget, "building the topology needs at least " + least_bytes(kMinMemoryBytes) +
                                       " of memory, " + exact_bytes(options.memory_bytes) +
                                       " were given: raise the memory budget");
  const auto make = [&]<class Edge, class Index>() {
    impl_ =
        std::make_unique<Sorted<Edge, Index>>(std::move(io), std::move(budget), std::move(options), workers);
  };
  if (options.relations) {
    const Relations& relations = *options.relations;
    if (options.reverse)
      throw Error(ErrorKind::argument,
                  "the reverse of an edge type is an edge type of its own: add it as one");
    options.num_nodes = relations.num_nodes();
    options.weighted = false;
    for (size_t r = 0; r < relations.size(); ++r) options.weighted |= relations[r].weighted;
    options.wide |= relations.num_lists() > kMaxPackedNodes;
  }
  const size_t edge_types = options.relations ? options.relations->size() : 1;
  if (!options.numbered.empty() && options.numbered.size() != edge_types)
    throw Error(ErrorKind::argument, "numbers are asked for of " + std::to_string(options.numbered.size()) +
                                         " edge types, there are " + std::to_string(edge_types));
  const bool wide = options.wide || options.num_nodes > kMaxPackedNodes, weighted = options.weighted;
  const bool numbered =
      std::find(options.numbered.begin(), options.numbered.end(), true) != options.numbered.end();
  const auto make_of = [&]<class Edge, class Index>() {
    if (weighted && numbered)
      make.operator()<Numbered<Weighted<Edge>>, Index>();
    else if (weighted)
      make.operator()<Weighted<Edge>, Index>();
    else if (numbered)
      make.operator()<Numbered<Edge>, Index>();
    else
      make.operator()<Edge, Index>();
  };
  if (wide)
    make_of.operator()<WideEdge, int64_t>();
  else
    make_of.operator()<PackedEdge, uint32_t>();
}

CscBuilder::~CscBuilder() = default;
void CscBuilder::add(const int64_t* src, const int64_t* dst, size_t n, const float* weights,
                     size_t edge_type) {
  impl_->add(src, dst, n, weights, edge_type);
}
uint64_t CscBuilder::edges_added() const { return impl_->added; }
CscResult CscBuilder::finish(const std::string& indptr_path, const std::string& indices_path,
                             int64_t min_nodes, const std::string& weights_path,
                             const std::string& numbers_path) {
  return impl_->finish(indptr_path, indices_path, min_nodes, weights_path, numbers_path);
}

}  // namespace outcrop
