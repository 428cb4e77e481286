#include <algorithm>
#include <span>

#include "base/checksum.h"
#include "bindings.h"
#include "cpu_kernels/io_queue.h"
#include "rings/controller.h"

namespace outcrop {

namespace {

// A controller and the memory that it serves, which goes after it.
class PyRingController {
 public:
  PyRingController(std::shared_ptr<BlockIo> io, const std::vector<FileId>& files, const QueueLayout& layout,
                   Bytes memory, const RingFaults& faults, bool checksums)
      : memory_(std::move(memory)) {
    if (memory_.size() < layout.bytes || reinterpret_cast<uintptr_t>(memory_.data()) % kPageBytes)
      throw Error(ErrorKind::argument, "a queue of " + std::to_string(layout.bytes) +
                                           " bytes does not fit memory of " + std::to_string(memory_.size()) +
                                           " bytes, or that does not begin at a page");
    controller_ = std::make_unique<RingController>(
        std::move(io), files, layout, reinterpret_cast<std::byte*>(memory_.data()), faults, checksums);
  }
  ~PyRingController() { close(); }
  void close() {
    nb::gil_scoped_release release;
    controller_.reset();
  }
  uint64_t served() const { return controller_ ? controller_->served() : 0; }
  std::string error() const { return controller_ ? controller_->error() : std::string(); }

 private:
  Bytes memory_;
  std::unique_ptr<RingController> controller_;
};

}  // namespace

void bind_rings(nb::module_& m) {
  nb::class_<QueueLayout>(m, "QueueLayout", "Where the parts of a queue lie in memory; offsets in bytes.")
      .def_static("within", &QueueLayout::within, "row_bytes"_a, "memory_bytes"_a, "max_ids"_a)
      .def_ro("ids", &QueueLayout::ids)
      .def_ro("slot_bytes", &QueueLayout::slot_bytes)
      .def_ro("depth", &QueueLayout::depth)
      .def_ro("staging", &QueueLayout::staging)
      .def_ro("commands", &QueueLayout::commands)
      .def_ro("completions", &QueueLayout::completions)
      .def_ro("command_doorbell", &QueueLayout::command_doorbell)
      .def_ro("completion_doorbell", &QueueLayout::completion_doorbell)
      .def_ro("ended", &QueueLayout::ended)
      .def_ro("progress", &QueueLayout::progress)
      .def_ro("free_ids", &QueueLayout::free_ids)
      .def_ro("landings", &QueueLayout::landings)
      .def_ro("bytes", &QueueLayout::bytes);
  nb::class_<RingFaults>(m, "RingFaults", "What a controller does wrong, for tests.")
      .def(nb::init<>())
      .def_rw("error_probability", &RingFaults::error_probability)
      .def_rw("error_status", &RingFaults::error_status)
      .def_rw("delay_us", &RingFaults::delay_us)
      .def_rw("shuffle", &RingFaults::shuffle)
      .def_rw("die_at", &RingFaults::die_at)
      .def_rw("fail_at", &RingFaults::fail_at)
      .def_rw("repeat_at", &RingFaults::repeat_at)
      .def_rw("silent_from", &RingFaults::silent_from)
      .def_rw("seed", &RingFaults::seed);
  nb::class_<PyRingController>(m, "RingController",
                               "The thread that serves a queue from files, each a namespace.")
      .def(nb::init<std::shared_ptr<BlockIo>, const std::vector<FileId>&, const QueueLayout&, Bytes,
                    const RingFaults&, bool>(),
           "io"_a, "files"_a, "layout"_a, "memory"_a, "faults"_a, "checksums"_a = false)
      .def("close", &PyRingController::close, "Ends the thread; waits for reads under way.")
      .def_prop_ro("served", &PyRingController::served)
      .def_prop_ro("error", &PyRingController::error, "What went wrong last; empty: nothing.");
  m.def(
      "piece_bytes",
      [](int64_t base, int64_t stride) {
        return kernels::piece_bytes({base, stride, 0});
      },
      "base"_a, "stride"_a, "The most that one command moves of a row.");
  m.def(
      "joined_crc",
      [](const nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig>& crcs, uint64_t piece, uint64_t all) {
        uint32_t crc = 0;
        for (size_t i = 0; i < crcs.size(); ++i, all -= std::min(piece, all))
          crc = crc32c_combine(crc, crcs.data()[i], std::min(piece, all));
        return crc;
      },
      "crcs"_a, "piece"_a, "all"_a,
      "The CRC-32C of `all` bytes from those of their pieces, of `piece` bytes.");
  m.attr("SUBMIT_WORDS") = sizeof(kernels::Submit) / 8;
  m.attr("COMPLETE_WORDS") = sizeof(kernels::Complete) / 8;
  m.attr("LANDING_BYTES") = static_cast<int64_t>(sizeof(kernels::Landing));
  m.def(
      "cpu_io_submit",
      [](uintptr_t table, size_t queues) {
        nb::gil_scoped_release release;
        cpu_io_submit(std::span(reinterpret_cast<const kernels::Submit*>(table), queues));
      },
      "table"_a, "queues"_a,
      "The kernel io_submit on the CPU, with its arguments: the address of a table first.");
  m.def(
      "cpu_io_complete",
      [](uintptr_t table, size_t queues, int64_t deadline_ns) {
        nb::gil_scoped_release release;
        cpu_io_complete(std::span(reinterpret_cast<const kernels::Complete*>(table), queues), deadline_ns);
      },
      "table"_a, "queues"_a, "deadline_ns"_a, "The kernel io_complete on the CPU, as io_submit.");
  m.def("progress_bytes", &progress_bytes, "num_ids"_a,
        "Of what completion kernels keep: struct Progress, then an Outcome (uint32 [4]) for each id, then "
        "counts.");
}

}  // namespace outcrop
