// One hop of a mini-batch: the neighbours of the frontier's nodes, drawn as core/graph/sampler.cpp draws them, bit for
// bit, from a topology read where it lies.
//
// A hop is three passes, each a launch, so that what one lane writes another reads only in the next: no lane waits for
// another, and the order in which lanes run does not matter.
//   count_rows   where each list lies, and how many of it are taken; a lane per node. Their running sums (`first`) are
//                the caller's.
//   draw_places  a warp per node: each lane replays the node's stream of random numbers and keeps every 32nd. (Which
//                word of the stream a number comes from depends on the words rejected before, so it cannot be jumped
//                to.)
//   fetch        a warp per node: numbers become distinct places, places become neighbours.
// LABOR takes whole lists, of which keep_labor says what stays.
#pragma once
#include "kernels/random.h"

namespace outcrop::kernels {

// What is asked of a list of `degree` neighbours. fanout -1: all.
struct Ask {
  int64 fanout;
  int64 replace;  // 0 or 1
};

OUTCROP_DEVICE bool takes_all(const Ask& ask, int64 degree) {
  return !ask.replace && (ask.fanout == -1 || degree <= ask.fanout);
}

struct CountRows {
  const int64* indptr;  // [num_nodes + 1]
  int64 num_edges;
  const int64* nodes;  // of the frontier: ids in range
  int64 rows;
  Ask ask;
  int64 *start, *degree, *taken;  // [rows]
  int64* wrong;                   // becomes 1 + row where indptr is damaged; its list counts as empty
};

OUTCROP_DEVICE void count_rows(const CountRows& c, const Lane& me) {
  for (int64 row = me.warp * kWarp + me.lane; row < c.rows; row += me.warps * kWarp) {
    const int64 begin = c.indptr[c.nodes[row]], end = c.indptr[c.nodes[row] + 1];
    const bool damaged = begin < 0 || end < begin || end > c.num_edges;
    const int64 degree = damaged ? 0 : end - begin;
    if (damaged) *c.wrong = row + 1;
    c.start[row] = begin;
    c.degree[row] = degree;
    c.taken[row] = degree == 0 || takes_all(c.ask, degree) ? degree : c.ask.fanout;
  }
}

struct DrawPlaces {
  uint64 key;  // of the hop (hop_key)
  const int64* nodes;
  int64 rows;
  Ask ask;
  const int64 *degree, *first;  // [rows], [rows + 1]
  int64* drawn;                 // [first[rows]]; left as it is where whole lists are taken
};

OUTCROP_DEVICE void draw_places(const DrawPlaces& d, const Lane& me) {
  for (int64 row = me.warp; row < d.rows; row += me.warps) {
    const int64 degree = d.degree[row], fanout = d.ask.fanout;
    if (degree == 0 || takes_all(d.ask, degree)) continue;
    RandomStream random(d.key, static_cast<uint64>(d.nodes[row]));
    for (int64 i = 0; i < fanout; ++i) {
      const int64 bound = d.ask.replace ? degree : degree - fanout + i + 1;
      const auto number = static_cast<int64>(random.below(static_cast<uint64>(bound)));
      if (i % kWarp == me.lane) d.drawn[d.first[row] + i] = number;
    }
  }
}

// Whether Floyd's algorithm (Bentley and Floyd, CACM 1987), at its step i, finds the number drawn[i] among the places it
// has chosen, and so chooses base + i: where an earlier step drew the same number, or where step number - base found
// its own number taken and so chose this one.
OUTCROP_DEVICE bool was_chosen(const int64* drawn, int64 i, int64 base) {
  for (;;) {
    const int64 number = drawn[i];
    for (int64 k = 0; k < i; ++k)
      if (drawn[k] == number) return true;
    if (number < base || number - base >= i) return false;
    i = number - base;
  }
}

template <typename Index>
struct Fetch {
  const Index* indices;  // [num_edges]
  int64 num_nodes;
  int64 rows;
  Ask ask;
  const int64 *start, *degree, *first, *drawn;
  int64* neighbours;  // [first[rows]]
  int64* wrong;       // becomes 1 + i for some i of which neighbours[i] is no node
};

template <typename Index>
OUTCROP_DEVICE void fetch(const Fetch<Index>& f, const Lane& me) {
  for (int64 row = me.warp; row < f.rows; row += me.warps) {
    const int64 degree = f.degree[row], first = f.first[row], count = f.first[row + 1] - first;
    const bool all = takes_all(f.ask, degree);
    const int64* drawn = f.drawn + first;
    for (int64 i = me.lane; i < count; i += kWarp) {
      const int64 base = degree - count;
      const bool taken = !all && !f.ask.replace && was_chosen(drawn, i, base);
      const int64 place = all ? i : taken ? base + i : drawn[i];
      const auto id = static_cast<int64>(f.indices[f.start[row] + place]);
      f.neighbours[first + i] = id;
      if (id < 0 || id >= f.num_nodes) *f.wrong = first + i + 1;
    }
  }
}

// floor(fanout 2^64 / degree) for degree > fanout >= 1: core's labor_bound, by long division.
OUTCROP_DEVICE uint64 labor_bound(int64 degree, int64 fanout) {
  auto rest = static_cast<uint64>(fanout);
  const auto divisor = static_cast<uint64>(degree);
  uint64 quotient = 0;
  for (int bit = 0; bit < 64; ++bit) {
    rest <<= 1;  // below 2^64: it was below the divisor
    quotient <<= 1;
    if (rest >= divisor) {
      rest -= divisor;
      quotient |= 1;
    }
  }
  return quotient;
}

struct KeepLabor {
  uint64 key;
  int64 rows;
  Ask ask;
  const int64 *degree, *first, *neighbours;  // of whole lists
  uint8* kept;                               // [first[rows]], 0 or 1
};

OUTCROP_DEVICE void keep_labor(const KeepLabor& k, const Lane& me) {
  for (int64 row = me.warp; row < k.rows; row += me.warps) {
    const int64 degree = k.degree[row];
    const bool all = takes_all(k.ask, degree);
    const uint64 bound = all ? 0 : labor_bound(degree, k.ask.fanout);
    for (int64 i = k.first[row] + me.lane; i < k.first[row + 1]; i += kWarp)
      k.kept[i] = all || mix64(k.key ^ static_cast<uint64>(k.neighbours[i])) < bound ? 1 : 0;
  }
}

}  // namespace outcrop::kernels
