// Entry points of sample.h, sample_fetch_<bits of an index>, and of lookup.h.
#include "kernels/sample.h"

#include "kernels/lookup.h"

using namespace outcrop::kernels;

namespace {

OUTCROP_DEVICE Lane this_lane() {
  const int64 thread = static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64 threads = static_cast<int64>(gridDim.x) * blockDim.x;
  return {static_cast<int>(threadIdx.x % kWarp), thread / kWarp, threads / kWarp};
}

}  // namespace

extern "C" __global__ void sample_count(const int64* indptr, int64 num_edges, const HotBlock* hot,
                                        const int64* first_in_hot, const int64* n_id, const int64* begin,
                                        const int64* end, int64 room, int64 fanout, int64 replace, int64* start,
                                        int64* degree, int64* taken, int64* wrong) {
  count_rows({indptr, num_edges, hot, first_in_hot, {n_id, begin, end}, room, {fanout, replace}, start, degree, taken,
              wrong},
             this_lane());
}

extern "C" __global__ void sample_draw(uint64 key, const int64* n_id, const int64* begin, const int64* end,
                                       int64 fanout, int64 replace, const int64* degree, const int64* first,
                                       int64* drawn) {
  draw_places({key, {n_id, begin, end}, {fanout, replace}, degree, first, drawn}, this_lane());
}

#define OUTCROP_FETCH(NAME, INDEX)                                                                                  \
  extern "C" __global__ void NAME(const INDEX* indices, int64 num_edges, const INDEX* hot, int64 num_nodes,         \
                                  const int64* n_id, const int64* begin, const int64* end, int64 fanout,            \
                                  int64 replace, const int64* start, const int64* degree, const int64* first,       \
                                  const int64* drawn, int64* neighbours, int64* wrong) {                            \
    fetch<INDEX>({indices, num_edges, hot, num_nodes, {n_id, begin, end}, {fanout, replace}, start, degree,         \
                  first, drawn, neighbours, wrong},                                                                 \
                 this_lane());                                                                                      \
  }

OUTCROP_FETCH(sample_fetch_32, uint32)
OUTCROP_FETCH(sample_fetch_64, int64)

extern "C" __global__ void sample_labor(uint64 key, const int64* n_id, const int64* begin, const int64* end,
                                        int64 fanout, const int64* degree, const int64* first,
                                        const int64* neighbours, uint8* kept) {
  keep_labor({key, {n_id, begin, end}, {fanout, 0}, degree, first, neighbours, kept}, this_lane());
}

extern "C" __global__ void sample_compact(int64 count, const int64* values, const int64* kept, int64* out, int64 rows,
                                          const int64* first, int64* first_of_kept) {
  compact({count, values, kept, out, rows, first, first_of_kept}, this_lane());
}

extern "C" __global__ void sample_mark(int64 count, int64 known, const int64* ids, const int64* order, int64* marks) {
  mark({count, known, ids, order}, marks, this_lane());
}

extern "C" __global__ void sample_number(int64 count, int64 known, const int64* ids, const int64* order,
                                         const int64* sums, const int64* nodes, const int64* local, int64* n_id,
                                         int64* run_ids, int64* run_local) {
  number({{count, known, ids, order}, sums, nodes, local, n_id, run_ids, run_local}, this_lane());
}

extern "C" __global__ void sample_relabel(int64 count, int64 known, const int64* ids, const int64* order,
                                          const int64* sums, const int64* run_local, const int64* n_id,
                                          const int64* begin, const int64* end, const int64* first, const int64* edges,
                                          int32* rowptr, int32* col) {
  relabel({{count, known, ids, order}, sums, run_local, {n_id, begin, end}, first, edges, rowptr, col}, this_lane());
}

extern "C" __global__ void sample_advance(int64* begin, int64* nodes, int64* edges, int64* new_nodes,
                                          int64* new_edges, const int64* drawn, const int64* sums) {
  advance({begin, nodes, edges, new_nodes, new_edges, drawn, sums}, this_lane());
}

extern "C" __global__ void sample_look_up(const HotBlock* blocks, const int32* tiers, int64 room, const int64* ids,
                                          const int64* local, uint64* place, int64* marks) {
  look_up({blocks, tiers, room, ids, local, place, marks}, this_lane());
}

extern "C" __global__ void sample_list_missing(int64 room, const int64* ids, const int64* local, const int64* sums,
                                               int64* missing, int32* positions, int64* counts) {
  list_missing({room, ids, local, sums, missing, positions, counts}, this_lane());
}
