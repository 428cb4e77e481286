// Page-aligned memory taken from a Budget and given straight back to the system when freed, so that
// "released" is true of the process and not only of the books.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/budget.h"

namespace outcrop {

inline constexpr size_t kPageBytes = 4096;
inline constexpr uint64_t align_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
inline constexpr uint64_t align_down(uint64_t n, uint64_t to) { return n / to * to; }

class Buffer {
 public:
  Buffer() = default;
  // Reserves align_up(bytes, 4096) under `tag`. Throws Error(budget); memory is zero until written.
  Buffer(Budget& budget, const std::string& tag, size_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // as asked, not rounded
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0, mapped_ = 0;
  Reservation reservation_;
};

}  // namespace outcrop
