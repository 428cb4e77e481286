// Entry points of sample.h; sample_fetch_<bits of an index>.
#include "kernels/sample.h"

using namespace outcrop::kernels;

namespace {

OUTCROP_DEVICE Lane this_lane() {
  const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64 threads = static_cast<int64>(gridDim.x) * blockDim.x;
  return {static_cast<int>(threadIdx.x % kWarp), thread / kWarp, threads / kWarp};
}

}  // namespace

extern "C" __global__ void sample_count(const int64* indptr, int64 num_edges, const int64* nodes, int64 rows,
                                        int64 fanout, int64 replace, int64* start, int64* degree, int64* taken,
                                        int64* wrong) {
  count_rows({indptr, num_edges, nodes, rows, {fanout, replace}, start, degree, taken, wrong}, this_lane());
}

extern "C" __global__ void sample_draw(uint64 key, const int64* nodes, int64 rows, int64 fanout, int64 replace,
                                       const int64* degree, const int64* first, int64* drawn) {
  draw_places({key, nodes, rows, {fanout, replace}, degree, first, drawn}, this_lane());
}

#define OUTCROP_FETCH(NAME, INDEX)                                                                                    \
  extern "C" __global__ void NAME(const INDEX* indices, int64 num_nodes, int64 rows, int64 fanout, int64 replace,    \
                                  const int64* start, const int64* degree, const int64* first, const int64* drawn,   \
                                  int64* neighbours, int64* wrong) {                                                  \
    fetch<INDEX>({indices, num_nodes, rows, {fanout, replace}, start, degree, first, drawn, neighbours, wrong},      \
                 this_lane());                                                                                        \
  }

OUTCROP_FETCH(sample_fetch_32, uint32)
OUTCROP_FETCH(sample_fetch_64, int64)

extern "C" __global__ void sample_labor(uint64 key, int64 rows, int64 fanout, const int64* degree, const int64* first,
                                        const int64* neighbours, uint8* kept) {
  keep_labor({key, rows, {fanout, 0}, degree, first, neighbours, kept}, this_lane());
}
