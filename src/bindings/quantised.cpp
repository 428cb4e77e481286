#include "io/quantised.h"

#include <algorithm>
#include <string>

#include "bindings.h"

namespace outcrop {
namespace {

using Values = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstValues = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Scales = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstScales = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

QuantisedShape shape_of(size_t columns, unsigned bits, const ConstScales& scales) {
  const bool by_row = scales.shape(0) == 0;
  if (!by_row) {
    check_length("scales", scales.shape(0), 2);
    check_length("a row of scales", scales.shape(1), columns);
  }
  return {columns, bits, by_row};
}

ColumnScales columns_of(const ConstScales& scales) {
  if (scales.shape(0) == 0) return {};
  return {scales.data(), scales.data() + scales.shape(1)};
}

}  // namespace

void bind_quantised(nb::module_& m) {
  m.def(
      "widen_ranges",
      [](const ConstValues& values, const Scales& ranges) {
        check_length("ranges", ranges.shape(0), 2);
        check_length("a row of ranges", ranges.shape(1), values.shape(1));
        nb::gil_scoped_release release;
        widen_ranges(values.data(), values.shape(0), values.shape(1), ranges.data(),
                     ranges.data() + ranges.shape(1));
      },
      "values"_a, "ranges"_a,
      "ranges[0] = minimum(ranges[0], values.min(0)); ranges[1] = maximum(ranges[1], values.max(0)).");
  m.def(
      "scales_of_ranges",
      [](const Scales& ranges, unsigned bits) {
        check_length("ranges", ranges.shape(0), 2);
        const unsigned most = QuantisedShape{1, bits, true}.most();
        float *least = ranges.data(), *largest = least + ranges.shape(1);
        for (size_t j = 0; j < ranges.shape(1); ++j) {
          const Scale found = scale_of(least[j], largest[j], most);
          least[j] = found.scale;
          largest[j] = found.offset;
        }
      },
      "ranges"_a, "bits"_a, "Writes scale and offset of each column over its least and largest value.");
  m.def(
      "quantise_rows",
      [](const ConstValues& values, unsigned bits, const ConstScales& scales, const Rows& out) {
        const QuantisedShape shape = shape_of(values.shape(1), bits, scales);
        check_length("out", out.shape(0), values.shape(0));
        check_length("a row of out", out.shape(1), shape.row_bytes());
        nb::gil_scoped_release release;
        quantise_rows(shape, values.data(), values.shape(0), columns_of(scales),
                      reinterpret_cast<std::byte*>(out.data()));
      },
      "values"_a, "bits"_a, "scales"_a, "out"_a,
      "Writes rows of codes; scales: float32 [2, columns], scale and offset of each column, or [0, columns]: "
      "rows have their own.");
  m.def(
      "dequantise_rows",
      [](WorkerPool& workers, const ConstRows& rows, unsigned bits, const ConstScales& scales,
         const Values& out) {
        const QuantisedShape shape = shape_of(out.shape(1), bits, scales);
        check_length("out", out.shape(0), rows.shape(0));
        check_length("a row", rows.shape(1), shape.row_bytes());
        nb::gil_scoped_release release;
        return dequantise_rows(workers, shape, reinterpret_cast<const std::byte*>(rows.data()), rows.shape(0),
                               columns_of(scales), out.data());
      },
      "workers"_a, "rows"_a, "bits"_a, "scales"_a, "out"_a,
      "out = float32(float64(codes) * float64(scale) + float64(offset)). Returns the first row whose own "
      "scale and offset "
      "give a value that is not finite, the number of rows where there is none.");
}

}  // namespace outcrop
