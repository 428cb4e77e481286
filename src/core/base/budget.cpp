#include "base/budget.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace outcrop {

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    release();
    budget_ = std::move(other.budget_);
    tag_ = std::move(other.tag_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Reservation::release() noexcept {
  if (budget_) budget_->give_back(tag_, bytes_);
  budget_.reset();
  bytes_ = 0;
}

Reservation Budget::reserve(const std::string& tag, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > granted_ - now_) {
    std::string held;
    for (const auto& [name, usage] : tags_)
      if (usage.now_bytes) held += (held.empty() ? "" : ", ") + name + " " + format_bytes(usage.now_bytes);
    throw Error(ErrorKind::budget, "memory budget of " + exact_bytes(limit_) + " cannot hold another " +
                                       exact_bytes(bytes) + " for '" + tag +
                                       "' (held: " + (held.empty() ? "nothing" : held) +
                                       "); raise the budget to at least " + least_bytes(now_ + bytes));
  }
  now_ += bytes;
  peak_ = std::max(peak_, now_);
  Usage& usage = tags_[tag];
  usage.now_bytes += bytes;
  usage.peak_bytes = std::max(usage.peak_bytes, usage.now_bytes);
  Reservation r;
  r.budget_ = shared_from_this();
  r.tag_ = tag;
  r.bytes_ = bytes;
  return r;
}

void Budget::give_back(const std::string& tag, uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  now_ -= bytes;
  tags_[tag].now_bytes -= bytes;
}

uint64_t Budget::now_bytes() const {
  std::lock_guard lock(mutex_);
  return now_;
}
uint64_t Budget::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_;
}
uint64_t Budget::free_bytes() const {
  std::lock_guard lock(mutex_);
  return limit_ - std::min(now_, limit_);
}
std::map<std::string, Budget::Usage> Budget::by_tag() const {
  std::lock_guard lock(mutex_);
  return tags_;
}

}  // namespace outcrop
