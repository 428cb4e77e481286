#include "pack/sketch.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/random.h"
#include "graph/radix_sort.h"

namespace outcrop {

namespace {
constexpr unsigned kBatchBits = 24;
constexpr uint64_t kBatchMask = (uint64_t{1} << kBatchBits) - 1;
}  // namespace

LayoutSketch::LayoutSketch(Budget& budget, int64_t capacity, unsigned halvings, uint64_t seed)
    : wants_(budget, "layout", static_cast<size_t>(std::max<int64_t>(capacity, 1)) * sizeof(Want)),
      scratch_(budget, "layout", wants_.size()),
      capacity_(capacity),
      mask_((uint64_t{1} << std::min(halvings, 63u)) - 1),
      seed_(mix64(seed)) {}

template <class Id>
int64_t LayoutSketch::thin(std::span<const Id> ids, int64_t* out) const {
  int64_t n = 0;
  for (const Id id : ids) {
    out[n] = static_cast<int64_t>(id);
    n += (mix64(static_cast<uint64_t>(id) ^ seed_) & mask_) == 0;
  }
  return n;
}

void LayoutSketch::add(int64_t batch, std::span<const int64_t> ids) {
  if (batch < batches_ - 1 || static_cast<uint64_t>(batch) > kBatchMask)
    throw Error(ErrorKind::argument, "batch " + std::to_string(batch) + " cannot be added to the sketch");
  if (static_cast<int64_t>(ids.size()) > capacity_ - size_)
    throw Error(ErrorKind::budget,
                "the sketch of the layout holds " + std::to_string(capacity_) + " wants and is full");
  batches_ = batch + 1;
  Want* at = wants_.as<Want>() + size_;
  for (const int64_t id : ids) {
    if (static_cast<uint64_t>(id) >> (64 - kBatchBits))
      throw Error(ErrorKind::argument, "node " + std::to_string(id) + " is too large for a layout");
    (at++)->key = static_cast<uint64_t>(id) << kBatchBits | static_cast<uint64_t>(batch);
  }
  size_ += static_cast<int64_t>(ids.size());
}

void LayoutSketch::finish(WorkerPool& workers) {
  Want* const sorted =
      radix_sort(wants_.as<Want>(), scratch_.as<Want>(), static_cast<size_t>(size_), &workers);
  for (int64_t i = 1; i < size_; ++i)
    if (sorted[i].key == sorted[i - 1].key)
      throw Error(ErrorKind::format, "mini-batch " + std::to_string(sorted[i].key & kBatchMask) +
                                         " has node " + std::to_string(sorted[i].key >> kBatchBits) +
                                         " twice: the samples are damaged; prepare the run again");
  sorted_ = sorted;
}

std::vector<int64_t> LayoutSketch::histogram(int64_t segment) const {
  if (!sorted_ || segment < 1) throw Error(ErrorKind::argument, "the sketch of the layout is not finished");
  std::vector<int64_t> h(static_cast<size_t>(std::min(segment, std::max<int64_t>(batches_, 1))) + 1);
  const auto width = static_cast<uint32_t>(std::min<int64_t>(segment, 1 << kBatchBits));
  for (int64_t i = 0; i < size_;) {
    const uint64_t node = sorted_[i].key >> kBatchBits;
    const uint32_t group = static_cast<uint32_t>(sorted_[i].key & kBatchMask) / width;
    const uint64_t end =
        node << kBatchBits | std::min<uint64_t>((uint64_t{group} + 1) * width - 1, kBatchMask);
    int64_t j = i + 1;
    while (j < size_ && sorted_[j].key <= end) ++j;
    ++h[static_cast<size_t>(j - i)];
    i = j;
  }
  return h;
}

template int64_t LayoutSketch::thin(std::span<const int32_t>, int64_t*) const;
template int64_t LayoutSketch::thin(std::span<const int64_t>, int64_t*) const;

}  // namespace outcrop
