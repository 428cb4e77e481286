#include "io/block_io.h"

#include "bindings.h"

namespace outcrop {

void bind_io(nb::module_& m) {
  nb::enum_<OpenMode>(m, "OpenMode").value("read", OpenMode::read).value("create", OpenMode::create).value("update", OpenMode::update);
  nb::enum_<Backend>(m, "Backend").value("automatic", Backend::automatic).value("uring", Backend::uring).value("pread", Backend::pread);
  nb::class_<FaultPlan>(m, "FaultPlan").def(nb::init<>())
      .def_rw("short_probability", &FaultPlan::short_probability)
      .def_rw("eagain_probability", &FaultPlan::eagain_probability)
      .def_rw("error_probability", &FaultPlan::error_probability)
      .def_rw("error_number", &FaultPlan::error_number)
      .def_rw("fail_at_op", &FaultPlan::fail_at_op)
      .def_rw("disk_full_after_bytes", &FaultPlan::disk_full_after_bytes)
      .def_rw("delay_us", &FaultPlan::delay_us)
      .def_rw("seed", &FaultPlan::seed);
  nb::class_<IoOptions>(m, "IoOptions").def(nb::init<>())
      .def_rw("backend", &IoOptions::backend).def_rw("depth", &IoOptions::depth)
      .def_rw("max_request_bytes", &IoOptions::max_request_bytes).def_rw("direct", &IoOptions::direct)
      .def_rw("threads", &IoOptions::threads).def_rw("faults", &IoOptions::faults);
  nb::class_<IoCounters>(m, "IoCounters")
      .def_ro("read_bytes", &IoCounters::read_bytes).def_ro("read_ops", &IoCounters::read_ops)
      .def_ro("write_bytes", &IoCounters::write_bytes).def_ro("write_ops", &IoCounters::write_ops)
      .def_ro("bounce_bytes", &IoCounters::bounce_bytes).def_ro("short_reads", &IoCounters::short_reads)
      .def_ro("retries", &IoCounters::retries);
  nb::class_<IoJob>(m, "IoJob")
      .def("wait", &IoJob::wait, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("done", &IoJob::done);
  nb::class_<BlockIo>(m, "BlockIo")
      .def_static("create", &BlockIo::create, "options"_a, "budget"_a)
      .def("open", &BlockIo::open, "path"_a, "mode"_a)
      .def("close", &BlockIo::close, "file"_a)
      .def("size_bytes", &BlockIo::size_bytes, "file"_a)
      .def("path", &BlockIo::path, "file"_a)
      .def("sync", &BlockIo::sync, "file"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("drop_cache", &BlockIo::drop_cache, "file"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("resize", &BlockIo::resize, "file"_a, "bytes"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("counters", &BlockIo::counters)
      .def_prop_ro("backend_name", &BlockIo::backend_name)
      .def("read", [](BlockIo& io, FileId f, uint64_t offset, Bytes out) {
        nb::gil_scoped_release release;
        io.read(f, offset, out.data(), out.size());
      }, "file"_a, "offset"_a, "out"_a)
      .def("write", [](BlockIo& io, FileId f, uint64_t offset, ConstBytes data) {
        nb::gil_scoped_release release;
        io.write(f, offset, data.data(), data.size());
      }, "file"_a, "offset"_a, "data"_a)
      // Reads lengths[i] bytes at offsets[i] into out[positions[i]:]; the caller keeps `out` alive until wait().
      .def("submit_reads", [](BlockIo& io, FileId f, Ids offsets, Ids lengths, Bytes out, Ids positions) {
        std::vector<IoRequest> requests(offsets.size());
        if (lengths.size() != offsets.size() || positions.size() != offsets.size())
          throw Error(ErrorKind::argument, "offsets, lengths and positions differ in length");
        for (size_t i = 0; i < requests.size(); ++i) {
          const int64_t at = positions.data()[i], n = lengths.data()[i], from = offsets.data()[i];
          if (from < 0 || n < 0 || at < 0 || static_cast<uint64_t>(at) + n > out.size())
            throw Error(ErrorKind::argument, "read " + std::to_string(i) + " does not fit its output");
          requests[i] = {f, static_cast<uint64_t>(from), static_cast<uint64_t>(n),
                         reinterpret_cast<std::byte*>(out.data()) + at};
        }
        nb::gil_scoped_release release;
        return io.submit(IoOp::read, std::move(requests));
      }, "file"_a, "offsets"_a, "lengths"_a, "out"_a, "positions"_a);
}

}  // namespace outcrop
