// Caches of rows (core/cache) and the topology among resident partitions (core/sampling/induce.h).
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/parallel.h"
#include "bindings.h"
#include "cache/hot_rows.h"
#include "cache/next_use.h"
#include "cache/row_cache.h"
#include "sampling/induce.h"

namespace outcrop {
namespace {

using NextUses = Array1<const uint32_t>;

// Fills missing[:count] with the ids that must be read and returns count.
size_t lookup(RowCache& cache, Ids ids, Array1<int64_t> missing, const std::optional<NextUses>& next,
              uint32_t now) {
  if (missing.size() < ids.size())
    throw Error(ErrorKind::argument, "room for " + std::to_string(missing.size()) +
                                         " missing ids is less than " + std::to_string(ids.size()) +
                                         " ids may need");
  CacheBatch batch{{ids.data(), ids.size()}, {}, now};
  if (next) batch.next = {next->data(), next->size()};
  nb::gil_scoped_release release;
  const auto found = cache.lookup(batch);
  std::copy(found.begin(), found.end(), missing.data());
  return found.size();
}

void complete(RowCache& cache, WorkerPool& workers, Bytes out) {
  if (out.size() != cache.batch_rows() * cache.row_bytes())
    throw Error(ErrorKind::argument, std::to_string(cache.batch_rows()) + " rows of " +
                                         std::to_string(cache.row_bytes()) + " bytes were looked up, " +
                                         std::to_string(out.size()) + " bytes of output were given");
  nb::gil_scoped_release release;
  cache.complete(workers, reinterpret_cast<std::byte*>(out.data()));
}

template <class Id>
void bind_next_uses(nb::module_& m) {
  m.def(
      "next_uses",
      [](Array1<const Id> ids, uint32_t now, int64_t first, Array1<uint32_t> seen,
         std::optional<Array1<uint32_t>> out) {
        if (out && out->size() < ids.size())
          throw Error(ErrorKind::argument, "ids and next uses differ in length");
        nb::gil_scoped_release release;
        next_uses<Id>({ids.data(), ids.size()}, now, first, {seen.data(), seen.size()},
                      out ? out->data() : nullptr);
      },
      "ids"_a, "now"_a, "first"_a, "seen"_a, "out"_a.none() = nb::none(),
      "For ids in [first, first + len(seen)): out = seen[ids - first]; seen[ids - first] = now.");
}

template <class Index>
void bind_induce(nb::module_& m) {
  m.def(
      "induce",
      [](Ids indptr, int64_t first_edge, Array1<const Index> sources, Ids bounds, Ids base,
         Array1<int64_t> out_indptr, Array1<uint32_t> out, uint64_t used) {
        if (indptr.size() < 1 || bounds.size() != base.size() + 1 || out_indptr.size() < indptr.size())
          throw Error(ErrorKind::argument, "the arrays of an induced topology do not fit each other");
        nb::gil_scoped_release release;
        const Residents residents{{bounds.data(), bounds.size()}, {base.data(), base.size()}};
        return induce<Index>({indptr.data(), indptr.size()}, first_edge, {sources.data(), sources.size()},
                             residents, out_indptr.data(), {out.data(), out.size()}, used);
      },
      "indptr"_a, "first_edge"_a, "sources"_a, "bounds"_a, "base"_a, "out_indptr"_a, "out"_a, "used"_a,
      "Appends the resident sources of consecutive nodes to out[used:], renumbered; returns the new used.");
}

}  // namespace

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

// Of rows [n, row_bytes] of bytes, `out` has one for each id.
nb::tuple take_rows(const HotIndex& index, WorkerPool& workers, ConstBytes cached, uint64_t row_bytes,
                    Ids ids, Bytes out) {
  check_length("cached", cached.size(), static_cast<uint64_t>(index.num_rows()) * row_bytes);
  check_length("out", out.size(), ids.size() * row_bytes);
  Misses misses;
  {
    nb::gil_scoped_release release;
    misses = take_hot_rows(workers, index, reinterpret_cast<const std::byte*>(cached.data()), row_bytes,
                           ids.data(), ids.size(), reinterpret_cast<std::byte*>(out.data()), row_bytes);
  }
  return nb::make_tuple(owned(std::move(misses.ids)), owned(std::move(misses.positions)));
}

nb::tuple find_rows(const HotIndex& index, Ids ids) {
  Misses misses;
  Hits hits;
  {
    nb::gil_scoped_release release;
    hits = find_hot_rows(index, ids.data(), ids.size(), misses);
  }
  return nb::make_tuple(owned(std::move(hits.positions)), owned(std::move(hits.rows)),
                        owned(std::move(misses.ids)), owned(std::move(misses.positions)));
}

template <class Id>
nb::tuple find_both(const HotIndex& index, Array1<const Id> ids, Array1<int32_t> row_positions,
                    Array1<int32_t> rows, Array1<int32_t> list_positions, Array1<int32_t> lists) {
  for (const auto& out : {row_positions, rows, list_positions, lists})
    check_length("out", out.size(), ids.size());
  std::pair<size_t, size_t> found;
  {
    nb::gil_scoped_release release;
    found = index.find(std::span(ids.data(), ids.size()), row_positions.data(), rows.data(),
                       list_positions.data(), lists.data());
  }
  return nb::make_tuple(found.first, found.second);
}

void bind_hot(nb::module_& m) {
  nb::class_<HotIndex>(m, "HotIndex", "Which rows and which neighbour lists a static cache has.")
      .def(
          "__init__",
          [](HotIndex* self, Budget& budget, int64_t num_nodes, Ids rows, Ids lists) {
            if (num_nodes < 0) throw Error(ErrorKind::argument, "num_nodes must not be negative");
            new (self) HotIndex(budget, num_nodes, {rows.data(), rows.size()}, {lists.data(), lists.size()});
          },
          "budget"_a, "num_nodes"_a, "rows"_a, "lists"_a)
      .def_static("bytes", &HotIndex::bytes, "num_nodes"_a)
      .def("find", &find_both<int32_t>, "ids"_a, "row_positions"_a, "rows"_a, "list_positions"_a, "lists"_a)
      .def("find", &find_both<int64_t>, "ids"_a, "row_positions"_a, "rows"_a, "list_positions"_a, "lists"_a,
           "Writes which of the ids have a cached row, and which, then the same of lists; how many of each.")
      .def_prop_ro("num_rows", &HotIndex::num_rows)
      .def_prop_ro("num_lists", &HotIndex::num_lists)
      .def_prop_ro(
          "blocks",
          [](const HotIndex& index) {
            const auto blocks = index.blocks();
            return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(
                reinterpret_cast<const uint8_t*>(blocks.data()), {blocks.size_bytes()}, nb::find(index));
          },
          "The index as kernels read it (kernels/hot_index.h); uint8.")
      .def("find_rows", &find_rows, "ids"_a,
           "Places in ids of those that are cached, their rows; the ids of the others, in order, and their "
           "places.")
      .def("take_rows", &take_rows, "workers"_a, "cached"_a, "row_bytes"_a, "ids"_a, "out"_a,
           "Fills the rows of `out` whose ids are cached; returns the ids of the others, in order, and their "
           "places.");
}

void bind_cache(nb::module_& m) {
  bind_hot(m);
  nb::enum_<CachePolicy>(m, "CachePolicy")
      .value("lru", CachePolicy::lru)
      .value("sieve", CachePolicy::sieve)
      .value("s3fifo", CachePolicy::s3fifo)
      .value("belady", CachePolicy::belady);
  nb::class_<RowCache>(m, "RowCache", "Rows in memory under a replacement policy (core/cache/row_cache.h).")
      .def(nb::init<Budget&, CachePolicy, uint64_t, uint64_t, uint64_t>(), "budget"_a, "policy"_a, "rows"_a,
           "row_bytes"_a, "cycle"_a = 1)
      .def_static("bytes_for", &RowCache::bytes_for, "policy"_a, "rows"_a, "row_bytes"_a, "cycle"_a = 1)
      .def_static("rows_within", &RowCache::rows_within, "policy"_a, "bytes"_a, "row_bytes"_a, "cycle"_a,
                  "limit"_a)
      .def("lookup", &lookup, "ids"_a, "missing"_a, "next"_a.none() = nb::none(), "now"_a = 0)
      .def("complete", &complete, "workers"_a, "out"_a)
      .def("clear", &RowCache::clear)
      .def_prop_ro("rows", &RowCache::rows);
  bind_next_uses<int32_t>(m);
  bind_next_uses<int64_t>(m);
  bind_induce<uint32_t>(m);
  bind_induce<int64_t>(m);
}

}  // namespace outcrop
