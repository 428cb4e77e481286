// Buckets of edges, and rows of embedding tables (core/embed).
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>

#include <cstring>
#include <optional>
#include <utility>

#include "bindings.h"
#include "embed/bucket_sort.h"
#include "embed/row_update.h"

namespace outcrop {
namespace {

using Floats = Array1<const float>;
using Table = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

RowTable row_table(const Table& table, size_t width) {
  if (width > table.shape(1))
    throw Error(ErrorKind::argument, "vectors of " + std::to_string(width) + " floats are longer than rows");
  return {table.data(), table.shape(0), table.shape(1), width};
}

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
}

}  // namespace outcrop
