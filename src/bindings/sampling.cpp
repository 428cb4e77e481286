#include <nanobind/stl/optional.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/parallel.h"
#include "bindings.h"
#include "sampling/sampler.h"
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

nb::tuple to_tuple(SampledBatch&& b) {
  return nb::make_tuple(vector_to_numpy(std::move(b.n_id)), vector_to_numpy(std::move(b.rowptr)),
                        vector_to_numpy(std::move(b.col)), b.nodes_per_hop, b.edges_per_hop);
}

nb::list to_list(std::vector<SampledBatch>&& batches) {
  nb::list out;
  for (SampledBatch& b : batches) out.append(to_tuple(std::move(b)));
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
             return to_tuple(std::move(batch));
           })
      .def_prop_ro("most_batch_bytes", &Sampler::most_batch_bytes,
                   "Bytes that a batch has needed while it was drawn, at the most, so far.");
}

SamplerOptions make_options(const std::string& name, std::vector<int64_t> fanouts, bool replace,
                            uint64_t seed, uint64_t max_batch_bytes, uint64_t dependency) {
  SamplerKind kind = SamplerKind::neighbor;
  if (name == "labor")
    kind = SamplerKind::labor;
  else if (name == "shadow")
    kind = SamplerKind::shadow;
  else if (name == "weighted")
    kind = SamplerKind::weighted;
  else if (name != "neighbor")
    throw Error(ErrorKind::argument,
                "sampler '" + name + "' is unknown; known: neighbor, labor, shadow, weighted");
  return {kind, std::move(fanouts), replace, seed, max_batch_bytes, dependency};
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
           SamplerOptions options)
      : workers_(std::move(workers)), indptr_(indptr), indices_(indices), weights_(std::move(weights)) {
    Topology t;
    t.indptr = indptr.data();
    t.num_nodes = static_cast<int64_t>(indptr.size()) - 1;
    t.num_edges = static_cast<int64_t>(indices.size());
    if (t.num_nodes < 0)
      throw Error(ErrorKind::argument, "indptr is empty: num_nodes + 1 entries were expected");
    if (indices.dtype() == nb::dtype<uint32_t>())
      t.indices32 = static_cast<const uint32_t*>(indices.data());
    else if (indices.dtype() == nb::dtype<int64_t>())
      t.indices64 = static_cast<const int64_t*>(indices.data());
    else
      throw Error(ErrorKind::argument, "indices must be uint32 or int64");
    if (weights_) {
      if (weights_->size() != indices.size())
        throw Error(ErrorKind::argument, std::to_string(weights_->size()) + " edge weights for " +
                                             std::to_string(indices.size()) + " edges");
      t.weights = weights_->data();
    }
    for (unsigned i = 0; i < workers_->threads(); ++i) samplers_.emplace_back(t, options);
    topology_ = t;
  }

  void degrees(Ids ids, Array1<int32_t> out) const {
    if (out.size() != ids.size()) throw Error(ErrorKind::argument, "ids and out differ in length");
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids.data()[i] < 0 || ids.data()[i] >= topology_.num_nodes)
        throw Error(ErrorKind::argument, "node " + std::to_string(ids.data()[i]) + " is out of range");
    count_in_neighbors(topology_, {ids.data(), ids.size()}, out.data());
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
  uint64_t most_batch_bytes() const {
    uint64_t most = 0;
    for (const NeighborSampler& sampler : samplers_) most = std::max(most, sampler.most_batch_bytes());
    return most;
  }

 private:
  std::shared_ptr<WorkerPool> workers_;
  Ids indptr_;
  AnyArray indices_;
  std::optional<Weights> weights_;
  Topology topology_;
  std::vector<NeighborSampler> samplers_;
};

// The arrays of a topology on disk; keeps an indptr in memory alive.
struct PyPagedTopology {
  std::shared_ptr<PagedTopology> topology = std::make_shared<PagedTopology>();
  std::optional<Ids> indptr;
  std::optional<Ids> offsets;  // of cached lists, which `indices` and `weights` have
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

// Lists of the nodes that `index` names are taken from memory from now on.
void cache_lists(PyPagedTopology& p, std::shared_ptr<HotIndex> index, Ids offsets, ConstBytes indices,
                 std::optional<ConstBytes> weights) {
  PagedTopology& t = *p.topology;
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
  t.cached = {std::move(index), offsets.data()};
  p.offsets = std::move(offsets), p.indices = std::move(indices), p.weights = std::move(weights);
}

// Gives back what cache_lists took: not while a hop is drawn.
void drop_lists(PyPagedTopology& p) {
  PagedTopology& t = *p.topology;
  t.cached = {};
  t.indices->go_on(nullptr, 0);
  if (t.weights) t.weights->go_on(nullptr, 0);
  p.offsets.reset(), p.indices.reset(), p.weights.reset();
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

void bind_paged(nb::module_& m) {
  nb::class_<PyPagedTopology>(m, "PagedTopology",
                              "A topology on disk, read by pages. Not for several threads at once.")
      .def(
          "__init__",
          [](PyPagedTopology* self, std::shared_ptr<BlockIo> io, Budget& budget, int64_t num_nodes,
             int64_t num_edges, std::optional<Ids> indptr, std::optional<FileId> indptr_file,
             uint64_t indptr_cache_bytes, FileId indices_file, uint64_t index_bytes,
             uint64_t indices_cache_bytes, std::optional<FileId> weights_file, uint64_t weights_cache_bytes,
             uint64_t scratch_bytes) {
            if (num_nodes < 0 || num_edges < 0)
              throw Error(ErrorKind::argument, "numbers of nodes and edges must not be negative");
            if (indptr.has_value() == indptr_file.has_value())
              throw Error(ErrorKind::argument, "indptr is given either as an array or as a file");
            if (indptr && indptr->size() != static_cast<size_t>(num_nodes) + 1)
              throw Error(ErrorKind::argument, "indptr has " + std::to_string(indptr->size()) +
                                                   " entries, num_nodes + 1 were expected");
            if (index_bytes != 4 && index_bytes != 8)
              throw Error(ErrorKind::argument, "indices have 4 or 8 bytes");
            PyPagedTopology made;  // whole before it moves: what throws below must free what was made
            PagedTopology& t = *made.topology;
            t.num_nodes = num_nodes;
            t.num_edges = num_edges;
            t.scratch = std::make_unique<PageScratch>(budget, scratch_bytes);
            const auto edges = static_cast<uint64_t>(num_edges);
            if (indptr)
              t.indptr = indptr->data();
            else
              t.indptr_pages = std::make_unique<PagedArray>(
                  io, budget, *indptr_file, 8, static_cast<uint64_t>(num_nodes) + 1, indptr_cache_bytes);
            t.indices = std::make_unique<PagedArray>(io, budget, indices_file, index_bytes, edges,
                                                     indices_cache_bytes);
            if (weights_file)
              t.weights =
                  std::make_unique<PagedArray>(io, budget, *weights_file, 4, edges, weights_cache_bytes);
            made.indptr = std::move(indptr);
            new (self) PyPagedTopology(std::move(made));
          },
          "io"_a, "budget"_a, nb::kw_only(), "num_nodes"_a, "num_edges"_a, "indptr"_a.none() = nb::none(),
          "indptr_file"_a.none() = nb::none(), "indptr_cache_bytes"_a = 0, "indices_file"_a, "index_bytes"_a,
          "indices_cache_bytes"_a = 0, "weights_file"_a.none() = nb::none(), "weights_cache_bytes"_a = 0,
          "scratch_bytes"_a)
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
           "Lists of the nodes that the index names lie in memory from now on.")
      .def("drop_lists", &drop_lists, "Lists are read again. Not while a hop is drawn.")
      .def_prop_ro("stats", [](const PyPagedTopology& p) {
        nb::dict out;
        out["indptr"] = stats_of(p.topology->indptr_pages.get());
        out["indices"] = stats_of(p.topology->indices.get());
        out["weights"] = stats_of(p.topology->weights.get());
        return out;
      });
  nb::class_<WaveSampler> wave(m, "WaveSampler", "The sampler over a PagedTopology.");
  bind_steps<WaveSampler>(wave);
  wave.def(
          "__init__",
          [](WaveSampler* self, std::shared_ptr<WorkerPool> workers, PyPagedTopology& topology,
             Budget& budget, std::vector<int64_t> fanouts, bool replace, uint64_t seed,
             uint64_t max_batch_bytes, const std::string& sampler, size_t wave, uint64_t dependency) {
            new (self) WaveSampler(
                std::move(workers), topology.topology, budget,
                make_options(sampler, std::move(fanouts), replace, seed, max_batch_bytes, dependency), wave);
          },
          "workers"_a, "topology"_a, "budget"_a, "fanouts"_a, "replace"_a = false, "seed"_a = 0,
          "max_batch_bytes"_a = UINT64_MAX, "sampler"_a = "neighbor", "wave"_a = 1, "dependency"_a = 1,
          nb::keep_alive<1, 3>())
      .def_static("round_bytes", &WaveSampler::round_bytes, "pieces"_a)
      .def(
          "sample",
          [](WaveSampler& s, Ids seeds, Ids offsets, uint64_t split, uint64_t epoch, uint64_t first_batch) {
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
            return to_list(std::move(batches));
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
             std::vector<int64_t> fanouts, bool replace, uint64_t seed, uint64_t max_batch_bytes,
             const std::string& sampler, std::optional<Weights> weights, uint64_t dependency) {
            new (self) Samplers(
                std::move(workers), indptr, indices, std::move(weights),
                make_options(sampler, std::move(fanouts), replace, seed, max_batch_bytes, dependency));
          },
          "workers"_a, "indptr"_a, "indices"_a, "fanouts"_a, "replace"_a = false, "seed"_a = 0,
          "max_batch_bytes"_a = UINT64_MAX, "sampler"_a = "neighbor", "weights"_a.none() = nb::none(),
          "dependency"_a = 1)
      .def("degrees", &Samplers::degrees, "ids"_a, "out"_a, nb::call_guard<nb::gil_scoped_release>(),
           "out[i] = number of in-neighbours of ids[i] other than itself.")
      .def(
          "sample",
          [](Samplers& s, Ids seeds, Ids offsets, uint64_t split, uint64_t epoch, uint64_t first_batch) {
            std::vector<SampledBatch> batches;
            {
              nb::gil_scoped_release release;
              batches = s.sample(seeds, offsets, {split, epoch, first_batch});
            }
            return to_list(std::move(batches));
          },
          "seeds"_a, "offsets"_a, "split"_a, "epoch"_a, "first_batch"_a);
  m.def(
      "hop_key",
      [](uint64_t seed, uint64_t split, uint64_t epoch, uint64_t batch, size_t hop) {
        return hop_key(seed, {split, epoch, batch}, hop);
      },
      "seed"_a, "split"_a, "epoch"_a, "batch"_a, "hop"_a, "Key of the random numbers of one hop of a batch.");
  bind_paged(m);
}

}  // namespace outcrop
