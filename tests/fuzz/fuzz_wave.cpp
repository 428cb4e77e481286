// The sampler over a topology that is read from disk by pages, where the files lie: offsets that fall or leave the file,
// neighbours out of range, files that are too short, lists that are cached. Either an Error, or batches whose parts
// belong together; and where memory gives batches of the same arrays they are the same.
#include <optional>

#include "base/error.h"
#include "files.h"
#include "lying_topology.h"
#include "sampling/wave.h"

using namespace outcrop;

namespace {

// What is in memory lies behind the padding of a page, so that nothing fits by chance.
constexpr uint64_t kPadding = 4096;

// Writes values as arrays are written, padded to a page; now and then some bytes are cut off. Closed with its holder.
class WrittenFile {
 public:
  template <class T>
  WrittenFile(const std::string& name, const std::vector<T>& values, uint64_t cut) : path_(folder() + name) {
    write_values(path_, values);
    const uint64_t data = values.size() * sizeof(T);
    const uint64_t whole = (data + kPadding - 1) / kPadding * kPadding;
    std::filesystem::resize_file(path_, whole - std::min(whole, cut));
    id_ = engine()->open(path_, OpenMode::read);
  }
  ~WrittenFile() { engine()->close(id_); }
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;
  FileId id() const { return id_; }

 private:
  const std::string path_;
  FileId id_ = 0;
};

// Lists of nodes in memory, as the plan of a cache lays them out; what they hold is what the file has.
struct Held {
  std::vector<int64_t> offsets = {0}, starts;
  std::vector<uint32_t> narrow;
  std::vector<int64_t> broad;
  std::vector<float> weights;
};

Held hold_lists(const lying::Request& asked, const std::vector<int64_t>& lists) {
  Held held;
  for (const int64_t list : lists) {
    const int64_t begin = asked.indptr[static_cast<size_t>(list)],
                  end = asked.indptr[static_cast<size_t>(list) + 1];
    for (int64_t i = begin; i < end; ++i) {
      const auto at = static_cast<size_t>(i);
      if (asked.wide) {
        held.broad.push_back(asked.broad[at]);
      } else {
        held.narrow.push_back(asked.narrow[at]);
      }
      held.weights.push_back(1);
    }
    held.offsets.push_back(held.offsets.back() + std::max<int64_t>(end - begin, 0));
    held.starts.push_back(begin);
  }
  return held;
}

bool is_right(const lying::Request& asked, int64_t list) {
  const int64_t begin = asked.indptr[static_cast<size_t>(list)],
                end = asked.indptr[static_cast<size_t>(list) + 1];
  return 0 <= begin && begin <= end && end <= asked.relations->num_edges();
}

bool equal(const SampledBatch& a, const SampledBatch& b) {
  if (a.nodes.size() != b.nodes.size() || a.edges.size() != b.edges.size()) return false;
  for (size_t t = 0; t < a.nodes.size(); ++t)
    if (a.nodes[t].ids != b.nodes[t].ids || a.nodes[t].per_hop != b.nodes[t].per_hop) return false;
  for (size_t r = 0; r < a.edges.size(); ++r)
    if (a.edges[r].rowptr != b.edges[r].rowptr || a.edges[r].col != b.edges[r].col ||
        a.edges[r].per_hop != b.edges[r].per_hop || a.edges[r].positions != b.edges[r].positions)
      return false;
  return true;
}

// The same batches from the arrays in memory; none where those are refused.
std::optional<std::vector<SampledBatch>> from_memory(const lying::Request& asked, size_t count) {
  try {
    std::vector<SampledBatch> made;
    NeighborSampler sampler(asked.topology(), asked.options);
    for (uint64_t batch = 0; batch < count; ++batch)
      made.push_back(sampler.sample(asked.seeds, {0, 1, batch}));
    return made;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto workers = std::make_shared<WorkerPool>(1);
  FuzzedDataProvider in(data, size);
  try {
    const lying::Request asked(in);
    const auto cut = [&]() -> uint64_t {
      return in.ConsumeProbability<float>() < 0.05f ? in.ConsumeIntegralInRange<uint64_t>(1, 9000) : 0;
    };
    const uint64_t cache = in.ConsumeBool() ? 0 : in.ConsumeIntegralInRange<uint64_t>(0, 20000);
    const bool pages = in.ConsumeBool(), steps = in.ConsumeBool();
    const size_t count = steps ? 1 : in.ConsumeIntegralInRange<size_t>(1, 4);
    std::vector<int64_t> cached;
    if (!pages && in.ConsumeBool())
      for (int64_t list = 0; list < asked.relations->num_lists(); ++list)
        if (is_right(asked, list) && in.ConsumeBool()) cached.push_back(list);
    // Weights are cached where the topology has them, which is left to others.
    if (!asked.weights.empty()) cached.clear();
    const auto budget = Budget::create(uint64_t{1} << 28);
    const WrittenFile indptr("/indptr", asked.indptr, cut());
    const uint64_t cut_off = cut();
    const std::unique_ptr<WrittenFile> indices(asked.wide
                                                   ? new WrittenFile("/indices", asked.broad, cut_off)
                                                   : new WrittenFile("/indices", asked.narrow, cut_off));
    const WrittenFile weights("/weights", asked.weights, cut());
    const Held held = hold_lists(asked, cached);
    const auto topology = std::make_shared<PagedTopology>();
    topology->relations = asked.relations;
    topology->num_lists = asked.relations->num_lists();
    topology->num_edges = asked.relations->num_edges();
    topology->scratch = std::make_unique<PageScratch>(*budget, PageScratch::kMinBytes);
    if (pages) {
      topology->indptr_pages =
          std::make_unique<PagedArray>(engine(), *budget, indptr.id(), 8, asked.indptr.size(), cache);
    } else {
      topology->indptr = asked.indptr.data();
    }
    const auto edges = static_cast<uint64_t>(topology->num_edges);
    topology->indices =
        std::make_unique<PagedArray>(engine(), *budget, indices->id(), asked.wide ? 8 : 4, edges, cache);
    if (!asked.weights.empty())
      topology->weights =
          std::make_unique<PagedArray>(engine(), *budget, weights.id(), 4, asked.weights.size(), cache);
    if (!cached.empty()) {
      const auto index =
          std::make_shared<HotIndex>(*budget, topology->num_lists, std::span<const int64_t>{}, cached);
      const auto* elements = asked.wide ? reinterpret_cast<const std::byte*>(held.broad.data())
                                        : reinterpret_cast<const std::byte*>(held.narrow.data());
      topology->indices->go_on(elements, static_cast<uint64_t>(held.offsets.back()));
      topology->cached = {index, held.offsets.data(), held.starts.data()};
    }
    WaveSampler sampler(workers, topology, *budget, asked.options, count);
    std::vector<SampledBatch> made;
    if (steps) {
      sampler.begin(asked.seeds, {0, 1, 0});
      for (size_t hop = 0; hop < asked.hops; ++hop)
        for (const int64_t id : sampler.hop()) holds(id >= 0 && id < asked.relations->num_nodes());
      made.push_back(sampler.finish());
    } else {
      std::vector<int64_t> seeds, offsets(1, 0);
      for (size_t batch = 0; batch < count; ++batch) {
        seeds.insert(seeds.end(), asked.seeds.begin(), asked.seeds.end());
        offsets.push_back(static_cast<int64_t>(seeds.size()));
      }
      made = sampler.sample(seeds, offsets, {0, 1, 0});
    }
    holds(made.size() == count);
    for (const SampledBatch& batch : made) lying::check(batch, *asked.relations, asked.hops);
    if (const auto wanted = from_memory(asked, count))
      for (size_t batch = 0; batch < count; ++batch) holds(equal(made[batch], (*wanted)[batch]));
  } catch (const Error&) {
  }
  return 0;
}
