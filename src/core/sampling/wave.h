// Sampling from a topology on disk: several mini-batches at once, hop by hop. Of a hop, first the ends of the
// neighbour lists are read, then what is wanted of the lists: for uniform draws the drawn places alone (they
// follow from the degree), for LABOR, ShaDow and weights whole lists, in bounded pieces. The wishes of all
// batches of the wave are sorted and merged by page (sampling/paged.h). Batches go over their nodes ascending, and
// none of a wave goes on to a list that others do not reach in the same round: so a hop reads a page once however many
// batches want it. The batches are those that NeighborSampler draws, bit for bit.
//
// A batch of a wave holds its nodes and edges, and of the hop where its lists lie and what it keeps of them;
// what finds repeats (BatchScratch) there is once per worker. Induced subgraphs look it up while they read,
// and have one each.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/budget.h"
#include "base/parallel.h"
#include "cache/hot_index.h"
#include "sampling/paged.h"
#include "sampling/sampler.h"

namespace outcrop {

// Neighbour lists in memory: list i, the number `index` says, is elements [offsets[i], offsets[i + 1])
// of what the arrays of the topology go on with behind their ends.
struct CachedLists {
  std::shared_ptr<const HotIndex> index;
  const int64_t* offsets = nullptr;
  const int64_t* starts = nullptr;  // where list i lies on disk; or none, and nobody may ask for positions
};

struct PagedTopology {
  std::shared_ptr<const Relations> relations;
  int64_t num_lists = 0, num_edges = 0;
  const int64_t* indptr = nullptr;           // in memory, or else
  std::unique_ptr<PagedArray> indptr_pages;  // int64 [num_lists + 1]
  std::unique_ptr<PagedArray> indices;       // uint32 or int64 [num_edges]
  std::unique_ptr<PagedArray> weights;       // float32 [num_weights], or none
  std::unique_ptr<PageScratch> scratch;
  CachedLists cached;

  // Where a cached list lies: positions from num_edges on. False where it is not cached.
  bool find_cached(int64_t list, int64_t& begin, int64_t& end) const {
    const int64_t held = cached.index ? cached.index->list_of(list) : -1;
    if (held < 0) return false;
    begin = num_edges + cached.offsets[held], end = num_edges + cached.offsets[held + 1];
    return true;
  }
  // Where the cached list lies on disk.
  int64_t start_of_cached(int64_t list) const { return cached.starts[cached.index->list_of(list)]; }
  // The lists that lie at [ends[2 i], ends[2 i + 1]), one after the other.
  void read_lists(PagedArray& array, std::span<const int64_t> ends, std::byte* out);
  // ends[2 i], ends[2 i + 1] = where list ids[i] begins and ends. Throws Error(argument) for ids out of range.
  void read_ranges(std::span<const int64_t> ids, int64_t* ends);
  void read_neighbors(std::span<const int64_t> positions, int64_t* out);
};

// One mini-batch of a wave. A pass over its lists, edge type by edge type: plan_ranges/take_ranges until all are
// there, then plan/take in turns until plan says that nothing is left.
class PagedBatch {
 public:
  PagedBatch(const PagedTopology& topology, const SamplerOptions& options);
  void begin(std::span<const int64_t> seeds, BatchKey key, BatchScratch& scratch);
  void begin_hop(size_t hop);
  void begin_induced();

  // How far the next round goes, which has room for `room` elements of each batch: the number of the last list, or
  // kToTheEnd; kNothing where all is there.
  int64_t reach_of_ranges(size_t room) const;
  int64_t reach(size_t room) const;
  // Pieces for at most `room` elements, of lists of numbers up to `last`.
  void plan_ranges(size_t room, int64_t last, std::vector<Piece>& pieces);
  void take_ranges(const int64_t* ends);  // of what was planned
  static constexpr int64_t kToTheEnd = INT64_MAX, kNothing = -1;
  void begin_weights() { begin_lists(Stage::weights); }
  void begin_neighbors() { begin_lists(induced_ ? Stage::induced : Stage::neighbours); }
  void plan(size_t room, int64_t last, std::vector<Piece>& pieces);
  template <class Element>
  void take(const Element* values);

  void finish_hop(BatchScratch& scratch);
  std::span<const int64_t> frontier() const { return batch_.frontier(); }
  void finish_induced() { batch_.finish_induced(); }
  SampledBatch result() { return batch_.take(); }
  uint64_t most_bytes() const { return batch_.most_bytes(); }

 private:
  enum class Stage { weights, neighbours, induced };
  struct Segment {  // of a list, in the order of the values
    uint32_t list = 0, count = 0;
    bool first = false, last = false;
    int64_t position = 0;  // of the first where all of the segment is looked at, on disk
  };
  void begin_pass(std::span<const int64_t> nodes, std::vector<HopPart> parts);
  // The part that has the list, which is in `part`, if that is known, or behind it.
  const HopPart* part_from(const HopPart* part, size_t list) const {
    return part && list < part->end ? part : find_part(list);
  }
  const HopPart* find_part(size_t list) const;
  int64_t node_of(const HopPart& part, size_t list) const { return nodes_[list - part.first + part.node]; }
  int64_t number_of(const HopPart& part, size_t list) const { return node_of(part, list) + part.shift; }
  int64_t elements_of(const HopPart& part, size_t list) const;
  bool is_cached(size_t list) const { return ranges_[2 * list] >= topology_.num_edges; }  // or empty
  bool draws_places(const HopPart& part, int64_t degree) const;
  void begin_lists(Stage stage);
  void open_list(const HopPart& part);
  int64_t weights_behind(const HopPart& part) const;
  void plan_positions(const HopPart& part, size_t n);
  int64_t start_on_disk(const HopPart& part) const;
  bool chooses_later() const { return stage_ == Stage::induced || options_.kind == SamplerKind::labor; }
  void add_range(const HopPart& part, size_t list, int64_t begin, int64_t end);
  ListRange range(size_t i) const { return {ranges_[2 * i], ranges_[2 * i + 1] - ranges_[2 * i]}; }
  template <class Index>
  void take_neighbors(const Index* values, const Segment& segment, const HopPart& part);
  void take_weights(const float* values, const Segment& segment, const HopPart& part);
  void check_memory(size_t more_kept = 0) const;

  const PagedTopology& topology_;
  const SamplerOptions& options_;
  BatchBuilder batch_;
  BatchScratch induced_scratch_;
  UniformDraw draw_;
  Race race_;
  BatchKey key_;
  size_t hop_ = 0;
  bool induced_ = false;
  Stage stage_ = Stage::neighbours;
  std::span<const int64_t> nodes_;  // of this pass
  std::vector<HopPart> parts_;      // its lists, numbered from 0
  size_t num_lists_ = 0;
  bool rises_ = true;            // the numbers of the lists do
  std::vector<int64_t> ranges_;  // two ends per list, as far as they were read
  size_t planned_ranges_ = 0;    // lists
  std::vector<Segment> segments_;
  size_t list_ = 0;     // that is planned next
  bool open_ = false;   // part of it was planned
  int64_t done_ = 0;    // elements of it that were
  int64_t length_ = 0;  // elements of it
  bool whole_ = true;   // the list from its start; else positions_
  std::vector<int64_t> positions_;
  std::vector<int64_t> chosen_;       // by weight, positions of all lists
  std::vector<int64_t> chosen_ends_;  // per list
};

class WaveSampler {
 public:
  // `wave`: batches at a time.
  WaveSampler(std::shared_ptr<WorkerPool> workers, std::shared_ptr<PagedTopology> topology, Budget& budget,
              SamplerOptions options, size_t wave);
  // Batch i has seeds[offsets[i]:offsets[i + 1]] and key.batch + i; at most `wave` batches.
  std::vector<SampledBatch> sample(std::span<const int64_t> seeds, std::span<const int64_t> offsets,
                                   BatchKey key);
  // One batch in steps, as NeighborSampler has them.
  void begin(std::span<const int64_t> seeds, BatchKey key);
  std::span<const int64_t> hop();
  SampledBatch finish();
  size_t wave() const { return batches_.size(); }
  uint64_t most_batch_bytes() const;  // that a batch has needed so far
  // Memory of rounds besides the page scratch, for `pieces` pieces.
  static uint64_t round_bytes(uint64_t pieces) { return pieces * (2 * sizeof(Piece) + sizeof(int64_t)); }

 private:
  template <class Reach, class Plan, class Take>
  void rounds(size_t count, PagedArray& array, Reach&& reach, Plan&& plan, Take&& take);
  void each(size_t count, const std::function<void(PagedBatch&)>& fn);
  void finish_hop(size_t count);
  void read_ranges(size_t count);
  void read_weights(size_t count);
  void read_neighbors(size_t count);
  void draw_hop(size_t count);
  void induce(size_t count);

  std::shared_ptr<WorkerPool> workers_;
  std::shared_ptr<PagedTopology> topology_;
  SamplerOptions options_;
  std::vector<std::unique_ptr<PagedBatch>> batches_;
  std::vector<BatchScratch> scratch_;  // per worker
  size_t hops_ = 0;                    // drawn
  size_t room_;                        // elements of one batch in one round
  Reservation pieces_bytes_;
  std::vector<std::vector<Piece>> pieces_of_;
  std::vector<Piece> pieces_;
  Buffer values_;
};

}  // namespace outcrop
