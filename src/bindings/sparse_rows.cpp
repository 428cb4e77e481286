#include "io/sparse_rows.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "bindings.h"

namespace outcrop {
namespace {

using Rows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Common = std::optional<uint64_t>;

size_t columns_of(size_t bytes, unsigned value_bytes) {
  if (value_bytes == 0 || bytes % value_bytes != 0)
    throw Error(ErrorKind::argument, "rows of " + std::to_string(bytes) + " bytes are none of values of " +
                                         std::to_string(value_bytes));
  return bytes / value_bytes;
}

const std::byte* bytes_of(const ConstRows& rows) { return reinterpret_cast<const std::byte*>(rows.data()); }

}  // namespace

void bind_sparse_rows(nb::module_& m) {
  m.def(
      "count_stored",
      [](const ConstRows& values, unsigned value_bytes) {
        const size_t columns = columns_of(values.shape(1), value_bytes);
        nb::gil_scoped_release release;
        const StoredValues found = count_stored(bytes_of(values), values.shape(0), columns, value_bytes);
        return std::tuple(found.most, found.least, found.largest);
      },
      "values"_a, "value_bytes"_a,
      "Returns (values != 0).sum(1).max() and the least and largest bits of these, unsigned; values: rows as "
      "bytes. The least is above the largest where all are 0.");
  m.def(
      "pack_sparse_rows",
      [](const ConstRows& values, unsigned value_bytes, size_t stored, Common common, const Rows& out) {
        const SparseShape shape{columns_of(values.shape(1), value_bytes), stored, value_bytes, common};
        check_length("out", out.shape(0), values.shape(0));
        check_length("a row of out", out.shape(1), shape.row_bytes());
        nb::gil_scoped_release release;
        return pack_sparse_rows(shape, bytes_of(values), values.shape(0),
                                reinterpret_cast<std::byte*>(out.data()));
      },
      "values"_a, "value_bytes"_a, "stored"_a, "common"_a.none(), "out"_a,
      "Writes rows that store at most so many values, or columns alone where all values have the bits "
      "`common`. Returns the "
      "first row for which there is no room, the number of rows where there is none.");
  m.def(
      "unpack_sparse_rows",
      [](WorkerPool& workers, const ConstRows& rows, unsigned value_bytes, size_t stored, Common common,
         const Rows& out) {
        const SparseShape shape{columns_of(out.shape(1), value_bytes), stored, value_bytes, common};
        check_length("out", out.shape(0), rows.shape(0));
        check_length("a row", rows.shape(1), shape.row_bytes());
        nb::gil_scoped_release release;
        return unpack_sparse_rows(workers, shape, bytes_of(rows), rows.shape(0),
                                  reinterpret_cast<std::byte*>(out.data()));
      },
      "workers"_a, "rows"_a, "value_bytes"_a, "stored"_a, "common"_a.none(), "out"_a,
      "out[i, columns[i]] = values[i], all else 0; out: rows as bytes. Returns the first row that stores "
      "more "
      "values than it "
      "can or whose columns do not rise or are none, the number of rows where there is none.");
}

}  // namespace outcrop
