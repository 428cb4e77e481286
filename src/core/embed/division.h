// Rows 0 .. n - 1 divided into partitions of consecutive rows whose sizes differ by one at most, larger ones
// first.
#pragma once
#include <cstdint>

namespace outcrop {

class Division {
 public:
  struct Place {
    uint64_t partition, local;
  };

  // 1 <= parts <= rows
  Division(uint64_t rows, uint64_t parts)
      : rows_(rows), parts_(parts), size_(rows / parts), large_(rows % parts), bound_(large_ * (size_ + 1)) {}
  uint64_t rows() const { return rows_; }
  uint64_t parts() const { return parts_; }
  Place place(uint64_t row) const {
    if (row < bound_) return {row / (size_ + 1), row % (size_ + 1)};
    return {large_ + (row - bound_) / size_, (row - bound_) % size_};
  }

 private:
  uint64_t rows_, parts_, size_, large_, bound_;
};

}  // namespace outcrop
