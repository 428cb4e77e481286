#include "sampling/wave.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace outcrop {

// PagedTopology

void PagedTopology::read_ranges(std::span<const int64_t> ids, int64_t* ends) {
  for (int64_t id : ids)
    if (id < 0 || id >= num_lists)
      throw Error(ErrorKind::argument, "node " + std::to_string(id) + " is out of range");
  if (indptr) {
    for (size_t i = 0; i < ids.size(); ++i)
      ends[2 * i] = indptr[ids[i]], ends[2 * i + 1] = indptr[ids[i] + 1];
  } else {
    std::vector<Piece> pieces;
    const size_t group = std::max<size_t>(1, scratch->pieces() / 2);
    for (size_t begin = 0; begin < ids.size(); begin += group) {
      pieces.clear();
      const size_t n = std::min(group, ids.size() - begin);
      for (size_t i = 0; i < n; ++i)
        indptr_pages->add_pieces(pieces, static_cast<uint64_t>(ids[begin + i]), 2,
                                 static_cast<uint32_t>(2 * i));
      indptr_pages->gather(*scratch, pieces, reinterpret_cast<std::byte*>(ends + 2 * begin));
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) checked_range(ids[i], ends[2 * i], ends[2 * i + 1], 0, num_edges);
}

void PagedTopology::read_neighbors(std::span<const int64_t> positions, int64_t* out) {
  for (int64_t p : positions)
    if (p < 0 || p >= num_edges)
      throw Error(ErrorKind::argument, "edge position " + std::to_string(p) + " is out of range");
  std::vector<Piece> pieces;
  std::vector<uint32_t> narrow;
  for (size_t begin = 0; begin < positions.size(); begin += scratch->pieces()) {
    const size_t n = std::min(scratch->pieces(), positions.size() - begin);
    pieces.clear();
    for (size_t i = 0; i < n; ++i)
      pieces.push_back({static_cast<uint64_t>(positions[begin + i]), 1, static_cast<uint32_t>(i)});
    if (indices->element_bytes() == 8) {
      indices->gather(*scratch, pieces, reinterpret_cast<std::byte*>(out + begin));
      continue;
    }
    narrow.resize(n);
    indices->gather(*scratch, pieces, reinterpret_cast<std::byte*>(narrow.data()));
    std::copy(narrow.begin(), narrow.end(), out + begin);
  }
}

void PagedTopology::read_lists(PagedArray& array, std::span<const int64_t> ends, std::byte* out) {
  std::vector<Piece> pieces;
  uint32_t wanted = 0;  // elements of these pieces
  const auto read = [&] {
    array.gather(*scratch, pieces, out);
    out += uint64_t{wanted} * array.element_bytes();
    pieces.clear();
    wanted = 0;
  };
  constexpr uint64_t kMost = 1 << 20;  // elements of a list that are planned at a time
  for (size_t i = 0; i + 1 < ends.size(); i += 2)
    for (auto at = static_cast<uint64_t>(ends[i]), end = static_cast<uint64_t>(ends[i + 1]); at < end;) {
      const uint64_t n = std::min(end - at, kMost);
      array.add_pieces(pieces, at, n, wanted);
      at += n, wanted += static_cast<uint32_t>(n);
      if (pieces.size() >= scratch->pieces() || wanted >= kMost) read();
    }
  read();
}

// PagedBatch

PagedBatch::PagedBatch(const PagedTopology& topology, const SamplerOptions& options)
    : topology_(topology),
      options_(options),
      batch_(topology.relations, options.max_batch_bytes, options.positions) {}

void PagedBatch::begin(std::span<const int64_t> seeds, BatchKey key, BatchScratch& scratch) {
  batch_.begin(seeds, scratch);
  key_ = key;
  induced_ = false;
}

void PagedBatch::begin_pass(std::span<const int64_t> nodes, std::vector<HopPart> parts) {
  nodes_ = nodes;
  parts_ = std::move(parts);
  num_lists_ = parts_.empty() ? 0 : parts_.back().end;
  ranges_.clear();
  check_memory();
  ranges_.reserve(2 * num_lists_);
  planned_ranges_ = 0;
  rises_ = true;
  int64_t before = -1;
  for (const HopPart& part : parts_)
    for (size_t i = part.first; i < part.end && rises_; before = number_of(part, i), ++i)
      rises_ = number_of(part, i) >= before;
}

const HopPart* PagedBatch::find_part(size_t list) const {
  return &*std::partition_point(parts_.begin(), parts_.end(),
                                [&](const HopPart& p) { return p.end <= list; });
}

void PagedBatch::begin_hop(size_t hop) {
  if (options_.positions && topology_.cached.index && !topology_.cached.starts)
    throw Error(ErrorKind::argument,
                "cached lists do not say where they lie on disk: cache them with their starts, or "
                "do not ask for positions");
  hop_ = hop;
  chosen_.clear();
  chosen_ends_.clear();
  begin_pass(batch_.frontier(), parts_of_hop(batch_, options_, key_, hop));
}

void PagedBatch::begin_induced() {
  induced_ = true;
  batch_.enter(induced_scratch_);
  batch_.begin_induced();
  HopPart all;
  all.end = batch_.nodes().size();
  all.fanout = -1;
  all.end_edge = topology_.num_edges;
  begin_pass(batch_.nodes(), all.end ? std::vector{all} : std::vector<HopPart>{});
}

int64_t PagedBatch::reach_of_ranges(size_t room) const {
  if (planned_ranges_ == num_lists_) return kNothing;
  const size_t end = planned_ranges_ + room / 2;
  if (!rises_ || end >= num_lists_) return kToTheEnd;
  return number_of(*find_part(end - 1), end - 1);
}

int64_t PagedBatch::reach(size_t room) const {
  if (list_ == num_lists_) return kNothing;
  if (!rises_) return kToTheEnd;
  const HopPart* part = nullptr;
  int64_t left = static_cast<int64_t>(room);
  for (size_t i = list_; i < num_lists_; ++i) {
    part = part_from(part, i);
    left -= i == list_ && open_ ? length_ - done_ : elements_of(*part, i);
    if (left <= 0) return number_of(*part, i);
  }
  return kToTheEnd;
}

void PagedBatch::plan_ranges(size_t room, int64_t last, std::vector<Piece>& pieces) {
  if (topology_.indptr) {
    for (const HopPart& part : parts_)
      for (size_t i = part.first; i < part.end; ++i) {
        const int64_t list = number_of(part, i);
        add_range(part, i, topology_.indptr[list], topology_.indptr[list + 1]);
      }
    return;
  }
  const size_t begin = planned_ranges_;
  int64_t from, to;
  const HopPart* part = nullptr;
  for (; planned_ranges_ < num_lists_ && 2 * (planned_ranges_ - begin) + 2 <= room; ++planned_ranges_) {
    part = part_from(part, planned_ranges_);
    const int64_t list = number_of(*part, planned_ranges_);
    if (rises_ && list > last) break;
    if (part->fanout != 0 && !topology_.find_cached(list, from, to))
      topology_.indptr_pages->add_pieces(pieces, static_cast<uint64_t>(list), 2,
                                         static_cast<uint32_t>(2 * (planned_ranges_ - begin)));
  }
}

void PagedBatch::take_ranges(const int64_t* ends) {
  const HopPart* part = nullptr;
  for (size_t i = ranges_.size() / 2; i < planned_ranges_; ++i, ends += 2) {
    part = part_from(part, i);
    add_range(*part, i, ends[0], ends[1]);
  }
}

// `begin` and `end` count where the list is wanted and not cached.
void PagedBatch::add_range(const HopPart& part, size_t list, int64_t begin, int64_t end) {
  const int64_t node = node_of(part, list);
  if (part.fanout == 0)
    begin = end = 0;
  else if (!topology_.find_cached(node + part.shift, begin, end))
    checked_range(node, begin, end, part.first_edge, part.end_edge);
  ranges_.push_back(begin);
  ranges_.push_back(end);
}

void PagedBatch::begin_lists(Stage stage) {
  stage_ = stage;
  list_ = 0;
  open_ = false;
  if (stage == Stage::induced) return;
  size_t kept = 0;  // known before it is read; of LABOR what is expected
  for (const HopPart& part : parts_)
    for (size_t i = part.first; i < part.end; ++i)
      kept += static_cast<size_t>(UniformDraw::count(range(i).degree, part.fanout, options_.replace));
  if (stage == Stage::weights) return chosen_.reserve(kept);
  if (options_.kind == SamplerKind::labor) return batch_.reserve_kept(kept + kept / 16);
  check_memory(kept);
  batch_.reserve_kept(kept);
}

// Whether places are drawn of a list, uniformly, and not all of it is taken or looked at.
bool PagedBatch::draws_places(const HopPart& part, int64_t degree) const {
  if (options_.kind == SamplerKind::labor) return false;
  return options_.replace || (part.fanout != -1 && degree > part.fanout);
}

// How many elements of a list are read in this stage.
int64_t PagedBatch::elements_of(const HopPart& part, size_t list) const {
  const int64_t degree = range(list).degree;
  if (stage_ == Stage::weights && !part.weighted) return 0;
  if (stage_ != Stage::neighbours) return degree;
  if (part.weighted) return chosen_ends_[list] - (list ? chosen_ends_[list - 1] : 0);
  return draws_places(part, degree) ? UniformDraw::count(degree, part.fanout, options_.replace) : degree;
}

// What is wanted of the list that is planned next.
void PagedBatch::open_list(const HopPart& part) {
  const ListRange list = range(list_);
  open_ = true;
  done_ = 0;
  whole_ = true;
  length_ = list.degree;
  if (stage_ == Stage::weights && !part.weighted) length_ = 0;
  if (stage_ != Stage::neighbours) return;
  if (part.weighted) {
    const int64_t begin = list_ ? chosen_ends_[list_ - 1] : 0;
    whole_ = false;
    positions_.assign(chosen_.begin() + begin, chosen_.begin() + chosen_ends_[list_]);
    length_ = static_cast<int64_t>(positions_.size());
  } else if (draws_places(part, list.degree)) {
    whole_ = false;
    positions_.clear();
    length_ = draw_.places(positions_, part.key, node_of(part, list_), list.start, list.degree, part.fanout,
                           options_.replace);
    if (options_.positions) std::sort(positions_.begin(), positions_.end());
  }
}

void PagedBatch::plan(size_t room, int64_t last_list, std::vector<Piece>& pieces) {
  const bool weights = stage_ == Stage::weights;
  const PagedArray& array = weights ? *topology_.weights : *topology_.indices;
  segments_.clear();
  size_t used = 0;
  const HopPart* part = nullptr;
  while (list_ < num_lists_ && used < room) {
    part = part_from(part, list_);
    if (!open_ && rises_ && number_of(*part, list_) > last_list) break;
    if (!open_) open_list(*part);
    const auto take =
        static_cast<size_t>(std::min<int64_t>(length_ - done_, static_cast<int64_t>(room - used)));
    const bool first = done_ == 0;
    const int64_t from = ranges_[2 * list_] + done_ + (weights ? weights_behind(*part) : 0);
    if (whole_)
      array.add_pieces(pieces, static_cast<uint64_t>(from), take, static_cast<uint32_t>(used));
    else
      for (size_t i = 0; i < take; ++i)
        pieces.push_back({static_cast<uint64_t>(positions_[static_cast<size_t>(done_) + i]), 1,
                          static_cast<uint32_t>(used + i)});
    const bool places = options_.positions && !weights;
    const int64_t position = places && chooses_later() ? start_on_disk(*part) + done_ : 0;
    if (places && !chooses_later()) plan_positions(*part, take);
    done_ += static_cast<int64_t>(take);
    used += take;
    const bool last = done_ == length_;
    segments_.push_back({static_cast<uint32_t>(list_), static_cast<uint32_t>(take), first, last, position});
    if (!last) break;
    ++list_;
    open_ = false;
  }
}

// How far weights of the open list lie behind its edges. What is cached goes on behind the end of either array.
int64_t PagedBatch::weights_behind(const HopPart& part) const {
  if (is_cached(list_)) return static_cast<int64_t>(topology_.weights->size()) - topology_.num_edges;
  return part.weight_shift;
}

int64_t PagedBatch::start_on_disk(const HopPart& part) const {
  if (ranges_[2 * list_] == ranges_[2 * list_ + 1]) return 0;
  return is_cached(list_) ? topology_.start_of_cached(node_of(part, list_) + part.shift) : ranges_[2 * list_];
}

// Hands on where the next `n` elements of the open list lie on disk.
void PagedBatch::plan_positions(const HopPart& part, size_t n) {
  if (n == 0) return;
  const int64_t begin = ranges_[2 * list_], start = start_on_disk(part);
  if (whole_) {
    positions_.resize(n);
    std::iota(positions_.begin(), positions_.end(), start + done_);
    return batch_.add_positions(positions_);
  }
  const auto first = positions_.begin() + done_;
  std::vector<int64_t> there(first, first + static_cast<ptrdiff_t>(n));
  for (int64_t& p : there) p += start - begin;
  batch_.add_positions(there);
}

template <class Index>
void PagedBatch::take_neighbors(const Index* values, const Segment& segment, const HopPart& part) {
  const int64_t degree = range(segment.list).degree;
  const bool labor = options_.kind == SamplerKind::labor;
  const auto keep = [&](auto&& wanted) {
    if (options_.positions)
      batch_.keep_if_at(values, segment.count, segment.position, wanted);
    else
      batch_.keep_if(values, segment.count, wanted);
  };
  if (labor && !labor_takes_all(degree, part.fanout)) {
    const uint64_t bound = labor_bound(degree, part.fanout);
    const LaborNumbers number(options_.seed, key_, hop_, options_.dependency, part.relation);
    keep([&](uint64_t id) { return number(id) < bound; });
  } else if (labor) {
    keep([](uint64_t) { return true; });
  } else {
    batch_.keep(values, segment.count);
  }
  if (segment.last) batch_.end_row();
}

void PagedBatch::take_weights(const float* values, const Segment& segment, const HopPart& part) {
  if (part.weighted) {
    if (segment.first)
      race_.start(part.key, node_of(part, segment.list), range(segment.list).degree, part.fanout);
    race_.add(values, segment.count);
  }
  if (!segment.last) return;
  if (part.weighted) race_.finish(chosen_, ranges_[2 * segment.list]);
  chosen_ends_.push_back(static_cast<int64_t>(chosen_.size()));
}

template <class Element>
void PagedBatch::take(const Element* values) {
  check_memory();
  const HopPart* part = nullptr;
  for (const Segment& segment : segments_) {
    if (!part || segment.list >= part->end) {
      part = part_from(part, segment.list);
      batch_.begin_relation(part->relation);
    }
    if constexpr (std::is_same_v<Element, float>) {
      take_weights(values, segment, *part);
    } else if (stage_ == Stage::induced) {
      batch_.keep_inside(values, segment.count, segment.position);
      if (segment.last) batch_.end_row();
    } else {
      take_neighbors(values, segment, *part);
    }
    values += segment.count;
  }
  check_memory();
}

// Ranges of the pass, and what was chosen by weight, come on top of the batch itself.
void PagedBatch::check_memory(size_t more_kept) const {
  batch_.check_kept(
      more_kept, 2 * sizeof(int64_t) * num_lists_ + sizeof(int64_t) * (chosen_.size() + chosen_ends_.size()));
}

void PagedBatch::finish_hop(BatchScratch& scratch) {
  batch_.enter(scratch);
  batch_.finish_hop();
  batch_.release_kept();
}

// WaveSampler

WaveSampler::WaveSampler(std::shared_ptr<WorkerPool> workers, std::shared_ptr<PagedTopology> topology,
                         Budget& budget, SamplerOptions options, size_t wave)
    : workers_(std::move(workers)),
      topology_(std::move(topology)),
      options_(std::move(options)),
      scratch_(workers_->threads()) {
  check_options(options_, *topology_->relations, topology_->weights != nullptr);
  wave = std::max<size_t>(wave, 1);
  for (size_t i = 0; i < wave; ++i) batches_.push_back(std::make_unique<PagedBatch>(*topology_, options_));
  room_ = std::max<size_t>(topology_->scratch->pieces() / wave, 64);
  pieces_bytes_ = budget.reserve("topology-scratch", 2 * sizeof(Piece) * wave * room_);
  values_ = Buffer(budget, "topology-scratch", sizeof(int64_t) * wave * room_);
  pieces_of_.resize(wave);
  for (auto& pieces : pieces_of_) pieces.reserve(room_);
  pieces_.reserve(wave * room_);
}

void WaveSampler::each(size_t count, const std::function<void(PagedBatch&)>& fn) {
  workers_->run(count, [&](size_t b, unsigned) { fn(*batches_[b]); });
}

void WaveSampler::finish_hop(size_t count) {
  workers_->run(count, [&](size_t b, unsigned worker) { batches_[b]->finish_hop(scratch_[worker]); });
}

// reach(batch) says how far it could go, plan(batch, last, pieces) goes as far as all can, take(batch, values) gets it.
template <class Reach, class Plan, class Take>
void WaveSampler::rounds(size_t count, PagedArray& array, Reach&& reach, Plan&& plan, Take&& take) {
  std::vector<int64_t> reached(count);
  for (;;) {
    workers_->run(count, [&](size_t b, unsigned) { reached[b] = reach(*batches_[b]); });
    int64_t last = PagedBatch::kToTheEnd;
    bool done = true;
    for (const int64_t one : reached)
      if (one != PagedBatch::kNothing) last = std::min(last, one), done = false;
    if (done) return;
    workers_->run(count, [&](size_t b, unsigned) {
      pieces_of_[b].clear();
      if (reached[b] != PagedBatch::kNothing) plan(*batches_[b], last, pieces_of_[b]);
    });
    pieces_.clear();
    for (size_t b = 0; b < count; ++b)
      for (Piece piece : pieces_of_[b]) {
        piece.out += static_cast<uint32_t>(b * room_);
        pieces_.push_back(piece);
      }
    array.gather(*topology_->scratch, pieces_, values_.data());
    workers_->run(count, [&](size_t b, unsigned) {
      if (reached[b] != PagedBatch::kNothing)
        take(*batches_[b], values_.data() + b * room_ * array.element_bytes());
    });
  }
}

void WaveSampler::read_ranges(size_t count) {
  if (topology_->indptr)
    return each(count, [](PagedBatch& b) {
      std::vector<Piece> none;
      b.plan_ranges(0, PagedBatch::kToTheEnd, none);
    });
  rounds(
      count, *topology_->indptr_pages, [&](PagedBatch& b) { return b.reach_of_ranges(room_); },
      [&](PagedBatch& b, int64_t last, std::vector<Piece>& pieces) { b.plan_ranges(room_, last, pieces); },
      [](PagedBatch& b, const std::byte* ends) { b.take_ranges(reinterpret_cast<const int64_t*>(ends)); });
}

void WaveSampler::read_weights(size_t count) {
  each(count, [](PagedBatch& b) { b.begin_weights(); });
  rounds(
      count, *topology_->weights, [&](PagedBatch& b) { return b.reach(room_); },
      [&](PagedBatch& b, int64_t last, std::vector<Piece>& pieces) { b.plan(room_, last, pieces); },
      [](PagedBatch& b, const std::byte* values) { b.take(reinterpret_cast<const float*>(values)); });
}

void WaveSampler::read_neighbors(size_t count) {
  each(count, [](PagedBatch& b) { b.begin_neighbors(); });
  const bool narrow = topology_->indices->element_bytes() == 4;
  rounds(
      count, *topology_->indices, [&](PagedBatch& b) { return b.reach(room_); },
      [&](PagedBatch& b, int64_t last, std::vector<Piece>& pieces) { b.plan(room_, last, pieces); },
      [narrow](PagedBatch& b, const std::byte* values) {
        if (narrow)
          b.take(reinterpret_cast<const uint32_t*>(values));
        else
          b.take(reinterpret_cast<const int64_t*>(values));
      });
}

void WaveSampler::draw_hop(size_t count) {
  if (hops_ == options_.hops()) throw Error(ErrorKind::argument, "all hops of the batch were drawn");
  each(count, [this](PagedBatch& b) { b.begin_hop(hops_); });
  read_ranges(count);
  if (options_.kind == SamplerKind::weighted) read_weights(count);
  read_neighbors(count);
  finish_hop(count);
  ++hops_;
}

void WaveSampler::induce(size_t count) {
  if (options_.kind != SamplerKind::shadow) return;
  each(count, [](PagedBatch& b) { b.begin_induced(); });
  read_ranges(count);
  read_neighbors(count);
  each(count, [](PagedBatch& b) { b.finish_induced(); });
}

std::vector<SampledBatch> WaveSampler::sample(std::span<const int64_t> seeds,
                                              std::span<const int64_t> offsets, BatchKey key) {
  const size_t count = offsets.size() - 1;
  workers_->run(count, [&](size_t b, unsigned worker) {
    const auto begin = static_cast<size_t>(offsets[b]), end = static_cast<size_t>(offsets[b + 1]);
    batches_[b]->begin(seeds.subspan(begin, end - begin), {key.split, key.epoch, key.batch + b},
                       scratch_[worker]);
  });
  for (hops_ = 0; hops_ < options_.hops();) draw_hop(count);
  induce(count);
  std::vector<SampledBatch> out;
  for (size_t b = 0; b < count; ++b) out.push_back(batches_[b]->result());
  return out;
}

void WaveSampler::begin(std::span<const int64_t> seeds, BatchKey key) {
  batches_.front()->begin(seeds, key, scratch_.front());
  hops_ = 0;
}

std::span<const int64_t> WaveSampler::hop() {
  draw_hop(1);
  return batches_.front()->frontier();
}

uint64_t WaveSampler::most_batch_bytes() const {
  uint64_t most = 0;
  for (const auto& batch : batches_) most = std::max(most, batch->most_bytes());
  return most;
}

SampledBatch WaveSampler::finish() {
  induce(1);
  return batches_.front()->result();
}

}  // namespace outcrop
