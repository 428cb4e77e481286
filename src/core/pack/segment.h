// The shared part of a segment: which rows of a run of mini-batches are kept once, and in which order
// (DiskGNN section 5.1 and its Algorithm 1).
//
// A SegmentTable covers a range of nodes and is used for one segment after the other. Of each segment: count
// every batch; sign every batch; order(); classify or look up every batch; clear every batch. A node that
// more than `threshold` batches of the segment want is shared. Its signature holds, for each of k seeded
// permutations of the batches, the smallest number that the permutation gives to a batch that wants it, and
// last a hash of the set of these batches: sorting by signature puts rows beside each other that the same
// batches want, and next to those rows that mostly the same batches want.
//
// Node ids are those of one hop, or of several, of one batch: no id comes twice in one call or two calls for
// the same batch. Ids outside the range are ignored.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/budget.h"
#include "base/buffer.h"
#include "base/parallel.h"

namespace outcrop {

// What one batch reads of the shared rows of a range: distinct pages, runs of adjacent pages, and the first
// and the last page (-1: none), by which ranges that follow each other are put together.
struct SharedReads {
  int64_t rows = 0, pages = 0, runs = 0, first_page = -1, last_page = -1;
};

class SegmentTable {
 public:
  // For ranges of up to max_nodes nodes. Reserves 4 bytes for each under "layout", and bytes_per_node() in
  // all once a segment begins.
  SegmentTable(std::shared_ptr<Budget> budget, int64_t max_nodes);
  static int64_t bytes_per_node();

  // The range becomes [first, first + count); `hot` nodes (ascending) are never shared: they are cached in
  // memory. Throws Error(argument) for a range that is too large or hot nodes that do not rise.
  void begin_range(int64_t first, int64_t count, std::span<const int64_t> hot);

  // The segment has `batches` batches; `row` is the number of its first shared row in the cache file.
  void begin_segment(int64_t batches, int64_t threshold, uint64_t seed, int64_t row);
  template <class Id>
  void count(std::span<const Id> ids);
  template <class Id>
  void sign(int64_t batch, std::span<const Id> ids);
  // Sorts the shared nodes by signature, then id, and numbers them. Returns how many there are.
  int64_t order(WorkerPool& workers);
  // out[i] = node of shared row begin + i, in that order.
  void shared(int64_t begin, std::span<int64_t> out) const;

  // rows[i] = row of ids[i] in the cache file, -1 where it is not shared.
  template <class Id>
  void look_up(std::span<const Id> ids, int32_t* rows) const;
  // Adds up the reads of one batch; rows have row_bytes bytes, packed without gaps from the start of the
  // file. Call it for each hop, then finish_batch().
  template <class Id>
  int64_t mark(std::span<const Id> ids, int64_t row_bytes);  // returns the shared ones among them
  SharedReads finish_batch();

  template <class Id>
  void clear(std::span<const Id> ids);

  // For reading back an order that was made before: node ids[i] has row rows[i].
  template <class Id>
  void assign(std::span<const Id> ids, std::span<const int32_t> rows);

 private:
  struct Record {  // sorted by signature, then id
    static constexpr unsigned kKeyWords = 2;
    uint64_t id, signature;
    uint64_t word(unsigned w) const { return w == 0 ? id : signature; }
  };

  std::shared_ptr<Budget> budget_;
  Buffer values_, record_buffer_, scratch_;
  Record* records_ = nullptr;  // in record_buffer_ or scratch_
  int32_t* value_;  // per node: 0 unseen, -c wanted c times, kHot, or 1 + (number of its record, then row)
  int64_t capacity_, first_ = 0, count_ = 0, num_shared_ = 0;
  int64_t batches_ = 0, threshold_ = 0, row_ = 0;
  std::vector<uint64_t> words_;  // per batch: its rank in each permutation, then its hash
  std::vector<uint64_t> bits_;   // pages of the batch being marked
  int64_t bits_first_ = 0;       // page of bit 0
  SharedReads marked_;
};

}  // namespace outcrop
