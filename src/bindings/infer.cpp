#include "bindings.h"
#include "infer/add_sources.h"

namespace outcrop {
namespace {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstInts = Array1<const int32_t>;

SourceTable table_of(const ConstFloats& table, size_t heads = 0) {
  if (table.shape(1) < heads)
    throw Error(ErrorKind::argument, std::to_string(table.shape(1)) + " columns, the scores of " +
                                         std::to_string(heads) + " heads");
  return {table.data(), table.shape(0), table.shape(1) - heads, table.shape(1)};
}

void check_targets(const SourceTable& table, int64_t first, size_t targets) {
  if (first < 0 || static_cast<size_t>(first) + targets > table.rows)
    throw Error(ErrorKind::argument, "targets from " + std::to_string(first) + " on, " +
                                         std::to_string(targets) + " of them, of " +
                                         std::to_string(table.rows) + " nodes");
}

// What is in `rowptr` and `col` is trusted, since who reads lists compares it with the number of nodes; only their
// lengths are compared here.
TargetLists lists_of(const SourceTable& table, int64_t first, const ConstInts& rowptr, const ConstInts& col,
                     bool without_loops) {
  if (rowptr.shape(0) == 0) throw Error(ErrorKind::argument, "rowptr is empty");
  const size_t targets = rowptr.shape(0) - 1;
  check_targets(table, first, targets);
  check_length("col", col.shape(0), static_cast<size_t>(rowptr.data()[targets]));
  return {rowptr.data(), col.data(), targets, static_cast<int32_t>(first), without_loops};
}

void check_shape(const char* name, const Floats& array, size_t rows, size_t columns) {
  check_length(name, array.shape(0), rows);
  check_length(name, array.shape(1), columns);
}

}  // namespace

void bind_infer(nb::module_& m) {
  m.def(
      "add_sources",
      [](WorkerPool& workers, const ConstFloats& table, int64_t first, const ConstInts& rowptr,
         const ConstInts& col, bool without_loops, const Floats& sums) {
        const SourceTable sources = table_of(table);
        const TargetLists lists = lists_of(sources, first, rowptr, col, without_loops);
        check_shape("sums", sums, lists.targets, sources.width);
        nb::gil_scoped_release release;
        add_sources(sources, lists, sums.data(), workers);
      },
      "workers"_a, "table"_a, "first"_a, "rowptr"_a, "col"_a, "without_loops"_a, "sums"_a,
      "sums[t] += table[col[rowptr[t] : rowptr[t + 1]]].sum(0), in order; without_loops: but for source "
      "first + t.");
  m.def(
      "begin_softmax",
      [](WorkerPool& workers, const ConstFloats& table, int64_t first, const ConstFloats& target, float slope,
         const Floats& largest, const Floats& mass, const Floats& total) {
        const HeadScores scores{target.data(), target.shape(0), slope};
        const SourceTable sources = table_of(table, scores.heads);
        const size_t targets = target.shape(1);
        check_targets(sources, first, targets);
        check_shape("largest", largest, targets, scores.heads);
        check_shape("mass", mass, targets, scores.heads);
        check_shape("total", total, targets, sources.width);
        nb::gil_scoped_release release;
        begin_softmax(sources, static_cast<size_t>(first), targets, scores,
                      {largest.data(), mass.data(), total.data()}, workers);
      },
      "workers"_a, "table"_a, "first"_a, "target"_a, "slope"_a, "largest"_a, "mass"_a, "total"_a,
      "Begins what add_sources_by_softmax adds to with the edge of each target t from itself: "
      "largest[t, h] = leaky_relu(table[first + t, width + h] + target[h, t], slope), mass = 1, "
      "total[t] = table[first + t, :width].");
  m.def(
      "add_sources_by_softmax",
      [](WorkerPool& workers, const ConstFloats& table, int64_t first, const ConstInts& rowptr,
         const ConstInts& col, bool without_loops, const ConstFloats& target, float slope,
         const Floats& largest, const Floats& mass, const Floats& total) {
        const HeadScores scores{target.data(), target.shape(0), slope};
        const SourceTable sources = table_of(table, scores.heads);
        const TargetLists lists = lists_of(sources, first, rowptr, col, without_loops);
        check_length("target", target.shape(1), lists.targets);
        if (scores.heads == 0 || sources.width % scores.heads != 0)
          throw Error(ErrorKind::argument, std::to_string(sources.width) + " columns of " +
                                               std::to_string(scores.heads) + " heads");
        check_shape("largest", largest, lists.targets, scores.heads);
        check_shape("mass", mass, lists.targets, scores.heads);
        check_shape("total", total, lists.targets, sources.width);
        nb::gil_scoped_release release;
        add_sources_by_softmax(sources, lists, scores, {largest.data(), mass.data(), total.data()}, workers);
      },
      "workers"_a, "table"_a, "first"_a, "rowptr"_a, "col"_a, "without_loops"_a, "target"_a, "slope"_a,
      "largest"_a, "mass"_a, "total"_a,
      "With score = leaky_relu(table[c, width + h] + target[h, t], slope) for each source c of target t and "
      "head h, behind whose width columns the table has a score for each head: "
      "updates largest, mass = sum of exp(score - largest) and total = sum of exp(score - largest) * "
      "table[c, columns "
      "of h], as an online softmax does.");
}

}  // namespace outcrop
