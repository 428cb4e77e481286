// The one C++ error type. Bindings translate each kind into its Python class (outcrop/errors.py).
#pragma once
#include <cstring>
#include <stdexcept>
#include <string>

namespace outcrop {

enum class ErrorKind { argument, format, checksum, budget, io, cancelled };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, int error_number = 0)
      : std::runtime_error(message), kind_(kind), errno_(error_number) {}
  ErrorKind kind() const noexcept { return kind_; }
  int error_number() const noexcept { return errno_; }

 private:
  ErrorKind kind_;
  int errno_;
};

// For failed system calls: "<what>: <strerror>" with the errno kept for the Python OSError.
[[noreturn]] inline void throw_io(const std::string& what, int error_number) {
  throw Error(ErrorKind::io, what + ": " + std::strerror(error_number), error_number);
}

}  // namespace outcrop
