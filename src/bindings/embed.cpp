// Buckets of edges, and rows of embedding tables (core/embed).
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "bindings.h"
#include "embed/bucket_sort.h"
#include "embed/compare.h"
#include "embed/queries.h"
#include "embed/row_update.h"
#include "embed/slab_swap.h"
#include "embed/softmax.h"

namespace outcrop {
namespace {

using Floats = Array1<const float>;
using Table = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

EmbeddingTable row_table(const Table& table, size_t width) {
  if (width > table.shape(1))
    throw Error(ErrorKind::argument, "vectors of " + std::to_string(width) + " floats are longer than rows");
  return {table.data(), table.shape(0), table.shape(1), width};
}

NegativeScores negative_scores(const Table& scores) {
  return {scores.data(), scores.shape(0), scores.shape(1)};
}

using ConstTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OptionalTable = std::optional<ConstTable>;

EdgeVectors edge_vectors(ProductKind kind, const ConstTable& source, const ConstTable& target,
                         const OptionalTable& relation, const OptionalTable& inverse) {
  const auto check = [&](const ConstTable& t) {
    if (t.shape(0) != source.shape(0) || t.shape(1) != source.shape(1))
      throw Error(ErrorKind::argument, "vectors of the ends and relations of edges differ in shape");
    return t.data();
  };
  if ((kind == ProductKind::dot) == relation.has_value() || (inverse && !relation) ||
      (kind == ProductKind::complex && source.shape(1) % 2))
    throw Error(ErrorKind::argument, "this score has no such relations, or needs an even width");
  return {source.data(),
          check(target),
          relation ? check(*relation) : nullptr,
          inverse ? check(*inverse) : nullptr,
          source.shape(0),
          source.shape(1)};
}

void check_queries(const EdgeVectors& e, size_t rows, size_t width, size_t scores) {
  if (rows != 2 * e.n || width != e.width || scores != 2 * e.n)
    throw Error(ErrorKind::argument, "queries are not [2 n, width], or their scores not [2 n]");
}

// Keeps the memory of a swap alive.
struct PySlabSwap {
  std::vector<Bytes> slabs;
  std::unique_ptr<SlabSwap> swap;
};

// Records of `bytes` each to a Python callback, as uint32 [n, 4].
void finish(BucketSorter& sorter, const nb::callable& sink) {
  sorter.finish([&](const EdgeRecord* records, size_t n) {
    nb::gil_scoped_acquire acquire;
    sink(nb::ndarray<nb::numpy, const uint32_t, nb::ndim<2>>(records, {n, 4}, nb::handle()));
  });
}

}  // namespace

void bind_embed(nb::module_& m) {
  nb::class_<BucketSorter>(m, "BucketSorter")
      .def(
          "__init__",
          [](BucketSorter* self, std::shared_ptr<BlockIo> io, Budget& budget, WorkerPool& workers,
             const std::string& scratch_folder, uint64_t memory_bytes, uint64_t nodes, uint64_t partitions,
             uint64_t relations) {
            SortOptions options;
            options.scratch_folder = scratch_folder;
            options.memory_bytes = memory_bytes;
            options.workers = &workers;
            new (self) BucketSorter(std::move(io), budget, std::move(options), nodes, partitions, relations);
          },
          "io"_a, "budget"_a, "workers"_a, "scratch_folder"_a, "memory_bytes"_a, "nodes"_a, "partitions"_a,
          "relations"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def_ro_static("MIN_MEMORY_BYTES", &BucketSorter::kMinMemoryBytes)
      .def(
          "add",
          [](BucketSorter& s, Ids source, std::optional<Ids> relation, Ids target) {
            check_length("target", target.size(), source.size());
            if (relation) check_length("relation", relation->size(), source.size());
            nb::gil_scoped_release release;
            s.add(source.data(), relation ? relation->data() : nullptr, target.data(), source.size());
          },
          "source"_a, "relation"_a.none(), "target"_a,
          "Adds edges source[i] -> target[i], int64 [n] each, with relations where there are some.")
      .def(
          "finish",
          [](BucketSorter& s, nb::callable sink) {
            nb::gil_scoped_release release;
            finish(s, sink);
          },
          "sink"_a, "Calls sink(uint32 [n, 4]) with (bucket, source, relation, target) in order of buckets.")
      .def_prop_ro("counts", &BucketSorter::counts)
      .def_prop_ro("spilled_bytes", [](const BucketSorter& s) { return s.stats().spilled_bytes; });

  nb::class_<PySlabSwap>(m, "SlabSwap", "Slabs written, then others read over them, in the background.")
      .def(
          "__init__",
          [](PySlabSwap* self, std::shared_ptr<BlockIo> io, FileId file, std::vector<Bytes> slabs,
             const std::vector<std::optional<uint64_t>>& write_offsets,
             const std::vector<std::optional<uint64_t>>& read_offsets) {
            const auto place = [&](std::optional<uint64_t> offset) {
              return offset ? std::optional(SlabPlace{file, *offset}) : std::nullopt;
            };
            std::vector<SlabMove> moves;
            for (size_t i = 0; i < slabs.size(); ++i) {
              moves.push_back({{reinterpret_cast<std::byte*>(slabs[i].data()), slabs[i].size()},
                               place(write_offsets.at(i)),
                               place(read_offsets.at(i))});
            }
            auto swap = std::make_unique<SlabSwap>(std::move(io), std::move(moves));
            new (self) PySlabSwap{std::move(slabs), std::move(swap)};
          },
          "io"_a, "file"_a, "slabs"_a, "write_offsets"_a, "read_offsets"_a)
      .def(
          "wait",
          [](PySlabSwap& s) {
            nb::gil_scoped_release release;
            s.swap->wait();
          },
          "Blocks until all is done; raises IoError, each time, if anything failed.")
      .def_prop_ro("done", [](const PySlabSwap& s) { return s.swap->done(); })
      .def_prop_ro(
          "crcs",
          [](const PySlabSwap& s) {
            std::vector<std::pair<uint32_t, uint32_t>> crcs;
            for (const SlabMove& move : s.swap->moves()) crcs.emplace_back(move.written_crc, move.read_crc);
            return crcs;
          },
          "Of each slab, (written, read), after wait().");

  nb::enum_<StepKind>(m, "StepKind")
      .value("sgd", StepKind::sgd)
      .value("adagrad", StepKind::adagrad)
      .value("adam", StepKind::adam);
  nb::class_<StepOptions>(m, "StepOptions")
      .def(nb::init<>())
      .def_rw("kind", &StepOptions::kind)
      .def_rw("rate", &StepOptions::rate)
      .def_rw("epsilon", &StepOptions::epsilon)
      .def_rw("beta1", &StepOptions::beta1)
      .def_rw("beta2", &StepOptions::beta2)
      .def_rw("step", &StepOptions::step);
  m.def("state_width", &state_width, "kind"_a, "width"_a, "Floats of state that a row of `width` needs.");
  m.def(
      "start_rows",
      [](const Table& table, size_t width, Ids names, float bound, uint64_t key, WorkerPool& workers) {
        nb::gil_scoped_release release;
        start_rows(row_table(table, width), names.data(), names.size(), bound, key, workers);
      },
      "table"_a, "width"_a, "names"_a, "bound"_a, "key"_a, "workers"_a,
      "Vectors of the first rows: uniform in [-bound, bound), keyed by (key, names[i]) alone; the state is "
      "0.");
  m.def(
      "take_rows",
      [](const Table& table, size_t width, Ids ids, Table out, WorkerPool& workers) {
        if (out.shape(0) != ids.size() || out.shape(1) != width)
          throw Error(ErrorKind::argument, "out is not [len(ids), width]");
        nb::gil_scoped_release release;
        take_rows(row_table(table, width), ids.data(), ids.size(), out.data(), workers);
      },
      "table"_a, "width"_a, "ids"_a, "out"_a, "workers"_a, "out[:] = table[ids, :width]");
  m.def(
      "step_rows",
      [](const Table& table, size_t width, Ids ids, Table gradients, const StepOptions& options,
         WorkerPool& workers) {
        if (gradients.shape(0) != ids.size() || gradients.shape(1) != width)
          throw Error(ErrorKind::argument, "gradients are not [len(ids), width]");
        nb::gil_scoped_release release;
        return step_rows(row_table(table, width), ids.data(), gradients.data(), ids.size(), options, workers);
      },
      "table"_a, "width"_a, "ids"_a, "gradients"_a, "options"_a, "workers"_a,
      "One step for each different row in `ids`, with the sum of its gradients; how many rows those are.");

  nb::enum_<ProductKind>(m, "ProductKind")
      .value("dot", ProductKind::dot)
      .value("real", ProductKind::real)
      .value("complex", ProductKind::complex);
  m.def(
      "make_queries",
      [](ProductKind kind, ConstTable source, ConstTable target, OptionalTable relation,
         OptionalTable inverse, Table queries, Array1<float> scores, WorkerPool& workers) {
        const EdgeVectors e = edge_vectors(kind, source, target, relation, inverse);
        check_queries(e, queries.shape(0), queries.shape(1), scores.size());
        nb::gil_scoped_release release;
        make_queries(kind, e, queries.data(), scores.data(), workers);
      },
      "kind"_a, "source"_a, "target"_a, "relation"_a.none(), "inverse"_a.none(), "queries"_a, "scores"_a,
      "workers"_a, "Queries of edges for both of their ends, and the scores of the edges.");
  m.def(
      "query_gradients",
      [](ProductKind kind, ConstTable source, ConstTable target, OptionalTable relation,
         OptionalTable inverse, ConstTable to_queries, Floats to_scores, Table to_source, Table to_target,
         std::optional<Table> to_relation, std::optional<Table> to_inverse, WorkerPool& workers) {
        const EdgeVectors e = edge_vectors(kind, source, target, relation, inverse);
        check_queries(e, to_queries.shape(0), to_queries.shape(1), to_scores.size());
        const auto out = [&](const Table& t) {
          if (t.shape(0) != e.n || t.shape(1) != e.width)
            throw Error(ErrorKind::argument, "gradients of edges differ in shape from their vectors");
          return t.data();
        };
        if (relation.has_value() != to_relation.has_value() || inverse.has_value() != to_inverse.has_value())
          throw Error(ErrorKind::argument, "gradients of relations are missing or have nothing to belong to");
        const EdgeGradients gradients{out(to_source), out(to_target),
                                      to_relation ? out(*to_relation) : nullptr,
                                      to_inverse ? out(*to_inverse) : nullptr};
        nb::gil_scoped_release release;
        query_gradients(kind, e, to_queries.data(), to_scores.data(), gradients, workers);
      },
      "kind"_a, "source"_a, "target"_a, "relation"_a.none(), "inverse"_a.none(), "to_queries"_a,
      "to_scores"_a, "to_source"_a, "to_target"_a, "to_relation"_a.none(), "to_inverse"_a.none(), "workers"_a,
      "Fills the gradients that come back through make_queries.");
  m.def(
      "add_size_gradients",
      [](ConstTable x, bool complex, float cubes, float squares, Table out, WorkerPool& workers) {
        if (x.shape(0) != out.shape(0) || x.shape(1) != out.shape(1) || (complex && x.shape(1) % 2))
          throw Error(ErrorKind::argument,
                      "gradients differ in shape from their vectors, or the width is odd");
        nb::gil_scoped_release release;
        add_size_gradients(x.data(), x.shape(0), x.shape(1), complex, {cubes, squares}, out.data(), workers);
      },
      "x"_a, "complex"_a, "cubes"_a, "squares"_a, "out"_a, "workers"_a,
      "Adds the gradient of cubes * sum |x|^3 + squares * sum x^2 to `out`.");

  m.def(
      "leave_out",
      [](const Table& scores, Ids candidates, Ids wanted, WorkerPool& workers) {
        check_length("candidates", candidates.size(), scores.shape(1));
        check_length("wanted", wanted.size(), scores.shape(0));
        nb::gil_scoped_release release;
        leave_out(negative_scores(scores), candidates.data(), wanted.data(), workers);
      },
      "scores"_a, "candidates"_a, "wanted"_a, "workers"_a,
      "scores[wanted[:, None] == candidates] = -inf; float32 [n, k], int64 [k], int64 [n].");
  m.def(
      "softmax",
      [](const Table& scores, Floats positive, Array1<float> to_positive, WorkerPool& workers) {
        check_length("positive", positive.size(), scores.shape(0));
        check_length("to_positive", to_positive.size(), scores.shape(0));
        nb::gil_scoped_release release;
        return softmax(negative_scores(scores), positive.data(), to_positive.data(), workers);
      },
      "scores"_a, "positive"_a, "to_positive"_a, "workers"_a,
      "Sum of log(exp(positive) + exp(scores).sum(1)) - positive; scores become their gradient.");

  nb::class_<SoftmaxCompare>(
      m, "SoftmaxCompare",
      "Scores of queries against the candidates of their chunk, their softmax loss and all gradients.")
      .def(
          "__init__",
          [](SoftmaxCompare* self, WorkerPool& workers, size_t edges, size_t chunk, size_t candidates,
             size_t width, size_t slots) {
            if (chunk == 0 || slots == 0)
              throw Error(ErrorKind::argument, "a chunk has no edges, or no task may run");
            new (self) SoftmaxCompare({edges, chunk, candidates, width}, slots, workers);
          },
          "workers"_a, "edges"_a, "chunk"_a, "candidates"_a, "width"_a, "slots"_a, nb::keep_alive<1, 2>())
      .def_static(
          "bytes",
          [](size_t edges, size_t chunk, size_t candidates, size_t width, size_t slots) {
            if (chunk == 0) throw Error(ErrorKind::argument, "a chunk has no edges");
            return SoftmaxCompare::bytes({edges, chunk, candidates, width}, slots);
          },
          "edges"_a, "chunk"_a, "candidates"_a, "width"_a, "slots"_a, "Bytes that one holds.")
      .def(
          "run",
          [](SoftmaxCompare& self, const ConstTable& queries, Floats positive, const ConstTable& candidates,
             Ids ids, Ids wanted, Table to_queries, Array1<float> to_positive, Table to_candidates) {
            const CompareShape& shape = self.shape();
            const size_t n = queries.shape(0) / 2, chunks = (n + shape.chunk - 1) / shape.chunk;
            const auto check = [&](const auto& table, size_t rows, const char* name) {
              if (table.shape(0) != rows || table.shape(1) != shape.width)
                throw Error(ErrorKind::argument, std::string(name) + " have another shape");
            };
            check(queries, 2 * n, "queries");
            check(to_queries, 2 * n, "gradients of queries");
            check(to_candidates, candidates.shape(0), "gradients of candidates");
            check(candidates, chunks == 0 ? 0 : candidates.shape(0) / chunks * chunks, "candidates");
            check_length("positive", positive.size(), 2 * n);
            check_length("to_positive", to_positive.size(), 2 * n);
            check_length("wanted", wanted.size(), 2 * n);
            check_length("ids", ids.size(), candidates.shape(0));
            const CompareBatch batch{n,
                                     chunks == 0 ? 0 : candidates.shape(0) / chunks,
                                     queries.data(),
                                     positive.data(),
                                     candidates.data(),
                                     ids.data(),
                                     wanted.data(),
                                     to_queries.data(),
                                     to_positive.data(),
                                     to_candidates.data()};
            nb::gil_scoped_release release;
            return self.run(batch);
          },
          "queries"_a, "positive"_a, "candidates"_a, "ids"_a, "wanted"_a, "to_queries"_a, "to_positive"_a,
          "to_candidates"_a,
          "Sum of the losses; writes the gradients of queries and positive, adds those of candidates.");
}

}  // namespace outcrop
