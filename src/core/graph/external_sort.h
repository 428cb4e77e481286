// Bounded external sort of fixed-size records (stable): records are gathered in one buffer taken from a
// budget, sorted in memory, spilled as sorted runs to a nameless scratch file when the buffer is full, and
// merged.
//
// Protocol: push/add any number of records, then finish(sink) once; the sink gets the records in ascending
// key order in consecutive pieces. Nothing is spilled when everything fits. Merging reuses the same buffer:
// two read blocks per run (one is consumed while the other is read); more runs than the buffer can serve are
// merged in several passes.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "base/parallel.h"
#include "base/text.h"
#include "graph/radix_sort.h"
#include "graph/temp_file.h"
#include "io/block_io.h"

namespace outcrop {

struct SortStats {
  uint64_t records = 0;
  uint64_t runs = 0;          // runs spilled by sorting; 0 = everything fitted in memory
  uint64_t merge_passes = 0;  // passes over the data, the last one included
  uint64_t spilled_bytes = 0;
};

struct SortOptions {
  std::string scratch_folder;
  uint64_t memory_bytes = 64 << 20;     // all that the sorter holds
  WorkerPool* workers = nullptr;        // nullptr: the calling thread only
  uint64_t min_block_bytes = 16 << 10;  // smallest read of a merge; sets how many runs one pass can merge
};

template <SortRecord R>
class ExternalSorter {
 public:
  static constexpr uint64_t kMinMemoryBytes = 128 << 10;

  ExternalSorter(std::shared_ptr<BlockIo> io, Budget& budget, SortOptions options)
      : io_(std::move(io)), options_(std::move(options)) {
    if (options_.memory_bytes < kMinMemoryBytes)
      throw Error(ErrorKind::budget, "sorting needs at least " + least_bytes(kMinMemoryBytes) +
                                         " of memory, " + exact_bytes(options_.memory_bytes) +
                                         " were given: raise the memory budget");
    memory_ = Buffer(budget, "sort", align_down(options_.memory_bytes, kPageBytes));
    capacity_ = memory_.size() / 2 / sizeof(R);
  }

  void push(const R& record) {
    if (count_ == capacity_) spill();
    records()[count_++] = record;
  }
  void add(const R* record, size_t n) {
    for (size_t i = 0; i < n; ++i) push(record[i]);
  }
  const SortStats& stats() const { return stats_; }

  // Calls sink(const R*, size_t) with all records in ascending order, then frees memory and scratch space.
  template <class Sink>
  void finish(Sink&& sink) {
    if (runs_.empty()) {
      stats_.records = count_;
      const R* sorted = sort_buffer();
      if (count_) sink(sorted, count_);
    } else {
      if (count_) spill();
      merge_all(sink);
    }
    count_ = 0;
    runs_.clear();
    file_.reset();
    memory_ = Buffer();
    capacity_ = 0;
  }

 private:
  struct Run {
    uint64_t first = 0, last = 0;  // records [first, last) of the scratch file
  };

  // One run being consumed: `now` is what is left of the block in hand, the other block is being read.
  class RunReader {
   public:
    RunReader(BlockIo& io, FileId file, Run run, R* blocks, uint64_t block_records)
        : io_(io), file_(file), run_(run), blocks_(blocks), block_records_(block_records) {
      request();
      advance_block();
    }
    bool empty() const { return now_ == end_; }
    const R& head() const { return *now_; }
    void pop() {
      if (++now_ == end_) advance_block();
    }

   private:
    void request() {
      requested_ = std::min(block_records_, run_.last - run_.first);
      if (requested_ == 0) return;
      R* to = blocks_ + (which_ ? block_records_ : 0);
      job_ = io_.submit(IoOp::read, {{file_, run_.first * sizeof(R), requested_ * sizeof(R),
                                      reinterpret_cast<std::byte*>(to)}});
      run_.first += requested_;
    }
    void advance_block() {
      if (job_) job_->wait();
      job_.reset();
      now_ = blocks_ + (which_ ? block_records_ : 0);
      end_ = now_ + requested_;
      which_ = !which_;
      request();
    }

    BlockIo& io_;
    FileId file_;
    Run run_;
    R* blocks_;
    uint64_t block_records_, requested_ = 0;
    bool which_ = false;
    const R *now_ = nullptr, *end_ = nullptr;
    std::shared_ptr<IoJob> job_;
  };

  // Tree of losers (Knuth, TAOCP volume 3, 5.4.1): one comparison per level for each record that leaves.
  class LoserTree {
   public:
    explicit LoserTree(std::vector<RunReader>& runs) : runs_(runs), losers_(runs.size()) {
      winner_ = runs.size() > 1 ? play(1) : 0;
    }
    bool empty() const { return runs_[winner_].empty(); }
    R pop() {
      const R top = runs_[winner_].head();
      runs_[winner_].pop();
      for (size_t node = (winner_ + runs_.size()) / 2; node >= 1; node /= 2)
        if (beats(losers_[node], winner_)) std::swap(losers_[node], winner_);
      return top;
    }

   private:
    bool beats(size_t a, size_t b) const {  // ties go to the earlier run: stable
      if (runs_[a].empty() || runs_[b].empty()) return !runs_[a].empty();
      const R &x = runs_[a].head(), &y = runs_[b].head();
      return a < b ? !key_less(y, x) : key_less(x, y);
    }
    size_t play(size_t node) {
      if (node >= runs_.size()) return node - runs_.size();
      size_t a = play(2 * node), b = play(2 * node + 1);
      if (beats(b, a)) std::swap(a, b);
      losers_[node] = b;
      return a;
    }

    std::vector<RunReader>& runs_;
    std::vector<size_t> losers_;
    size_t winner_ = 0;
  };

  R* records() const { return memory_.as<R>(); }
  R* sort_buffer() { return radix_sort(records(), records() + capacity_, count_, options_.workers); }

  void spill() {
    if (!file_) file_ = std::make_unique<TempFile>(io_, options_.scratch_folder);
    const R* sorted = sort_buffer();
    io_->write(file_->id(), spilled_ * sizeof(R), sorted, count_ * sizeof(R));
    runs_.push_back({spilled_, spilled_ + count_});
    spilled_ += count_;
    ++stats_.runs;
    stats_.records += count_;
    stats_.spilled_bytes += count_ * sizeof(R);
    count_ = 0;
  }

  uint64_t memory_records() const { return memory_.size() / sizeof(R); }
  // Two output blocks and two blocks per run share the memory equally.
  size_t max_fan_in() const {
    const uint64_t block = std::max<uint64_t>(1, options_.min_block_bytes / sizeof(R));
    return std::max<uint64_t>(2, memory_records() / (2 * block) - 1);
  }

  // Merges runs[first, last) and hands out sorted pieces; the piece stays intact until the call after the
  // next.
  template <class Sink>
  void merge(size_t first, size_t last, Sink&& sink) {
    const uint64_t block = memory_records() / (2 * (last - first + 1));
    R* output = records();
    std::vector<RunReader> readers;
    readers.reserve(last - first);
    for (size_t i = first; i < last; ++i)
      readers.emplace_back(*io_, file_->id(), runs_[i], records() + 2 * block * (i - first + 1), block);
    LoserTree tree(readers);
    while (!tree.empty()) {
      uint64_t n = 0;
      while (n < block && !tree.empty()) output[n++] = tree.pop();
      sink(const_cast<const R*>(output), static_cast<size_t>(n));
      output = output == records() ? records() + block : records();
    }
  }

  template <class Sink>
  void merge_all(Sink&& sink) {
    while (runs_.size() > max_fan_in()) merge_pass();
    ++stats_.merge_passes;
    merge(0, runs_.size(), sink);
  }

  // Replaces the runs by fewer and longer ones in a new scratch file.
  void merge_pass() {
    auto target = std::make_unique<TempFile>(io_, options_.scratch_folder);
    std::vector<Run> merged;
    uint64_t at = 0;
    for (size_t i = 0; i < runs_.size(); i += max_fan_in()) {
      Run run{at, at};
      std::shared_ptr<IoJob> writing;
      merge(i, std::min(runs_.size(), i + max_fan_in()), [&](const R* piece, size_t n) {
        if (writing) writing->wait();
        auto* data = reinterpret_cast<std::byte*>(const_cast<R*>(piece));
        writing = io_->submit(IoOp::write, {{target->id(), at * sizeof(R), n * sizeof(R), data}});
        at += n;
      });
      if (writing) writing->wait();
      run.last = at;
      merged.push_back(run);
      stats_.spilled_bytes += (run.last - run.first) * sizeof(R);
    }
    runs_ = std::move(merged);
    file_ = std::move(target);
    ++stats_.merge_passes;
  }

  std::shared_ptr<BlockIo> io_;
  SortOptions options_;
  Buffer memory_;
  size_t capacity_ = 0, count_ = 0;
  uint64_t spilled_ = 0;
  std::unique_ptr<TempFile> file_;
  std::vector<Run> runs_;
  SortStats stats_;
};

}  // namespace outcrop
