#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "bindings.h"
#include "graph/csc.h"
#include "graph/generate.h"
#include "graph/permutation.h"
#include "graph/permute.h"

namespace outcrop {
namespace {

using Int64s = Array1<int64_t>;

// A view of bytes as T; the memory must be aligned for T.
template <class T>
T* view(Bytes bytes, size_t count) {
  check_length("output", bytes.size(), count * sizeof(T));
  if (reinterpret_cast<uintptr_t>(bytes.data()) % alignof(T))
    throw Error(ErrorKind::argument, "output is not aligned");
  return reinterpret_cast<T*>(bytes.data());
}

FeatureType feature_type(const std::string& dtype) {
  if (dtype == "float32") return FeatureType::float32;
  if (dtype == "float16") return FeatureType::float16;
  if (dtype == "bfloat16") return FeatureType::bfloat16;
  if (dtype == "int8") return FeatureType::int8;
  throw Error(ErrorKind::argument,
              "features cannot be generated as " + dtype + "; use float32, float16, bfloat16 or int8");
}

void bind_csc(nb::module_& m) {
  nb::class_<ArrayFile>(m, "ArrayFile")
      .def_ro("data_bytes", &ArrayFile::data_bytes)
      .def_ro("file_bytes", &ArrayFile::file_bytes)
      .def_ro("crc32c", &ArrayFile::crc32c)
      .def_ro("page_crc", &ArrayFile::page_crc);
  nb::class_<SortStats>(m, "SortStats")
      .def_ro("records", &SortStats::records)
      .def_ro("runs", &SortStats::runs)
      .def_ro("merge_passes", &SortStats::merge_passes)
      .def_ro("spilled_bytes", &SortStats::spilled_bytes);
  nb::class_<CscRelation>(m, "CscRelation", "What became of the edges of an edge type.")
      .def_ro("num_edges", &CscRelation::num_edges)
      .def_ro("duplicates_dropped", &CscRelation::duplicates_dropped)
      .def_ro("self_loops_dropped", &CscRelation::self_loops_dropped)
      .def_ro("max_in_degree", &CscRelation::max_in_degree);
  nb::class_<CscResult>(m, "CscResult")
      .def_ro("num_nodes", &CscResult::num_nodes)
      .def_ro("num_lists", &CscResult::num_lists)
      .def_ro("num_edges", &CscResult::num_edges)
      .def_ro("duplicates_dropped", &CscResult::duplicates_dropped)
      .def_ro("self_loops_dropped", &CscResult::self_loops_dropped)
      .def_ro("max_in_degree", &CscResult::max_in_degree)
      .def_ro("nodes_without_in_edges", &CscResult::nodes_without_in_edges)
      .def_ro("wide", &CscResult::wide)
      .def_ro("relations", &CscResult::relations)
      .def_ro("indptr", &CscResult::indptr)
      .def_ro("indices", &CscResult::indices)
      .def_ro("weights", &CscResult::weights)
      .def_ro("numbers", &CscResult::numbers)
      .def_ro("sort", &CscResult::sort);
  nb::class_<CscBuilder>(m, "CscBuilder")
      .def(
          "__init__",
          [](CscBuilder* self, std::shared_ptr<BlockIo> io, std::shared_ptr<Budget> budget,
             WorkerPool& workers, const std::string& scratch_folder, int64_t num_nodes, uint64_t memory_bytes,
             bool keep_duplicates, bool keep_self_loops, bool reverse, bool wide, bool weighted,
             std::optional<std::shared_ptr<const Relations>> relations, std::vector<bool> numbered,
             bool keep_numbered_duplicates) {
            new (self) CscBuilder(
                std::move(io), std::move(budget),
                {scratch_folder, num_nodes, memory_bytes, keep_duplicates, keep_self_loops, reverse, wide,
                 weighted, std::move(numbered), keep_numbered_duplicates, relations.value_or(nullptr)},
                &workers);
          },
          "io"_a, "budget"_a, "workers"_a, "scratch_folder"_a, "num_nodes"_a = -1,
          "memory_bytes"_a = 256 << 20, "keep_duplicates"_a = false, "keep_self_loops"_a = true,
          "reverse"_a = false, "wide"_a = false, "weighted"_a = false, "relations"_a.none() = nb::none(),
          "numbered"_a = std::vector<bool>(), "keep_numbered_duplicates"_a = true, nb::keep_alive<1, 4>())
      .def_ro_static("MIN_MEMORY_BYTES", &CscBuilder::kMinMemoryBytes)
      .def(
          "add",
          [](CscBuilder& b, Ids src, Ids dst, std::optional<Array1<const float>> weights, size_t edge_type) {
            check_length("dst", dst.size(), src.size());
            if (weights) check_length("weights", weights->size(), src.size());
            nb::gil_scoped_release release;
            b.add(src.data(), dst.data(), src.size(), weights ? weights->data() : nullptr, edge_type);
          },
          "src"_a, "dst"_a, "weights"_a.none() = nb::none(), nb::kw_only(), "edge_type"_a = 0,
          "Adds edges src[i] -> dst[i] of an edge type, int64 [n] each, with float32 weights [n] where asked "
          "for.")
      .def_prop_ro("edges_added", &CscBuilder::edges_added)
      .def("finish", &CscBuilder::finish, "indptr_path"_a, "indices_path"_a, "min_nodes"_a = 0,
           "weights_path"_a = "", "numbers_path"_a = "", nb::call_guard<nb::gil_scoped_release>());
}

void bind_permute(nb::module_& m) {
  nb::class_<PermuteStats>(m, "PermuteStats")
      .def_ro("buckets", &PermuteStats::buckets)
      .def_ro("sort", &PermuteStats::sort);
  nb::class_<RowPermuter>(m, "RowPermuter",
                          "Puts rows in another order, out of core: row i of the result is row numbers[i].")
      .def(
          "__init__",
          [](RowPermuter* self, std::shared_ptr<BlockIo> io, Budget& budget, WorkerPool& workers,
             const std::string& scratch_folder, const std::string& numbers_path, uint64_t first,
             uint64_t count, uint64_t num_rows, uint64_t row_bytes, uint64_t slots, uint64_t memory_bytes) {
            new (self) RowPermuter(std::move(io), budget,
                                   {scratch_folder, numbers_path, first, count, num_rows, row_bytes, slots,
                                    memory_bytes, &workers});
          },
          "io"_a, "budget"_a, "workers"_a, nb::kw_only(), "scratch_folder"_a, "numbers_path"_a, "first"_a,
          "count"_a, "num_rows"_a, "row_bytes"_a, "slots"_a, "memory_bytes"_a, nb::keep_alive<1, 4>(),
          nb::call_guard<nb::gil_scoped_release>())
      .def_static("least_memory", &RowPermuter::least_memory, "count"_a, "row_bytes"_a,
                  "Bytes with which so many rows can be put in order.")
      .def_static("most_memory", &RowPermuter::most_memory, "count"_a, "row_bytes"_a,
                  "Bytes more than which are of no use.")
      .def(
          "add",
          [](RowPermuter& p, ConstBytes rows, size_t count) {
            check_length("rows", rows.size(), count * p.row_bytes());
            nb::gil_scoped_release release;
            p.add(reinterpret_cast<const std::byte*>(rows.data()), count);
          },
          "rows"_a, "count"_a, "The bytes of the next rows of the source.")
      .def("finish", &RowPermuter::finish, "path"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("stats", &RowPermuter::stats);
}

void bind_generate(nb::module_& m) {
  nb::class_<Permutation>(m, "Permutation", "Keyed random bijection of [0, n).")
      .def(nb::init<uint64_t, uint64_t>(), "key"_a, "n"_a)
      .def(
          "forward",
          [](const Permutation& p, int64_t first, Int64s out) {
            if (first < 0 || static_cast<uint64_t>(first) + out.size() > p.size())
              throw Error(ErrorKind::argument, "positions leave [0, " + std::to_string(p.size()) + ")");
            nb::gil_scoped_release release;
            for (size_t i = 0; i < out.size(); ++i)
              out.data()[i] = static_cast<int64_t>(p.forward(first + i));
          },
          "first"_a, "out"_a, "out[i] = image of first + i.")
      .def(
          "map",
          [](const Permutation& p, Ids ids, Int64s out, bool inverse, WorkerPool& workers) {
            check_length("out", out.size(), ids.size());
            for (size_t i = 0; i < ids.size(); ++i)
              if (static_cast<uint64_t>(ids.data()[i]) >= p.size())
                throw Error(ErrorKind::argument, "id " + std::to_string(ids.data()[i]) + " is not in [0, " +
                                                     std::to_string(p.size()) + ")");
            nb::gil_scoped_release release;
            workers.split(ids.size(), 4096, [&](size_t begin, size_t end) {
              for (size_t i = begin; i < end; ++i) {
                const auto id = static_cast<uint64_t>(ids.data()[i]);
                out.data()[i] = static_cast<int64_t>(inverse ? p.inverse(id) : p.forward(id));
              }
            });
          },
          "ids"_a, "out"_a, "inverse"_a, "workers"_a, "out[i] = image, or with inverse original, of ids[i].");
  nb::class_<GraphModel>(m, "GraphModel")
      .def(nb::init<>())
      .def_rw("rmat", &GraphModel::rmat)
      .def_rw("num_nodes", &GraphModel::num_nodes)
      .def_rw("num_edges", &GraphModel::num_edges)
      .def_rw("num_classes", &GraphModel::num_classes)
      .def_rw("feature_dim", &GraphModel::feature_dim)
      .def_rw("homophily", &GraphModel::homophily)
      .def_rw("skew", &GraphModel::skew)
      .def_rw("a", &GraphModel::a)
      .def_rw("b", &GraphModel::b)
      .def_rw("c", &GraphModel::c)
      .def_rw("signal", &GraphModel::signal)
      .def_rw("seed", &GraphModel::seed);
  nb::class_<GraphGenerator>(m, "GraphGenerator")
      .def(
          "__init__",
          [](GraphGenerator* self, Budget& budget, const GraphModel& model) {
            new (self) GraphGenerator(budget, model);
          },
          "budget"_a, "model"_a)
      .def(
          "degrees",
          [](const GraphGenerator& g, int64_t first, Int64s out, WorkerPool& pool) {
            nb::gil_scoped_release release;
            g.degrees(first, static_cast<int64_t>(out.size()), out.data(), pool);
          },
          "first"_a, "out"_a, "workers"_a)
      .def(
          "labels",
          [](const GraphGenerator& g, int64_t first, Int64s out, WorkerPool& pool) {
            nb::gil_scoped_release release;
            g.labels(first, static_cast<int64_t>(out.size()), out.data(), pool);
          },
          "first"_a, "out"_a, "workers"_a)
      .def(
          "sources",
          [](const GraphGenerator& g, int64_t first, Ids offsets, Bytes out, bool wide, WorkerPool& pool) {
            if (offsets.size() == 0 || offsets.data()[0] != 0 ||
                !std::is_sorted(offsets.data(), offsets.data() + offsets.size()))
              throw Error(ErrorKind::argument, "offsets must start with 0 and never fall");
            const auto n = static_cast<int64_t>(offsets.size()) - 1;
            const auto edges = static_cast<size_t>(offsets.data()[n]);
            auto* out32 = wide ? nullptr : view<uint32_t>(out, edges);
            auto* out64 = wide ? view<int64_t>(out, edges) : nullptr;
            nb::gil_scoped_release release;
            if (wide)
              g.sources(first, n, offsets.data(), out64, pool);
            else
              g.sources(first, n, offsets.data(), out32, pool);
          },
          "first"_a, "offsets"_a, "out"_a, "wide"_a, "workers"_a)
      .def(
          "features",
          [](const GraphGenerator& g, int64_t first, int64_t rows, const std::string& dtype, Bytes out,
             WorkerPool& pool) {
            const FeatureType type = feature_type(dtype);
            check_length("output", out.size(),
                         static_cast<size_t>(rows) * g.model().feature_dim * feature_bytes(type));
            nb::gil_scoped_release release;
            g.features(first, rows, type, out.data(), pool);
          },
          "first"_a, "rows"_a, "dtype"_a, "out"_a, "workers"_a);
}

}  // namespace

void bind_graph(nb::module_& m) {
  bind_csc(m);
  bind_permute(m);
  bind_generate(m);
}

}  // namespace outcrop
