#include "graph/sampler.h"

#include <memory>

#include "base/parallel.h"
#include "bindings.h"

namespace outcrop {
namespace {

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

// A sampler per worker over one topology, whose arrays it keeps alive.
class Samplers {
 public:
  Samplers(std::shared_ptr<WorkerPool> workers, Ids indptr,
           nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig> indices, SamplerOptions options)
      : workers_(std::move(workers)), indptr_(indptr), indices_(indices) {
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
    for (unsigned i = 0; i < workers_->threads(); ++i) samplers_.emplace_back(t, options);
    topology_ = t;
  }

  void degrees(Ids ids, Array1<int32_t> out) const {
    if (out.size() != ids.size()) throw Error(ErrorKind::argument, "ids and out differ in length");
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids.data()[i] < 0 || ids.data()[i] >= topology_.num_nodes)
        throw Error(ErrorKind::argument, "node " + std::to_string(ids.data()[i]) + " is out of range");
    count_in_neighbours(topology_, {ids.data(), ids.size()}, out.data());
  }

  // Batches first_batch, first_batch + 1, ... of (split, epoch); batch i has seeds[offsets[i]:offsets[i +
  // 1]].
  std::vector<SampledBatch> sample(Ids seeds, Ids offsets, BatchKey first) {
    const auto count = static_cast<int64_t>(offsets.size()) - 1;
    for (int64_t i = 0; i <= count; ++i)
      if (offsets.data()[i] < (i ? offsets.data()[i - 1] : 0) ||
          offsets.data()[i] > static_cast<int64_t>(seeds.size()))
        throw Error(ErrorKind::argument, "offsets must rise within the seeds");
    std::vector<SampledBatch> out(static_cast<size_t>(std::max<int64_t>(count, 0)));
    workers_->run(out.size(), [&](size_t i, unsigned worker) {
      const int64_t begin = offsets.data()[i], end = offsets.data()[i + 1];
      out[i] = samplers_[worker].sample({seeds.data() + begin, static_cast<size_t>(end - begin)},
                                        {first.split, first.epoch, first.batch + i});
    });
    return out;
  }

 private:
  std::shared_ptr<WorkerPool> workers_;
  Ids indptr_;
  nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig> indices_;
  Topology topology_;
  std::vector<NeighborSampler> samplers_;
};

}  // namespace

void bind_sampler(nb::module_& m) {
  nb::class_<Samplers>(m, "NeighborSampler")
      .def(
          "__init__",
          [](Samplers* self, std::shared_ptr<WorkerPool> workers, Ids indptr,
             nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig> indices, std::vector<int64_t> fanouts,
             bool replace, uint64_t seed, uint64_t max_batch_bytes) {
            new (self) Samplers(std::move(workers), indptr, indices,
                                {std::move(fanouts), replace, seed, max_batch_bytes});
          },
          "workers"_a, "indptr"_a, "indices"_a, "fanouts"_a, "replace"_a = false, "seed"_a = 0,
          "max_batch_bytes"_a = UINT64_MAX)
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
            nb::list out;
            for (auto& b : batches) out.append(to_tuple(std::move(b)));
            return out;
          },
          "seeds"_a, "offsets"_a, "split"_a, "epoch"_a, "first_batch"_a);
}

}  // namespace outcrop
