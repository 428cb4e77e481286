#include <algorithm>
#include <cstring>

#include "base/find_sorted.h"
#include "bindings.h"
#include "pack/assemble.h"
#include "pack/scatter.h"

namespace outcrop {
namespace {

template <class T>
std::span<T> span_of(const Array1<T>& a) {
  return {a.data(), a.size()};
}

void check_rows(const Bytes& x, size_t n, size_t row_bytes) {
  if (n * row_bytes > x.size())
    throw Error(ErrorKind::argument, std::to_string(n) + " rows of " + std::to_string(row_bytes) +
                                         " bytes do not fit in " + std::to_string(x.size()) + " bytes");
}

template <class Id>
size_t find_checked(Ids table, Array1<const Id> ids, Array1<int32_t> positions, Array1<int32_t> rows) {
  check_length("positions", positions.size(), ids.size());
  check_length("rows", rows.size(), ids.size());
  nb::gil_scoped_release release;
  return find_sorted(std::span(table.data(), table.size()), std::span(ids.data(), ids.size()),
                     positions.data(), rows.data());
}

PackStreams tailed_streams(Ids out_offset, Bytes tails, Array1<int64_t> written) {
  PackStreams streams;
  streams.places = out_offset.size();
  streams.out_offset = out_offset.data();
  if (tails.size() == 0) return streams;
  check_length("written", written.size(), streams.places);
  streams.tail_bytes = tails.size() / std::max<size_t>(streams.places, 1);
  streams.tails = reinterpret_cast<std::byte*>(tails.data());
  streams.written = written.data();
  return streams;
}

template <auto Move>
void move_tails(Scatter& self, FileId out_file, Ids out_offset, Bytes tails, Array1<int64_t> written) {
  const PackStreams streams = tailed_streams(out_offset, tails, written);
  nb::gil_scoped_release release;
  (self.*Move)(out_file, streams);
}

}  // namespace

void bind_pack(nb::module_& m) {
  constexpr const char* kFindSorted =
      "positions[:n] in ids of those that table, which rises, holds, and rows[:n], where; returns n.";
  m.def("find_sorted", &find_checked<int64_t>, "table"_a, "ids"_a.noconvert(), "positions"_a, "rows"_a,
        kFindSorted);
  m.def("find_sorted", &find_checked<int32_t>, "table"_a, "ids"_a.noconvert(), "positions"_a, "rows"_a,
        kFindSorted);
  m.def(
      "expand_rows",
      [](WorkerPool& workers, Bytes x, size_t n, size_t row_bytes, Ids cached, bool sum) {
        check_rows(x, n, row_bytes);
        if (cached.size() > n) throw Error(ErrorKind::format, "a mini-batch has more cached rows than rows");
        nb::gil_scoped_release release;
        return expand_rows(workers, reinterpret_cast<std::byte*>(x.data()), n, row_bytes, span_of(cached),
                           sum);
      },
      "workers"_a, "x"_a, "n"_a, "row_bytes"_a, "cached"_a, "sum"_a = false);
  m.def(
      "fill_rows",
      [](Bytes x, size_t n, size_t row_bytes, Array1<const int32_t> positions, Array1<const int32_t> rows,
         ConstBytes table, size_t stride) {
        check_rows(x, n, row_bytes);
        if (stride < row_bytes) throw Error(ErrorKind::argument, "the stride is smaller than a row");
        nb::gil_scoped_release release;
        const size_t table_rows = stride ? (table.size() + stride - row_bytes) / stride : 0;
        fill_rows(reinterpret_cast<std::byte*>(x.data()), n, row_bytes, span_of(positions), span_of(rows),
                  reinterpret_cast<const std::byte*>(table.data()), table_rows, stride);
      },
      "x"_a, "n"_a, "row_bytes"_a, "positions"_a, "rows"_a, "table"_a, "stride"_a);
  m.def(
      "move_pieces",
      [](Bytes out, ConstBytes data, Ids out_offset, Ids data_offset, Ids count) {
        check_length("data_offset", data_offset.size(), out_offset.size());
        check_length("count", count.size(), out_offset.size());
        nb::gil_scoped_release release;
        for (size_t i = 0; i < count.size(); ++i) {
          const auto n = static_cast<uint64_t>(count.data()[i]),
                     to = static_cast<uint64_t>(out_offset.data()[i]),
                     from = static_cast<uint64_t>(data_offset.data()[i]);
          if (n > out.size() || to > out.size() - n || n > data.size() || from > data.size() - n)
            throw Error(ErrorKind::argument, "a piece does not lie within what it is copied from and to");
          std::memcpy(out.data() + to, data.data() + from, n);
        }
      },
      "out"_a, "data"_a, "out_offset"_a, "data_offset"_a, "count"_a,
      "Copies pieces of bytes: out[to : to + n] = data[at : at + n] for each of the arrays' entries.");
  nb::class_<Scatter>(m, "Scatter")
      .def(
          "__init__",
          [](Scatter* self, std::shared_ptr<BlockIo> io, Budget& budget, size_t row_bytes, size_t stride,
             unsigned id_bytes, size_t ids_buffer_bytes, size_t out_buffer_bytes) {
            if (id_bytes != 4 && id_bytes != 8) throw Error(ErrorKind::argument, "id_bytes must be 4 or 8");
            new (self) Scatter(std::move(io), budget, row_bytes, stride, id_bytes, ids_buffer_bytes,
                               out_buffer_bytes);
          },
          "io"_a, "budget"_a, "row_bytes"_a, "stride"_a, "id_bytes"_a, "ids_buffer_bytes"_a,
          "out_buffer_bytes"_a)
      .def(
          "run",
          [](Scatter& self, ConstBytes data, int64_t first_row, int64_t rows, size_t stride, FileId ids_file,
             FileId out_file, FileId out_pages, Ids ids_offset, Ids ids_count, Ids out_offset,
             Array1<uint32_t> crc, Bytes tails, Array1<int64_t> written, Ids shared) {
            const size_t places = shared.size() ? shared.size() - 1 : ids_offset.size();
            if (ids_count.size() != ids_offset.size() || out_offset.size() != places ||
                crc.size() != ids_offset.size() || data.size() < static_cast<size_t>(rows) * stride)
              throw Error(ErrorKind::argument, "the arrays of a packing step differ in length");
            PackStreams streams = tailed_streams(out_offset, tails, written);
            streams.count = ids_offset.size();
            if (shared.size()) {
              if (shared.data()[0] != 0 || shared.data()[places] != static_cast<int64_t>(streams.count) ||
                  !std::is_sorted(shared.data(), shared.data() + shared.size()))
                throw Error(ErrorKind::argument,
                            "places are shared by streams that follow one another, all of them");
              streams.shared = shared.data();
            }
            streams.ids_offset = ids_offset.data();
            streams.ids_count = ids_count.data();
            streams.crc = crc.data();
            nb::gil_scoped_release release;
            self.run({reinterpret_cast<const std::byte*>(data.data()), first_row, rows}, ids_file, out_file,
                     out_pages, streams);
          },
          "data"_a, "first_row"_a, "rows"_a, "stride"_a, "ids_file"_a, "out_file"_a, "out_pages"_a,
          "ids_offset"_a, "ids_count"_a, "out_offset"_a, "crc"_a, "tails"_a, "written"_a, "shared"_a)
      .def("write_tails", &move_tails<&Scatter::write_tails>, "out_file"_a, "out_offset"_a, "tails"_a,
           "written"_a)
      .def("read_tails", &move_tails<&Scatter::read_tails>, "out_file"_a, "out_offset"_a, "tails"_a,
           "written"_a);
}

}  // namespace outcrop
