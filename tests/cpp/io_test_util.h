// Shared by the I/O tests: files of known random bytes in a folder that goes away, and engines of both kinds.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "io/block_io.h"

namespace outcrop::testing {

using BytesVector = std::vector<std::byte>;

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "outcrop-test-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// What is done to large memory here is done by few calls, not byte by byte: sanitizers look at each access of a loop.

inline BytesVector random_bytes(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  BytesVector bytes(n);
  for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
    const uint64_t drawn = rng();
    std::memcpy(bytes.data() + at, &drawn, std::min(sizeof(drawn), n - at));
  }
  return bytes;
}

// Whether bytes are those that are wanted; if not, which one is the first that is another.
inline ::testing::AssertionResult equal_bytes(std::span<const std::byte> found,
                                              std::span<const std::byte> wanted) {
  if (found.size() != wanted.size())
    return ::testing::AssertionFailure() << found.size() << " bytes instead of " << wanted.size();
  if (found.empty() || std::memcmp(found.data(), wanted.data(), found.size()) == 0)
    return ::testing::AssertionSuccess();
  const auto at = std::mismatch(found.begin(), found.end(), wanted.begin());
  return ::testing::AssertionFailure()
         << "byte " << at.first - found.begin() << " of " << found.size() << " is "
         << std::to_integer<int>(*at.first) << " instead of " << std::to_integer<int>(*at.second);
}

inline void write_plainly(const std::string& path, const BytesVector& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

inline BytesVector read_plainly(const std::string& path) {
  BytesVector bytes(std::filesystem::file_size(path));
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!in) throw std::runtime_error("cannot read " + path);
  return bytes;
}

inline std::string message_of(const std::function<void()>& f, ErrorKind kind, int error_number = 0) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    if (error_number) EXPECT_EQ(e.error_number(), error_number) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

// A test for each backend; skipped where io_uring is forbidden.
class BothBackends : public ::testing::TestWithParam<Backend> {
 protected:
  std::shared_ptr<BlockIo> engine(IoOptions options = {}) {
    options.backend = GetParam();
    return BlockIo::create(options, budget_);
  }
  void SetUp() override {
    try {
      engine();
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }
  std::shared_ptr<Budget> budget_ = Budget::create(uint64_t{1} << 30);
  TempFolder folder_;
};

inline std::string backend_test_name(const ::testing::TestParamInfo<Backend>& info) {
  return info.param == Backend::uring ? "uring" : "pread";
}

}  // namespace outcrop::testing
