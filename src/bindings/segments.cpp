#include "base/parallel.h"
#include "bindings.h"
#include "pack/segment.h"
#include "pack/sketch.h"

namespace outcrop {
namespace {

template <class T>
std::span<const T> span_of(const Array1<const T>& a) {
  return {a.data(), a.size()};
}

template <class Id>
void bind_per_batch(nb::class_<SegmentTable>& c) {
  using Nodes = Array1<const Id>;
  c.def(
       "count", [](SegmentTable& t, Nodes ids) { t.count(span_of(ids)); }, "ids"_a,
       nb::call_guard<nb::gil_scoped_release>())
      .def(
          "sign", [](SegmentTable& t, int64_t batch, Nodes ids) { t.sign(batch, span_of(ids)); }, "batch"_a,
          "ids"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "mark",
          [](SegmentTable& t, Nodes ids, int64_t row_bytes) { return t.mark(span_of(ids), row_bytes); },
          "ids"_a, "row_bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "clear", [](SegmentTable& t, Nodes ids) { t.clear(span_of(ids)); }, "ids"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "look_up",
          [](const SegmentTable& t, Nodes ids, Array1<int32_t> rows) {
            if (rows.size() != ids.size()) throw Error(ErrorKind::argument, "ids and rows differ in length");
            nb::gil_scoped_release release;
            t.look_up(span_of(ids), rows.data());
          },
          "ids"_a, "rows"_a)
      .def(
          "assign",
          [](SegmentTable& t, Nodes ids, Array1<const int32_t> rows) {
            t.assign(span_of(ids), span_of(rows));
          },
          "ids"_a, "rows"_a, nb::call_guard<nb::gil_scoped_release>());
}

template <class Id>
void bind_thin(nb::class_<LayoutSketch>& c) {
  c.def(
      "thin",
      [](const LayoutSketch& sketch, Array1<const Id> ids, Array1<int64_t> out) {
        if (out.size() < ids.size()) throw Error(ErrorKind::argument, "the output is shorter than the ids");
        nb::gil_scoped_release release;
        return sketch.thin(span_of(ids), out.data());
      },
      "ids"_a, "out"_a);
}

}  // namespace

void bind_segments(nb::module_& m) {
  nb::class_<SharedReads>(m, "SharedReads", "What one batch reads of the shared rows of a range of nodes.")
      .def_ro("rows", &SharedReads::rows)
      .def_ro("pages", &SharedReads::pages)
      .def_ro("runs", &SharedReads::runs)
      .def_ro("first_page", &SharedReads::first_page)
      .def_ro("last_page", &SharedReads::last_page);
  nb::class_<SegmentTable> table(m, "SegmentTable",
                                 "Shared rows of a segment and their order (pack/segment.h).");
  table.def(nb::init<std::shared_ptr<Budget>, int64_t>(), "budget"_a, "max_nodes"_a)
      .def_static("bytes_per_node", &SegmentTable::bytes_per_node)
      .def(
          "begin_range",
          [](SegmentTable& t, int64_t first, int64_t count, Ids hot) {
            t.begin_range(first, count, span_of(hot));
          },
          "first"_a, "count"_a, "hot"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("begin_segment", &SegmentTable::begin_segment, "batches"_a, "threshold"_a, "seed"_a, "row"_a)
      .def("order", &SegmentTable::order, "workers"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "shared",
          [](const SegmentTable& t, int64_t begin, Array1<int64_t> out) {
            t.shared(begin, {out.data(), out.size()});
          },
          "begin"_a, "out"_a, "out[i] = node of the shared row begin + i, in the order of the cache.")
      .def("finish_batch", &SegmentTable::finish_batch, nb::call_guard<nb::gil_scoped_release>());
  bind_per_batch<int32_t>(table);
  bind_per_batch<int64_t>(table);

  nb::class_<LayoutSketch> sketch(m, "LayoutSketch",
                                  "Which batches want a hashed share of the nodes (pack/sketch.h).");
  sketch
      .def(nb::init<Budget&, int64_t, unsigned, uint64_t>(), "budget"_a, "capacity"_a, "halvings"_a, "seed"_a)
      .def(
          "add", [](LayoutSketch& s, int64_t batch, Ids ids) { s.add(batch, span_of(ids)); }, "batch"_a,
          "ids"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("finish", &LayoutSketch::finish, "workers"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("histogram", &LayoutSketch::histogram, "segment"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("size", &LayoutSketch::size);
  bind_thin<int32_t>(sketch);
  bind_thin<int64_t>(sketch);
}

}  // namespace outcrop
