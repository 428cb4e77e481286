// Neighbour lists built out of core from any edges: those of sorting in memory, or refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <tuple>

#include "base/error.h"
#include "check.h"
#include "files.h"
#include "graph/csc.h"

using namespace outcrop;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static WorkerPool workers(1);
  FuzzedDataProvider in(data, size);
  CscOptions options;
  options.scratch_folder = folder();
  options.num_nodes = in.ConsumeIntegralInRange<int64_t>(1, 40);
  options.keep_duplicates = in.ConsumeBool();
  options.keep_self_loops = in.ConsumeBool();
  options.reverse = in.ConsumeBool();
  options.wide = in.ConsumeBool();
  options.memory_bytes = CscBuilder::kMinMemoryBytes;
  std::vector<int64_t> sources, targets;
  bool right = true;
  for (size_t left = in.ConsumeIntegralInRange<size_t>(0, 90); left; --left) {
    for (auto* ends : {&sources, &targets}) {
      const bool lies = in.ConsumeProbability<float>() < 0.005f;
      ends->push_back(lies ? in.ConsumeIntegral<int64_t>()
                           : in.ConsumeIntegralInRange<int64_t>(0, options.num_nodes - 1));
      right &= ends->back() >= 0 && ends->back() < options.num_nodes;
    }
  }
  const std::string indptr = folder() + "/indptr.bin", indices = folder() + "/indices.bin";
  try {
    CscBuilder builder(engine(), Budget::create(UINT64_MAX), options, &workers);
    for (size_t done = 0; done < sources.size();) {
      const size_t some = in.ConsumeIntegralInRange<size_t>(1, sources.size() - done);
      builder.add(sources.data() + done, targets.data() + done, some);
      done += some;
    }
    const CscResult made = builder.finish(indptr, indices);
    holds(right);
    std::vector<std::pair<int64_t, int64_t>> edges;  // target, source
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i] == targets[i] && !options.keep_self_loops) continue;
      edges.emplace_back(targets[i], sources[i]);
      if (options.reverse && sources[i] != targets[i]) edges.emplace_back(sources[i], targets[i]);
    }
    std::sort(edges.begin(), edges.end());
    if (!options.keep_duplicates) edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    holds(made.num_edges == edges.size());
    const auto begins = read_values<int64_t>(indptr, static_cast<size_t>(options.num_nodes) + 1);
    std::vector<int64_t> found(edges.size());
    if (made.wide) {
      found = read_values<int64_t>(indices, edges.size());
    } else {
      const auto narrow = read_values<uint32_t>(indices, edges.size());
      found.assign(narrow.begin(), narrow.end());
    }
    for (size_t i = 0; i < edges.size(); ++i) {
      const auto [target, source] = edges[i];
      holds(found[i] == source);
      const auto at = static_cast<int64_t>(i);
      holds(begins[static_cast<size_t>(target)] <= at && at < begins[static_cast<size_t>(target) + 1]);
    }
  } catch (const Error& error) {
    holds(!right && error.kind() == ErrorKind::argument);
  }
  return 0;
}
