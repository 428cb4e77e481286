// A scratch file that has no name once it is open: whatever happens to the process, nothing is left behind.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "io/block_io.h"

namespace outcrop {

class TempFile {
 public:
  // Throws Error(io) naming the folder when it cannot be written.
  TempFile(std::shared_ptr<BlockIo> io, const std::string& folder);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  FileId id() const { return file_; }

 private:
  std::shared_ptr<BlockIo> io_;
  FileId file_;
};

}  // namespace outcrop
