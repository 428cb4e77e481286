#include "graph/temp_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace outcrop {

TempFile::TempFile(std::shared_ptr<BlockIo> io, const std::string& folder) : io_(std::move(io)) {
  std::string path = folder + "/.scratch-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) throw_io("cannot create a scratch file in " + folder, errno);
  ::close(fd);
  try {
    file_ = io_->open(path, OpenMode::create);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
  ::unlink(path.c_str());
}

TempFile::~TempFile() { io_->close(file_); }

}  // namespace outcrop
