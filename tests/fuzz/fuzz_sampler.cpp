// Samplers on topologies that lie: offsets that fall or leave the file, neighbours out of range, weights that are none,
// several edge types. Either an Error, or a batch whose parts belong together.
#include "base/error.h"
#include "lying_topology.h"

using namespace outcrop;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider in(data, size);
  try {
    const lying::Request asked(in);
    NeighborSampler sampler(asked.topology(), asked.options);
    for (uint64_t batch = 0; batch < 2; ++batch)
      lying::check(sampler.sample(asked.seeds, {0, 1, batch}), *asked.relations, asked.hops);
  } catch (const Error&) {
  }
  return 0;
}
