// Shared by the I/O tests: files of known random bytes in a folder that goes away, and engines of both kinds.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
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

inline BytesVector random_bytes(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  BytesVector bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(rng());
  return bytes;
}

inline void write_plainly(const std::string& path, const BytesVector& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

inline BytesVector read_plainly(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string s((std::istreambuf_iterator<char>(in)), {});
  BytesVector bytes(s.size());
  if (!s.empty()) std::memcpy(bytes.data(), s.data(), s.size());
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
