// One hop of a mini-batch: the neighbours of the frontier's nodes, drawn as core/sampling/sampler.cpp draws them, bit for
// bit, from a topology read where it lies; and their local numbers, those of core/sampling/batch_builder.h.
//
// The host does not know how large anything is: arrays have room for the most there can be, and kernels read from device
// memory how much there is. A hop is several passes, each a launch, so that what one lane writes another reads only in
// the next: no lane waits for another, and the order in which lanes run does not matter.
//   count_rows   where each list lies, and how many of it are taken; a lane per node. Their running sums (`first`) are
//                the caller's.
//   draw_places  a warp per node: each lane replays the node's stream of random numbers and keeps every 32nd. (Which
//                word of the stream a number comes from depends on the words rejected before, so it cannot be jumped
//                to.)
//   fetch        a warp per node: numbers become distinct places, places become neighbours.
// LABOR takes whole lists, of which keep_labor says what stays; compact moves that together.
//
// Numbering: the ids of the nodes known so far, and behind them the neighbours, are sorted together (stable: a node that
// is known stands first among its equals; by the caller), unused room (kNone) behind all.
//   mark         the first of each run of equal ids, and whether it is new; their running sums are the caller's.
//   number       each run gets its local number, new nodes ascending behind those known.
//   relabel      neighbours become local numbers in their old order; rows become a part of rowptr.
//   advance      what was new is the next frontier.
#pragma once
#include "kernels/hot_index.h"
#include "kernels/random.h"

namespace outcrop::kernels {

constexpr int64 kNone = 0x7FFFFFFFFFFFFFFF;  // no id
constexpr int64 kOneNew = int64{1} << 32;    // of a mark, whose lower half counts runs

// The nodes of a hop: n_id[*begin .. *end).
struct Frontier {
  const int64* n_id;
  const int64 *begin, *end;
};

OUTCROP_DEVICE int64 rows_of(const Frontier& f) { return *f.end - *f.begin; }
OUTCROP_DEVICE int64 first_of(const Lane& me) { return me.warp * kWarp + me.lane; }
OUTCROP_DEVICE int64 lanes_of(const Lane& me) { return me.warps * kWarp; }

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
  const HotBlock* hot;         // which lists the device has; null: none
  const int64* first_in_hot;   // [lists + 1]: where each begins there
  Frontier frontier;
  int64 room;  // rows at the most
  Ask ask;
  int64 *start, *degree;  // [room]; a list that the device has lies behind the end of indices
  int64* taken;           // [room + 1]: 0, then how many of each row; 0 where there is none
  int64* wrong;           // becomes 1 + node where indptr is damaged; its list counts as empty
};

OUTCROP_DEVICE void count_rows(const CountRows& c, const Lane& me) {
  const int64 rows = rows_of(c.frontier);
  const int64* nodes = c.frontier.n_id + *c.frontier.begin;
  if (first_of(me) == 0) c.taken[0] = 0;
  for (int64 row = first_of(me); row < c.room; row += lanes_of(me)) {
    if (row >= rows) {
      c.taken[row + 1] = 0;
      continue;
    }
    const int64 list = hot_list(c.hot, nodes[row]);
    const int64* ends = list < 0 ? c.indptr + nodes[row] : c.first_in_hot + list;
    const int64 begin = ends[0], end = ends[1];
    const bool damaged = list < 0 && (begin < 0 || end < begin || end > c.num_edges);
    const int64 degree = damaged ? 0 : end - begin;
    if (damaged) *c.wrong = nodes[row] + 1;
    c.start[row] = list < 0 ? begin : c.num_edges + begin;
    c.degree[row] = degree;
    c.taken[row + 1] = degree == 0 || takes_all(c.ask, degree) ? degree : c.ask.fanout;
  }
}

struct DrawPlaces {
  uint64 key;  // of the hop (hop_key)
  Frontier frontier;
  Ask ask;
  const int64 *degree, *first;  // [rows], [rows + 1]
  int64* drawn;                 // [first[rows]]; left as it is where whole lists are taken
};

OUTCROP_DEVICE void draw_places(const DrawPlaces& d, const Lane& me) {
  const int64 rows = rows_of(d.frontier);
  const int64* nodes = d.frontier.n_id + *d.frontier.begin;
  for (int64 row = me.warp; row < rows; row += me.warps) {
    const int64 degree = d.degree[row], fanout = d.ask.fanout;
    if (degree == 0 || takes_all(d.ask, degree)) continue;
    RandomStream random(d.key, static_cast<uint64>(nodes[row]));
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
  int64 num_edges;
  const Index* hot;  // the lists that the device has, one after the other
  int64 num_nodes;
  Frontier frontier;
  Ask ask;
  const int64 *start, *degree, *first, *drawn;
  int64* neighbours;  // [first[rows]]; 0 in place of what is no node
  int64* wrong;       // [2]: becomes 1, and what is no node
};

template <typename Index>
OUTCROP_DEVICE void fetch(const Fetch<Index>& f, const Lane& me) {
  const int64 rows = rows_of(f.frontier);
  for (int64 row = me.warp; row < rows; row += me.warps) {
    const int64 degree = f.degree[row], first = f.first[row], count = f.first[row + 1] - first;
    const bool all = takes_all(f.ask, degree);
    const int64* drawn = f.drawn + first;
    for (int64 i = me.lane; i < count; i += kWarp) {
      const int64 base = degree - count;
      const bool taken = !all && !f.ask.replace && was_chosen(drawn, i, base);
      const int64 place = all ? i : taken ? base + i : drawn[i];
      const int64 at = f.start[row] + place;
      const auto id = static_cast<int64>(at < f.num_edges ? f.indices[at] : f.hot[at - f.num_edges]);
      const bool damaged = id < 0 || id >= f.num_nodes;
      f.neighbours[first + i] = damaged ? 0 : id;
      if (damaged) {
        f.wrong[0] = 1;
        f.wrong[1] = id;
      }
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
  Frontier frontier;
  Ask ask;
  const int64 *degree, *first, *neighbours;  // of whole lists
  uint8* kept;                               // [first[rows]], 0 or 1
};

OUTCROP_DEVICE void keep_labor(const KeepLabor& k, const Lane& me) {
  const int64 rows = rows_of(k.frontier);
  for (int64 row = me.warp; row < rows; row += me.warps) {
    const int64 degree = k.degree[row];
    const bool all = takes_all(k.ask, degree);
    const uint64 bound = all ? 0 : labor_bound(degree, k.ask.fanout);
    for (int64 i = k.first[row] + me.lane; i < k.first[row + 1]; i += kWarp)
      k.kept[i] = all || mix64(k.key ^ static_cast<uint64>(k.neighbours[i])) < bound ? 1 : 0;
  }
}

struct Compact {
  int64 count;           // values
  const int64* values;   // [count]
  const int64* kept;     // [count + 1]: how many are kept of those before each
  int64* out;            // [kept[count]]
  int64 rows;            // that the values lie in, row r from first[r] on
  const int64* first;    // [rows + 1]
  int64* first_of_kept;  // [rows + 1]
};

OUTCROP_DEVICE void compact(const Compact& c, const Lane& me) {
  for (int64 i = first_of(me); i < c.count; i += lanes_of(me))
    if (c.kept[i + 1] > c.kept[i]) c.out[c.kept[i]] = c.values[i];
  for (int64 row = first_of(me); row <= c.rows; row += lanes_of(me)) c.first_of_kept[row] = c.kept[c.first[row]];
}

// Ids in ascending order, and which place each had before: below `known` among the nodes known so far, from there on
// among the neighbours.
struct Sorted {
  int64 count;
  int64 known;
  const int64 *ids, *order;  // [count]
};

OUTCROP_DEVICE bool heads_run(const Sorted& s, int64 i) {
  return s.ids[i] != kNone && (i == 0 || s.ids[i - 1] != s.ids[i]);
}

// marks [count]: of the head of a run 1, and kOneNew more where its node is not known; else 0.
OUTCROP_DEVICE void mark(const Sorted& s, int64* marks, const Lane& me) {
  for (int64 i = first_of(me); i < s.count; i += lanes_of(me))
    marks[i] = heads_run(s, i) ? 1 + (s.order[i] >= s.known ? kOneNew : 0) : 0;
}

OUTCROP_DEVICE int64 run_of(int64 sums) { return (sums & (kOneNew - 1)) - 1; }

struct Number {
  Sorted sorted;
  const int64* sums;   // [count], of marks
  const int64* nodes;  // how many are known
  const int64* local;  // [known]: local numbers, as sorted.ids had them before
  int64* n_id;
  int64 *run_ids, *run_local;  // of each run: the known nodes of the next hop
};

OUTCROP_DEVICE void number(const Number& n, const Lane& me) {
  const int64 nodes = *n.nodes;
  for (int64 i = first_of(me); i < n.sorted.count; i += lanes_of(me)) {
    if (!heads_run(n.sorted, i)) continue;
    const int64 id = n.sorted.ids[i], place = n.sorted.order[i], run = run_of(n.sums[i]);
    const bool fresh = place >= n.sorted.known;
    const int64 local = fresh ? nodes + n.sums[i] / kOneNew - 1 : n.local[place];
    if (fresh) n.n_id[local] = id;
    n.run_ids[run] = id;
    n.run_local[run] = local;
  }
}

struct RelabelHop {
  Sorted sorted;
  const int64 *sums, *run_local;
  Frontier frontier;
  const int64* first;  // [rows + 1]
  const int64* edges;  // how many there are before this hop
  int32 *rowptr, *col;
};

OUTCROP_DEVICE void relabel(const RelabelHop& r, const Lane& me) {
  const int64 edges = *r.edges, begin = *r.frontier.begin, rows = rows_of(r.frontier);
  for (int64 i = first_of(me); i < r.sorted.count; i += lanes_of(me)) {
    const int64 place = r.sorted.order[i] - r.sorted.known;
    if (r.sorted.ids[i] != kNone && place >= 0)
      r.col[edges + place] = static_cast<int32>(r.run_local[run_of(r.sums[i])]);
  }
  for (int64 row = first_of(me); row < rows; row += lanes_of(me))
    r.rowptr[begin + row + 1] = static_cast<int32>(edges + r.first[row + 1]);
}

struct Advance {
  int64 *begin, *nodes, *edges;  // of the frontier; of the batch
  int64 *new_nodes, *new_edges;  // of this hop
  const int64* drawn;            // the last of `first`
  const int64* sums;             // the last of the sums of marks
};

OUTCROP_DEVICE void advance(const Advance& a, const Lane& me) {
  if (first_of(me) != 0) return;
  *a.new_nodes = *a.sums / kOneNew;
  *a.new_edges = *a.drawn;
  *a.begin = *a.nodes;
  *a.nodes += *a.new_nodes;
  *a.edges += *a.new_edges;
}

}  // namespace outcrop::kernels
