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
  virtual void add(const int64_t* src, const int64_t* dst, size_t n, const float* weights) = 0;
  virtual CscResult finish(const std::string& indptr_path, const std::string& indices_path, int64_t min_nodes,
                           const std::string& weights_path) = 0;
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
        write_bytes_(align_down(std::min(kMaxWriteBufferBytes, options_.memory_bytes / 8), 2 * kPageBytes)),
        sorter_(
            std::in_place, io_, *budget_,
            SortOptions{options_.scratch_folder, options_.memory_bytes - kFiles * write_bytes_, workers}) {}

  void add(const int64_t* src, const int64_t* dst, size_t n, const float* weights) override {
    const auto limit = static_cast<uint64_t>(limit_);
    if (Edge::kWeighted != (weights != nullptr))
      throw Error(ErrorKind::argument,
                  Edge::kWeighted ? "edge weights are missing" : "edge weights are not expected");
    for (size_t i = 0; i < n; ++i) {
      const auto s = static_cast<uint64_t>(src[i]),
                 d = static_cast<uint64_t>(dst[i]);  // negative ids become huge
      if (s >= limit || d >= limit) refuse(i, s >= limit ? src[i] : dst[i]);
      largest_ = std::max({largest_, src[i], dst[i]});
      if (s == d && !options_.keep_self_loops) {
        ++self_loops_dropped_;
        continue;
      }
      const float weight = Edge::kWeighted ? weights[i] : 1.0f;
      if (Edge::kWeighted && !(weight >= 0 && std::isfinite(weight))) refuse_weight(i, weight);
      sorter_->push(Edge::make(s, d, weight));
      if (options_.reverse && s != d) sorter_->push(Edge::make(d, s, weight));
    }
    added += n;
  }

  CscResult finish(const std::string& indptr_path, const std::string& indices_path, int64_t min_nodes,
                   const std::string& weights_path) override {
    CscResult result;
    result.num_nodes = options_.num_nodes >= 0 ? options_.num_nodes : std::max(largest_ + 1, min_nodes);
    result.wide = sizeof(Index) == 8;
    result.self_loops_dropped = self_loops_dropped_;
    ArrayFileWriter indptr(io_, *budget_, indptr_path, write_bytes_, true);
    ArrayFileWriter indices(io_, *budget_, indices_path, write_bytes_, true);
    std::optional<ArrayFileWriter> weights;
    if (Edge::kWeighted) weights.emplace(io_, *budget_, weights_path, write_bytes_, true);
    indptr.push(int64_t{0});
    int64_t node = 0;         // whose end is not written yet
    uint64_t node_first = 0;  // edges before it
    uint64_t edges = 0;
    auto close_node = [&] {
      const uint64_t degree = edges - node_first;
      result.max_in_degree = std::max(result.max_in_degree, degree);
      result.nodes_without_in_edges += degree == 0;
      indptr.push(static_cast<int64_t>(edges));
      node_first = edges;
      ++node;
    };
    Edge last{};
    bool any = false;
    sorter_->finish([&](const Edge* piece, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        const Edge edge = piece[i];
        if (!options_.keep_duplicates && any && edge.src() == last.src() && edge.dst() == last.dst()) {
          ++result.duplicates_dropped;
          continue;
        }
        last = edge;
        any = true;
        while (node < static_cast<int64_t>(edge.dst())) close_node();
        indices.push(static_cast<Index>(edge.src()));
        if (Edge::kWeighted) weights->push(edge.weight_of());
        ++edges;
      }
    });
    while (node < result.num_nodes) close_node();
    result.num_edges = edges;
    result.sort = sorter_->stats();
    sorter_.reset();
    result.indptr = indptr.finish();
    result.indices = indices.finish();
    if (Edge::kWeighted) result.weights = weights->finish();
    return result;
  }

 private:
  static constexpr size_t kFiles = Edge::kWeighted ? 3 : 2;  // written at the same time

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
  uint64_t self_loops_dropped_ = 0;
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
  const bool wide = options.wide || options.num_nodes > kMaxPackedNodes;
  if (wide && options.weighted)
    make.operator()<Weighted<WideEdge>, int64_t>();
  else if (wide)
    make.operator()<WideEdge, int64_t>();
  else if (options.weighted)
    make.operator()<Weighted<PackedEdge>, uint32_t>();
  else
    make.operator()<PackedEdge, uint32_t>();
}

CscBuilder::~CscBuilder() = default;
void CscBuilder::add(const int64_t* src, const int64_t* dst, size_t n, const float* weights) {
  impl_->add(src, dst, n, weights);
}
uint64_t CscBuilder::edges_added() const { return impl_->added; }
CscResult CscBuilder::finish(const std::string& indptr_path, const std::string& indices_path,
                             int64_t min_nodes, const std::string& weights_path) {
  return impl_->finish(indptr_path, indices_path, min_nodes, weights_path);
}

}  // namespace outcrop
