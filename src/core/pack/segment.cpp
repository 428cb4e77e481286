#include "pack/segment.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/random.h"
#include "graph/radix_sort.h"

namespace outcrop {

namespace {

constexpr int32_t kHot = INT32_MIN;
constexpr int64_t kPage = static_cast<int64_t>(kPageBytes);
constexpr int64_t kMostNarrow = 256;    // batches up to which a lane of 8 bits tells them apart
constexpr uint64_t kHashBits = 0xffff;  // of a signature: the hash of the set; lanes fill the rest

using Narrow = uint8_t __attribute__((vector_size(8)));
using Wide = uint16_t __attribute__((vector_size(8)));

template <class Lanes>
uint64_t lanewise_min(uint64_t a, uint64_t b) {
  const auto x = std::bit_cast<Lanes>(a), y = std::bit_cast<Lanes>(b);
  return std::bit_cast<uint64_t>(x < y ? x : y);
}

template <class Lanes>
uint64_t combined(uint64_t signature, uint64_t word) {
  return (lanewise_min<Lanes>(signature, word) & ~kHashBits) | ((signature ^ word) & kHashBits);
}

}  // namespace

int64_t SegmentTable::bytes_per_node() { return sizeof(int32_t) + 2 * sizeof(Record); }

SegmentTable::SegmentTable(std::shared_ptr<Budget> budget, int64_t max_nodes)
    : budget_(std::move(budget)),
      values_(*budget_, "layout", static_cast<size_t>(std::max<int64_t>(max_nodes, 1)) * sizeof(int32_t)),
      value_(values_.as<int32_t>()),
      capacity_(max_nodes) {}

void SegmentTable::begin_range(int64_t first, int64_t count, std::span<const int64_t> hot) {
  if (count < 0 || count > capacity_)
    throw Error(ErrorKind::argument,
                "a range of " + std::to_string(count) + " nodes does not fit " + std::to_string(capacity_));
  std::fill_n(value_, count_, 0);
  first_ = first;
  count_ = count;
  num_shared_ = 0;
  for (const int64_t id : hot)
    if (id >= first && id < first + count) value_[id - first] = kHot;
}

void SegmentTable::begin_segment(int64_t batches, int64_t threshold, uint64_t seed, int64_t row) {
  if (!records_) {
    record_buffer_ = Buffer(*budget_, "layout", values_.size() / sizeof(int32_t) * sizeof(Record));
    scratch_ = Buffer(*budget_, "layout", record_buffer_.size());
    records_ = record_buffer_.as<Record>();
  }
  batches_ = batches;
  threshold_ = threshold;
  row_ = row;
  num_shared_ = 0;
  bits_.clear();
  // Lane 0 is in the highest bits, so that comparing words compares lanes in order. Where a lane has not
  // enough bits for all ranks, several batches share one.
  const unsigned bits = batches <= kMostNarrow ? 8 : 16, lanes = 48 / bits;
  const int64_t divisor = std::max<int64_t>((batches + (int64_t{1} << bits) - 1) >> bits, 1);
  words_.assign(static_cast<size_t>(batches), 0);
  std::vector<size_t> order(words_.size());
  for (unsigned lane = 0; lane < lanes; ++lane) {
    std::iota(order.begin(), order.end(), 0);
    RandomStream random(seed, lane);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (size_t i = 0; i < order.size(); ++i)
      words_[order[i]] = words_[order[i]] << bits | static_cast<uint64_t>(static_cast<int64_t>(i) / divisor);
  }
  for (size_t b = 0; b < words_.size(); ++b)
    words_[b] = words_[b] << 16 | (mix64(seed ^ mix64(b)) & kHashBits);
}

template <class Id>
void SegmentTable::count(std::span<const Id> ids) {
  for (const Id id : ids) {
    const auto at = static_cast<uint64_t>(static_cast<int64_t>(id) - first_);
    if (at >= static_cast<uint64_t>(count_)) continue;
    int32_t& value = value_[at];
    if (value > 0 || value == kHot) continue;
    if (-value < threshold_) {
      --value;
    } else {
      records_[num_shared_] = {static_cast<uint64_t>(id), ~kHashBits};
      value = static_cast<int32_t>(++num_shared_);
    }
  }
}

template <class Id>
void SegmentTable::sign(int64_t batch, std::span<const Id> ids) {
  if (batch < 0 || batch >= batches_) throw Error(ErrorKind::argument, "the batch is not of the segment");
  const uint64_t word = words_[static_cast<size_t>(batch)];
  const bool narrow = batches_ <= kMostNarrow;
  for (const Id id : ids) {
    const auto at = static_cast<uint64_t>(static_cast<int64_t>(id) - first_);
    if (at >= static_cast<uint64_t>(count_) || value_[at] <= 0) continue;
    uint64_t& signature = records_[value_[at] - 1].signature;
    signature = narrow ? combined<Narrow>(signature, word) : combined<Wide>(signature, word);
  }
}

int64_t SegmentTable::order(WorkerPool& workers) {
  if (row_ + num_shared_ >= INT32_MAX)
    throw Error(ErrorKind::argument,
                "a disk cache of over 2^31 rows cannot be addressed: raise --disk-space");
  Record* const other =
      records_ == record_buffer_.as<Record>() ? scratch_.as<Record>() : record_buffer_.as<Record>();
  records_ = radix_sort(records_, other, static_cast<size_t>(num_shared_), &workers);
  for (int64_t i = 0; i < num_shared_; ++i)
    value_[static_cast<int64_t>(records_[i].id) - first_] = static_cast<int32_t>(row_ + i + 1);
  return num_shared_;
}

void SegmentTable::shared(int64_t begin, std::span<int64_t> out) const {
  if (begin < 0 || begin + static_cast<int64_t>(out.size()) > num_shared_)
    throw Error(ErrorKind::argument, "there are " + std::to_string(num_shared_) + " shared rows");
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<int64_t>(records_[begin + static_cast<int64_t>(i)].id);
}

template <class Id>
void SegmentTable::look_up(std::span<const Id> ids, int32_t* rows) const {
  for (const Id id : ids) {
    const auto at = static_cast<uint64_t>(static_cast<int64_t>(id) - first_);
    *rows++ = at < static_cast<uint64_t>(count_) && value_[at] > 0 ? value_[at] - 1 : -1;
  }
}

template <class Id>
int64_t SegmentTable::mark(std::span<const Id> ids, int64_t row_bytes) {
  bits_first_ = row_ * row_bytes / kPage;
  const int64_t end = (row_ + num_shared_) * row_bytes / kPage + 1;
  bits_.resize(std::max(bits_.size(), static_cast<size_t>((end - bits_first_) / 64 + 1)));
  int64_t found = 0;
  for (const Id id : ids) {
    const auto at = static_cast<uint64_t>(static_cast<int64_t>(id) - first_);
    if (at >= static_cast<uint64_t>(count_) || value_[at] <= 0) continue;
    ++found;
    const int64_t begin = (value_[at] - 1) * row_bytes;
    for (int64_t page = begin / kPage; page <= (begin + row_bytes - 1) / kPage; ++page) {
      const int64_t bit = page - bits_first_;
      bits_[static_cast<size_t>(bit / 64)] |= uint64_t{1} << (bit % 64);
    }
  }
  marked_.rows += found;
  return found;
}

SharedReads SegmentTable::finish_batch() {
  uint64_t before = 0;  // the highest bit of the word before
  for (size_t w = 0; w < bits_.size(); ++w) {
    const uint64_t word = bits_[w];
    if (word) {
      const int64_t base = bits_first_ + static_cast<int64_t>(w) * 64;
      if (marked_.first_page < 0) marked_.first_page = base + std::countr_zero(word);
      marked_.last_page = base + 63 - std::countl_zero(word);
      marked_.pages += std::popcount(word);
      marked_.runs += std::popcount(word & ~(word << 1 | before));
      bits_[w] = 0;
    }
    before = word >> 63;
  }
  const SharedReads result = marked_;
  marked_ = {};
  return result;
}

template <class Id>
void SegmentTable::clear(std::span<const Id> ids) {
  for (const Id id : ids) {
    const auto at = static_cast<uint64_t>(static_cast<int64_t>(id) - first_);
    if (at < static_cast<uint64_t>(count_) && value_[at] != kHot) value_[at] = 0;
  }
  num_shared_ = 0;
}

template <class Id>
void SegmentTable::assign(std::span<const Id> ids, std::span<const int32_t> rows) {
  if (ids.size() != rows.size()) throw Error(ErrorKind::argument, "ids and rows differ in length");
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto at = static_cast<uint64_t>(static_cast<int64_t>(ids[i]) - first_);
    if (at >= static_cast<uint64_t>(count_) || rows[i] < 0 || rows[i] == INT32_MAX)
      throw Error(ErrorKind::format, "the disk cache lists node " + std::to_string(ids[i]) + " at row " +
                                         std::to_string(rows[i]) + ": the plan was damaged");
    value_[at] = rows[i] + 1;
  }
}

#define OUTCROP_FOR(Id)                                                     \
  template void SegmentTable::count(std::span<const Id>);                   \
  template void SegmentTable::sign(int64_t, std::span<const Id>);           \
  template void SegmentTable::look_up(std::span<const Id>, int32_t*) const; \
  template int64_t SegmentTable::mark(std::span<const Id>, int64_t);        \
  template void SegmentTable::clear(std::span<const Id>);                   \
  template void SegmentTable::assign(std::span<const Id>, std::span<const int32_t>);
OUTCROP_FOR(int32_t)
OUTCROP_FOR(int64_t)
#undef OUTCROP_FOR

}  // namespace outcrop
