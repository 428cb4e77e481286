#include <nanobind/stl/optional.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <variant>

#include "base/parallel.h"
#include "bindings.h"
#include "sampling/sampler.h"
#include "sampling/transpose.h"
#include "sampling/wave.h"

namespace outcrop {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig>;
using Weights = Array1<const float>;

template <class T>
nb::object vector_to_numpy(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

using RelationsPtr = std::shared_ptr<const Relations>;
using Fanouts = std::variant<std::vector<int64_t>, std::vector<std::vector<int64_t>>>;

struct Delivery {
  bool typed = false, positions = false;
};

// (n_id, rowptr, col, nodes per hop, edges per hop); of a typed batch (nodes, edges): per node type (ids, per hop), per
// edge type (rowptr, col, per hop, positions or None).
nb::tuple to_tuple(SampledBatch&& b, Delivery delivery) {
  if (!delivery.typed) {
    SampledNodes& nodes = b.nodes[0];
    SampledEdges& edges = b.edges[0];
    return nb::make_tuple(vector_to_numpy(std::move(nodes.ids)), vector_to_numpy(std::move(edges.rowptr)),
                          vector_to_numpy(std::move(edges.col)), nodes.per_hop, edges.per_hop);
  }
  nb::list nodes, edges;
  for (SampledNodes& n : b.nodes) nodes.append(nb::make_tuple(vector_to_numpy(std::move(n.ids)), n.per_hop));
  for (SampledEdges& e : b.edges)
    edges.append(nb::make_tuple(vector_to_numpy(std::move(e.rowptr)), vector_to_numpy(std::move(e.col)),
                                e.per_hop,
                                delivery.positions ? vector_to_numpy(std::move(e.positions)) : nb::none()));
  return nb::make_tuple(nodes, edges);
}

nb::list to_list(std::vector<SampledBatch>&& batches, Delivery delivery) {
  nb::list out;
  for (SampledBatch& b : batches) out.append(to_tuple(std::move(b), delivery));
  return out;
}

// One batch in steps: begin, hop, ..., finish.
template <class Sampler, class Class>
void bind_steps(Class& sampler) {
  sampler
      .def(
          "begin",
          [](Sampler& s, Ids seeds, uint64_t split, uint64_t epoch, uint64_t batch) {
            s.begin({seeds.data(), seeds.size()}, {split, epoch, batch});
          },
          "seeds"_a, "split"_a, "epoch"_a, "batch"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "hop",
          [](Sampler& s) {
            std::vector<int64_t> nodes;
            {
              nb::gil_scoped_release release;
              const auto met = s.hop();
              nodes.assign(met.begin(), met.end());
            }
            return vector_to_numpy(std::move(nodes));
          },
          "The nodes first met in the next hop, ascending.")
      .def("finish",
           [](Sampler& s) {
             SampledBatch batch;
             {
               nb::gil_scoped_release release;
               batch = s.finish();
             }
             return to_tuple(std::move(batch), s.delivery());
           })
      .def_prop_ro("most_batch_bytes", &Sampler::most_batch_bytes,
                   "Bytes that a batch has needed while it was drawn, at the most, so far.");
}

SamplerKind kind_of(const std::string& name) {
  if (name == "neighbor") return SamplerKind::neighbor;
  if (name == "labor") return SamplerKind::labor;
  if (name == "shadow") return SamplerKind::shadow;
  if (name == "weighted") return SamplerKind::weighted;
  throw Error(ErrorKind::argument,
              "sampler '" + name + "' is unknown; known: neighbor, labor, shadow, weighted");
}

// One list of fanouts is that of every edge type.
std::vector<std::vector<int64_t>> spread(Fanouts fanouts, const Relations& relations) {
  if (auto* each = std::get_if<std::vector<int64_t>>(&fanouts))
    return std::vector<std::vector<int64_t>>(relations.size(), *each);
  return std::get<std::vector<std::vector<int64_t>>>(std::move(fanouts));
}

// Of relations that were given, or those of a graph without types.
RelationsPtr relations_or_single(const std::optional<RelationsPtr>& given, int64_t num_nodes,
                                 int64_t num_edges) {
  return given ? *given : Relations::single(num_nodes, num_edges);
}

// Arrays of a topology must be as long as its relations say.
void check_lengths(const Relations& relations, uint64_t ends, uint64_t edges,
                   std::optional<uint64_t> weights) {
  if (ends != static_cast<uint64_t>(relations.num_lists()) + 1)
    throw Error(ErrorKind::argument, "indptr has " + std::to_string(ends) + " entries for " +
                                         std::to_string(relations.num_lists()) + " neighbor lists");
  if (edges != static_cast<uint64_t>(relations.num_edges()))
    throw Error(ErrorKind::argument, "the edge types have " + std::to_string(relations.num_edges()) +
                                         " edges, indices has " + std::to_string(edges));
  if (weights && *weights != static_cast<uint64_t>(relations.num_weights()))
    throw Error(ErrorKind::argument, std::to_string(*weights) + " edge weights for " +
                                         std::to_string(relations.num_weights()) + " edges");
}

void check_positions(Delivery delivery) {
  if (delivery.positions && !delivery.typed)
    throw Error(ErrorKind::argument, "positions come with the parts of a batch: give the relations, too");
}

void check_offsets(const Ids& seeds, const Ids& offsets) {
  for (size_t i = 0; i < offsets.size(); ++i)
    if (offsets.data()[i] < (i ? offsets.data()[i - 1] : 0) ||
        offsets.data()[i] > static_cast<int64_t>(seeds.size()))
      throw Error(ErrorKind::argument, "offsets must rise within the seeds");
}

// A sampler per worker over one topology, whose arrays it keeps alive.
class Samplers {
 public:
  Samplers(std::shared_ptr<WorkerPool> workers, Ids indptr, AnyArray indices, std::optional<Weights> weights,
           std::optional<RelationsPtr> relations, Fanouts fanouts, SamplerOptions options)
      : workers_(std::move(workers)),
        indptr_(indptr),
        indices_(indices),
        weights_(std::move(weights)),
        delivery_{relations.has_value(), options.positions} {
    if (indptr.size() == 0)
      throw Error(ErrorKind::argument, "indptr is empty: num_nodes + 1 entries were expected");
    check_positions(delivery_);
    Topology t;
    t.indptr = indptr.data();
    t.num_edges = static_cast<int64_t>(indices.size());
    t.relations = relations_or_single(relations, static_cast<int64_t>(indptr.size()) - 1, t.num_edges);
    t.num_nodes = t.relations->num_nodes();
    options.fanouts = spread(std::move(fanouts), *t.relations);
    check_lengths(*t.relations, indptr.size(), indices.size(),
                  weights_ ? std::optional<uint64_t>(weights_->size()) : std::nullopt);
    if (indices.dtype() == nb::dtype<uint32_t>())
      t.indices32 = static_cast<const uint32_t*>(indices.data());
    else if (indices.dtype() == nb::dtype<int64_t>())
      t.indices64 = static_cast<const int64_t*>(indices.data());
    else
      throw Error(ErrorKind::argument, "indices must be uint32 or int64");
    if (weights_) t.weights = weights_->data();
    for (unsigned i = 0; i < workers_->threads(); ++i) samplers_.emplace_back(t, options);
    topology_ = t;
  }

  void degrees(Ids ids, Array1<int32_t> out) const {
    if (out.size() != ids.size()) throw Error(ErrorKind::argument, "ids and out differ in length");
    check_ids(ids, "degrees are");
    count_in_neighbors(topology_, {ids.data(), ids.size()}, out.data());
  }

  void weight_sums(Ids ids, Array1<double> out) const {
    if (out.size() != 2 * ids.size()) throw Error(ErrorKind::argument, "out must have two elements per id");
    check_ids(ids, "sums of weights are");
    if (!topology_.weights) throw Error(ErrorKind::argument, "the topology has no weights");
    sum_in_weights(topology_, {ids.data(), ids.size()}, out.data());
  }

  // Batches first.batch, first.batch + 1, ...; batch i has seeds[offsets[i]:offsets[i + 1]].
  std::vector<SampledBatch> sample(Ids seeds, Ids offsets, BatchKey first) {
    check_offsets(seeds, offsets);
    std::vector<SampledBatch> out(offsets.size() ? offsets.size() - 1 : 0);
    workers_->run(out.size(), [&](size_t i, unsigned worker) {
      const int64_t begin = offsets.data()[i], end = offsets.data()[i + 1];
      out[i] = samplers_[worker].sample({seeds.data() + begin, static_cast<size_t>(end - begin)},
                                        {first.split, first.epoch, first.batch + i});
    });
    return out;
  }

  void begin(std::span<const int64_t> seeds, BatchKey key) { samplers_.front().begin(seeds, key); }
  std::span<const int64_t> hop() { return samplers_.front().hop(); }
  SampledBatch finish() { return samplers_.front().finish(); }
  Delivery delivery() const { return delivery_; }
  uint64_t most_batch_bytes() const {
    uint64_t most = 0;
    for (const NeighborSampler& sampler : samplers_) most = std::max(most, sampler.most_batch_bytes());
    return most;
  }

 private:
  void check_ids(const Ids& ids, const std::string& what) const {
    if (!topology_.relations->is_single())
      throw Error(ErrorKind::argument, what + " those of a graph of one node type and one edge type");
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids.data()[i] < 0 || ids.data()[i] >= topology_.num_nodes)
        throw Error(ErrorKind::argument, "node " + std::to_string(ids.data()[i]) + " is out of range");
  }

  std::shared_ptr<WorkerPool> workers_;
  Ids indptr_;
  AnyArray indices_;
  std::optional<Weights> weights_;
  Delivery delivery_;
  Topology topology_;
  std::vector<NeighborSampler> samplers_;
};

// The arrays of a topology on disk; keeps an indptr in memory alive.
struct PyPagedTopology {
  std::shared_ptr<PagedTopology> topology = std::make_shared<PagedTopology>();
  bool typed = false;
  std::optional<Ids> indptr;
  std::optional<Ids> offsets, starts;  // of cached lists, which `indices` and `weights` have
  std::optional<ConstBytes> indices, weights;
  std::vector<Array1<const uint32_t>> crcs;  // of the pages of the arrays
};

// Pages of the array named `name` are compared with their checksums from now on.
void check_pages(PyPagedTopology& p, const std::string& name, Array1<const uint32_t> crcs,
                 std::string remedy) {
  PagedTopology& t = *p.topology;
  PagedArray* array = name == "indptr"    ? t.indptr_pages.get()
                      : name == "indices" ? t.indices.get()
                                          : t.weights.get();
  if (!array) throw Error(ErrorKind::argument, name + " is not read by pages");
  array->check_pages(crcs.data(), crcs.size(), std::move(remedy));
  p.crcs.push_back(std::move(crcs));
}

// Lists that `index` numbers are taken from memory from now on.
void cache_lists(PyPagedTopology& p, std::shared_ptr<HotIndex> index, Ids offsets, ConstBytes indices,
                 std::optional<ConstBytes> weights, std::optional<Ids> starts) {
  PagedTopology& t = *p.topology;
  if (index->num_nodes() != t.num_lists)
    throw Error(ErrorKind::argument, "the index numbers " + std::to_string(index->num_nodes()) +
                                         " lists, the topology has " + std::to_string(t.num_lists));
  if (starts) check_length("starts", starts->size(), static_cast<size_t>(index->num_lists()));
  check_length("offsets", offsets.size(), static_cast<size_t>(index->num_lists()) + 1);
  const auto count = static_cast<size_t>(offsets.data()[index->num_lists()]);
  check_length("indices", indices.size(), count * t.indices->element_bytes());
  if (weights.has_value() != (t.weights != nullptr))
    throw Error(ErrorKind::argument, "weights are cached where the topology has them, and only there");
  if (weights) {
    check_length("weights", weights->size(), count * sizeof(float));
    t.weights->go_on(reinterpret_cast<const std::byte*>(weights->data()), count);
  }
  t.indices->go_on(reinterpret_cast<const std::byte*>(indices.data()), count);
  t.cached = {std::move(index), offsets.data(), starts ? starts->data() : nullptr};
  p.starts = std::move(starts);
  p.offsets = std::move(offsets), p.indices = std::move(indices), p.weights = std::move(weights);
}

// Gives back what cache_lists took: not while a hop is drawn.
void drop_lists(PyPagedTopology& p) {
  PagedTopology& t = *p.topology;
  t.cached = {};
  t.indices->go_on(nullptr, 0);
  if (t.weights) t.weights->go_on(nullptr, 0);
  p.starts.reset(), p.offsets.reset(), p.indices.reset(), p.weights.reset();
}

// The lists at ends, one after the other, from the indices or the weights.
void read_lists(PyPagedTopology& p, Ids ends, Bytes out, bool weights) {
  PagedArray* array = weights ? p.topology->weights.get() : p.topology->indices.get();
  if (!array) throw Error(ErrorKind::argument, "the topology has no weights");
  uint64_t count = 0;
  for (size_t i = 0; i + 1 < ends.size(); i += 2) {
    const int64_t begin = ends.data()[i], end = ends.data()[i + 1];
    if (begin < 0 || end < begin || static_cast<uint64_t>(end) > array->size())
      throw Error(ErrorKind::argument, "a list from " + std::to_string(begin) + " to " + std::to_string(end) +
                                           " of " + std::to_string(array->size()) + " edges");
    count += static_cast<uint64_t>(end - begin);
  }
  check_length("out", out.size(), count * array->element_bytes());
  nb::gil_scoped_release release;
  p.topology->read_lists(*array, {ends.data(), ends.size()}, reinterpret_cast<std::byte*>(out.data()));
}

nb::dict stats_of(const PagedArray* array) {
  nb::dict out;
  if (!array) return out;
  out["wanted"] = array->stats().wanted;
  out["hits"] = array->stats().hits;
  out["read"] = array->stats().read;
  out["held"] = array->stats().held;
  out["cache_pages"] = array->cache_pages();
  return out;
}

class PyWaveSampler : public WaveSampler {
 public:
  PyWaveSampler(std::shared_ptr<WorkerPool> workers, PyPagedTopology& topology, Budget& budget,
                SamplerOptions options, size_t wave)
      : WaveSampler(std::move(workers), topology.topology, budget, options, wave),
        delivery_{topology.typed, options.positions} {}
  Delivery delivery() const { return delivery_; }

 private:
  Delivery delivery_;
};

void bind_paged(nb::module_& m) {
  nb::class_<PyPagedTopology>(m, "PagedTopology",
                              "A topology on disk, read by pages. Not for several threads at once.")
      .def(
          "__init__",
          [](PyPagedTopology* self, std::shared_ptr<BlockIo> io, Budget& budget, int64_t num_nodes,
             int64_t num_edges, std::optional<Ids> indptr, std::optional<FileId> indptr_file,
             uint64_t indptr_cache_bytes, FileId indices_file, uint64_t index_bytes,
             uint64_t indices_cache_bytes, std::optional<FileId> weights_file, uint64_t weights_cache_bytes,
             uint64_t scratch_bytes, std::optional<RelationsPtr> relations) {
            if (num_nodes < 0 || num_edges < 0)
              throw Error(ErrorKind::argument, "numbers of nodes and edges must not be negative");
            if (indptr.has_value() == indptr_file.has_value())
              throw Error(ErrorKind::argument, "indptr is given either as an array or as a file");
            if (relations && (*relations)->num_nodes() != num_nodes)
              throw Error(ErrorKind::argument, "the node types have " +
                                                   std::to_string((*relations)->num_nodes()) +
                                                   " nodes, not " + std::to_string(num_nodes));
            const RelationsPtr types = relations_or_single(relations, num_nodes, num_edges);
            const uint64_t ends = static_cast<uint64_t>(types->num_lists()) + 1;
            check_lengths(*types, indptr ? indptr->size() : ends, static_cast<uint64_t>(num_edges), {});
            if (index_bytes != 4 && index_bytes != 8)
              throw Error(ErrorKind::argument, "indices have 4 or 8 bytes");
            PyPagedTopology made;  // whole before it moves: what throws below must free what was made
            PagedTopology& t = *made.topology;
            made.typed = relations.has_value();
            t.relations = types;
            t.num_lists = types->num_lists();
            t.num_edges = num_edges;
            t.scratch = std::make_unique<PageScratch>(budget, scratch_bytes);
            const auto edges = static_cast<uint64_t>(num_edges);
            if (indptr)
              t.indptr = indptr->data();
            else
              t.indptr_pages =
                  std::make_unique<PagedArray>(io, budget, *indptr_file, 8, ends, indptr_cache_bytes);
            t.indices = std::make_unique<PagedArray>(io, budget, indices_file, index_bytes, edges,
                                                     indices_cache_bytes);
            if (weights_file)
              t.weights = std::make_unique<PagedArray>(io, budget, *weights_file, 4,
                                                       static_cast<uint64_t>(types->num_weights()),
                                                       weights_cache_bytes);
            made.indptr = std::move(indptr);
            new (self) PyPagedTopology(std::move(made));
          },
          "io"_a, "budget"_a, nb::kw_only(), "num_nodes"_a, "num_edges"_a, "indptr"_a.none() = nb::none(),
          "indptr_file"_a.none() = nb::none(), "indptr_cache_bytes"_a = 0, "indices_file"_a, "index_bytes"_a,
          "indices_cache_bytes"_a = 0, "weights_file"_a.none() = nb::none(), "weights_cache_bytes"_a = 0,
          "scratch_bytes"_a, "relations"_a.none() = nb::none())
      .def("check_pages", &check_pages, "name"_a, "crcs"_a, "remedy"_a,
           "Compares each page of indptr, indices or edge_weight with its CRC-32C when it is first read.")
      .def_static("table_bytes", &PagedArray::table_bytes, "element_bytes"_a, "count"_a)
      .def_ro_static("MIN_SCRATCH_BYTES", &PageScratch::kMinBytes)
      .def(
          "read_ranges",
          [](PyPagedTopology& p, Ids ids, Array1<int64_t> ends) {
            if (ends.size() != 2 * ids.size())
              throw Error(ErrorKind::argument, "ends must have two elements per id");
            p.topology->read_ranges({ids.data(), ids.size()}, ends.data());
          },
          "ids"_a, "ends"_a, nb::call_guard<nb::gil_scoped_release>(),
          "ends[2 i], ends[2 i + 1] = indptr[ids[i]], indptr[ids[i] + 1].")
      .def(
          "read_neighbors",
          [](PyPagedTopology& p, Ids positions, Array1<int64_t> out) {
            if (out.size() != positions.size())
              throw Error(ErrorKind::argument, "positions and out differ in length");
            p.topology->read_neighbors({positions.data(), positions.size()}, out.data());
          },
          "positions"_a, "out"_a, nb::call_guard<nb::gil_scoped_release>(), "out[i] = indices[positions[i]].")
      .def("read_lists", &read_lists, "ends"_a, "out"_a, "weights"_a = false,
           "The elements ends[2 i] to ends[2 i + 1] of the indices (or weights), one list after the other.")
      .def("cache_lists", &cache_lists, "index"_a, "offsets"_a, "indices"_a, "weights"_a.none() = nb::none(),
           "starts"_a.none() = nb::none(),
           "Lists that the index names lie in memory from now on; with `starts`, where they lie on disk, "
           "batches can "
           "say where edges lie.")
      .def("drop_lists", &drop_lists, "Lists are read again. Not while a hop is drawn.")
      .def_prop_ro("stats", [](const PyPagedTopology& p) {
        nb::dict out;
        out["indptr"] = stats_of(p.topology->indptr_pages.get());
        out["indices"] = stats_of(p.topology->indices.get());
        out["weights"] = stats_of(p.topology->weights.get());
        return out;
      });
  nb::class_<PyWaveSampler> wave(m, "WaveSampler", "The sampler over a PagedTopology.");
  bind_steps<PyWaveSampler>(wave);
  wave.def(
          "__init__",
          [](PyWaveSampler* self, std::shared_ptr<WorkerPool> workers, PyPagedTopology& topology,
             Budget& budget, Fanouts fanouts, bool replace, uint64_t seed, uint64_t max_batch_bytes,
             const std::string& sampler, size_t wave, uint64_t dependency, bool positions) {
            check_positions({topology.typed, positions});
            new (self)
                PyWaveSampler(std::move(workers), topology, budget,
                              {kind_of(sampler), spread(std::move(fanouts), *topology.topology->relations),
                               replace, seed, max_batch_bytes, dependency, positions},
                              wave);
          },
          "workers"_a, "topology"_a, "budget"_a, "fanouts"_a, "replace"_a = false, "seed"_a = 0,
          "max_batch_bytes"_a = UINT64_MAX, "sampler"_a = "neighbor", "wave"_a = 1, "dependency"_a = 1,
          "positions"_a = false, nb::keep_alive<1, 3>())
      .def_static("round_bytes", &PyWaveSampler::round_bytes, "pieces"_a)
      .def(
          "sample",
          [](PyWaveSampler& s, Ids seeds, Ids offsets, uint64_t split, uint64_t epoch, uint64_t first_batch) {
            check_offsets(seeds, offsets);
            if (offsets.size() > s.wave() + 1)
              throw Error(ErrorKind::argument, std::to_string(offsets.size() - 1) + " batches given to a " +
                                                   "wave of " + std::to_string(s.wave()));
            std::vector<SampledBatch> batches;
            if (offsets.size() > 1) {
              nb::gil_scoped_release release;
              batches = s.sample({seeds.data(), seeds.size()}, {offsets.data(), offsets.size()},
                                 {split, epoch, first_batch});
            }
            return to_list(std::move(batches), s.delivery());
          },
          "seeds"_a, "offsets"_a, "split"_a, "epoch"_a, "first_batch"_a);
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<Samplers> samplers(m, "NeighborSampler");
  bind_steps<Samplers>(samplers);
  samplers
      .def(
          "__init__",
          [](Samplers* self, std::shared_ptr<WorkerPool> workers, Ids indptr, AnyArray indices,
             Fanouts fanouts, bool replace, uint64_t seed, uint64_t max_batch_bytes,
             const std::string& sampler, std::optional<Weights> weights, uint64_t dependency,
             std::optional<RelationsPtr> relations, bool positions) {
            new (self)
                Samplers(std::move(workers), indptr, indices, std::move(weights), std::move(relations),
                         std::move(fanouts),
                         {kind_of(sampler), {}, replace, seed, max_batch_bytes, dependency, positions});
          },
          "workers"_a, "indptr"_a, "indices"_a, "fanouts"_a, "replace"_a = false, "seed"_a = 0,
          "max_batch_bytes"_a = UINT64_MAX, "sampler"_a = "neighbor", "weights"_a.none() = nb::none(),
          "dependency"_a = 1, "relations"_a.none() = nb::none(), "positions"_a = false)
      .def("degrees", &Samplers::degrees, "ids"_a, "out"_a, nb::call_guard<nb::gil_scoped_release>(),
           "out[i] = number of in-neighbours of ids[i] other than itself.")
      .def("weight_sums", &Samplers::weight_sums, "ids"_a, "out"_a, nb::call_guard<nb::gil_scoped_release>(),
           "out[2 i] = sum of the weights of edges to ids[i] from others, out[2 i + 1] = weight of its edge "
           "from "
           "itself, or 1.")
      .def(
          "sample",
          [](Samplers& s, Ids seeds, Ids offsets, uint64_t split, uint64_t epoch, uint64_t first_batch) {
            std::vector<SampledBatch> batches;
            {
              nb::gil_scoped_release release;
              batches = s.sample(seeds, offsets, {split, epoch, first_batch});
            }
            return to_list(std::move(batches), s.delivery());
          },
          "seeds"_a, "offsets"_a, "split"_a, "epoch"_a, "first_batch"_a);
  m.def(
      "hop_key",
      [](uint64_t seed, uint64_t split, uint64_t epoch, uint64_t batch, size_t hop) {
        return hop_key(seed, {split, epoch, batch}, hop);
      },
      "seed"_a, "split"_a, "epoch"_a, "batch"_a, "hop"_a, "Key of the random numbers of one hop of a batch.");
  m.def(
      "transpose_csr",
      [](const Array1<const int32_t>& rowptr, const Array1<const int32_t>& col,
         const Array1<int32_t>& out_rowptr, const Array1<int32_t>& out_row,
         const Array1<int64_t>& out_order) {
        nb::gil_scoped_release release;
        transpose_csr({rowptr.data(), rowptr.shape(0)}, {col.data(), col.shape(0)},
                      {{out_rowptr.data(), out_rowptr.shape(0)},
                       {out_row.data(), out_row.shape(0)},
                       {out_order.data(), out_order.shape(0)}});
      },
      "rowptr"_a, "col"_a, "out_rowptr"_a, "out_row"_a, "out_order"_a,
      "Edges by source, in order within a source: (out_rowptr, target of each, where it stood).");
  bind_paged(m);
}

}  // namespace outcrop
