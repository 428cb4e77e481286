// A folder in memory for the files of a fuzz target, and an engine that reads them.
#pragma once
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/block_io.h"

inline const std::string& folder() {
  static const std::string& made = *new std::string([] {  // outlives what is done at exit
    std::string name = "/dev/shm/outcrop-fuzz-XXXXXX";
    const char* path = mkdtemp(name.data());
    if (!path) std::abort();
    std::atexit([] { std::filesystem::remove_all(folder()); });
    return std::string(path);
  }());
  return made;
}

inline const std::shared_ptr<outcrop::BlockIo>& engine() {
  static const auto made = outcrop::BlockIo::create({}, outcrop::Budget::create(UINT64_MAX));
  return made;
}

template <class T>
void write_values(const std::string& path, const std::vector<T>& values) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
}

template <class T>
std::vector<T> read_values(const std::string& path, size_t count) {
  std::vector<T> values(count);
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
  return values;
}
