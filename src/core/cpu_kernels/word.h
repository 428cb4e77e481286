// Words that rows are moved by.
#pragma once
#include <cstdint>
#include <string>

#include "base/error.h"
#include "kernels/portable.h"

namespace outcrop {

// f(Word{}) for the type of so many bytes.
template <typename F>
int64_t with_word(int word_bytes, const F& f) {
  switch (word_bytes) {
    case 1:
      return f(kernels::uint8{});
    case 2:
      return f(kernels::uint16{});
    case 4:
      return f(kernels::uint32{});
    case 8:
      return f(kernels::uint64{});
    case 16:
      return f(kernels::Word16{});
    default:
      throw Error(ErrorKind::argument,
                  "words have 1, 2, 4, 8 or 16 bytes, not " + std::to_string(word_bytes));
  }
}

}  // namespace outcrop
