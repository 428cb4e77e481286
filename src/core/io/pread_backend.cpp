#include "io/pread_backend.h"

#include <algorithm>
#include <utility>

#include "base/buffer.h"
#include "io/blocking_workers.h"
#include "io/engine.h"

namespace outcrop {
namespace {

class PreadBackend final : public Engine {
 public:
  PreadBackend(const IoOptions& options, Budget& budget)
      : Engine(options, budget),
        slots_(budget, "io-buffers", threads() * rule_.slot_bytes),
        workers_(std::make_unique<BlockingWorkers>(rule_, options_, counters_, threads(), slots_.data(),
                                                   [this](const Transfer& t) { return fault_of(t); })) {}
  ~PreadBackend() override {
    if (forked()) (void)workers_.release();  // its threads live in the parent
  }
  std::string backend_name() const override { return "pread"; }

 protected:
  void enqueue(std::shared_ptr<JobState> job) override { workers_->push(std::move(job)); }

 private:
  unsigned threads() const { return std::max(1u, options_.threads); }

  Buffer slots_;
  std::unique_ptr<BlockingWorkers> workers_;
};

}  // namespace

std::shared_ptr<BlockIo> make_pread_backend(const IoOptions& options, Budget& budget) {
  return std::make_shared<PreadBackend>(options, budget);
}

}  // namespace outcrop
