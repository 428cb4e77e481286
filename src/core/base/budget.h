// Tagged memory budget: reservations are made when a structure is built, granted at once or refused, and
// returned when the structure dies. Nothing waits for memory. Thread-safe.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace outcrop {

class Budget;

// Move-only share of a Budget; returns its bytes when destroyed or released.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { release(); }
  uint64_t bytes() const { return bytes_; }
  void release() noexcept;

 private:
  friend class Budget;
  std::shared_ptr<Budget> budget_;
  std::string tag_;
  uint64_t bytes_ = 0;
};

class Budget : public std::enable_shared_from_this<Budget> {
 public:
  struct Usage {
    uint64_t now_bytes = 0;
    uint64_t peak_bytes = 0;
  };

  // limit_bytes: hard limit. Use UINT64_MAX for "count only". A rehearsal only finds out what fits: buffers
  // of it may be larger than the machine. With measure_bytes it finds out what is needed: what is free, and
  // so every share of it, goes by the limit, and up to measure_bytes are granted all the same.
  static std::shared_ptr<Budget> create(uint64_t limit_bytes, bool rehearsal = false,
                                        uint64_t measure_bytes = 0) {
    return std::shared_ptr<Budget>(new Budget(limit_bytes, rehearsal, measure_bytes));
  }
  bool rehearsal() const { return rehearsal_; }
  // Throws Error(budget) naming the tag, what was asked, what is held by tag, and the limit.
  Reservation reserve(const std::string& tag, uint64_t bytes);
  uint64_t limit_bytes() const { return limit_; }
  uint64_t now_bytes() const;
  uint64_t peak_bytes() const;
  uint64_t free_bytes() const;
  std::map<std::string, Usage> by_tag() const;

 private:
  Budget(uint64_t limit, bool rehearsal, uint64_t measured)
      : limit_(limit), granted_(std::max(limit, measured)), rehearsal_(rehearsal) {}
  friend class Reservation;
  void give_back(const std::string& tag, uint64_t bytes) noexcept;

  const uint64_t limit_, granted_;  // the second: what is refused above
  const bool rehearsal_;
  mutable std::mutex mutex_;
  uint64_t now_ = 0, peak_ = 0;
  std::map<std::string, Usage> tags_;
};

}  // namespace outcrop
