#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "io/block_io.h"
#include "io/page_sums.h"
#include "io/row_stream.h"
#include "io/row_sums.h"
#include "io/rows.h"

namespace outcrop {
namespace {

using ByteRows = nb::ndarray<uint8_t, nb::ndim<2>, nb::device::cpu>;
using ConstByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;

// A job and the array that it fills or writes: the array lives until the job has ended. Members die in
// reverse order, and the wait happens without the GIL, so a job may be dropped at any time.
template <class Job>
class PyJob {
 public:
  template <class Array>
  PyJob(Job job, Array array) : array_(std::make_shared<Array>(std::move(array))), job_(std::move(job)) {}
  PyJob(PyJob&&) noexcept = default;
  ~PyJob() {
    nb::gil_scoped_release release;
    job_.reset();
  }
  void wait() {
    {
      nb::gil_scoped_release release;
      job_->wait();
    }
    array_.reset();
  }
  auto& job() const { return *job_; }

 private:
  std::shared_ptr<void> array_;
  Job job_;
};
using PyIoJob = PyJob<std::shared_ptr<IoJob>>;
using PyRowJob = PyJob<std::unique_ptr<RowJob>>;
struct RowArrays {
  Ids ids;
  Array1<const int32_t> positions;
  ByteRows out;
};

// Requests for lengths[i] bytes between offsets[i] of the file and memory[positions[i]:].
std::vector<IoRequest> make_requests(FileId file, const Ids& offsets, const Ids& lengths,
                                     const Ids& positions, const uint8_t* memory, size_t memory_bytes) {
  if (lengths.size() != offsets.size() || positions.size() != offsets.size())
    throw Error(ErrorKind::argument, std::to_string(offsets.size()) + " offsets, " +
                                         std::to_string(lengths.size()) + " lengths and " +
                                         std::to_string(positions.size()) +
                                         " positions given; they must be equally many");
  std::vector<IoRequest> requests(offsets.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t from = offsets.data()[i], n = lengths.data()[i], at = positions.data()[i];
    if (from < 0 || n < 0 || at < 0 || static_cast<uint64_t>(at) + static_cast<uint64_t>(n) > memory_bytes)
      throw Error(ErrorKind::argument, "request " + std::to_string(i) + " (offset " + std::to_string(from) +
                                           ", " + std::to_string(n) + " bytes, position " +
                                           std::to_string(at) + ") does not fit its array of " +
                                           std::to_string(memory_bytes) + " bytes");
    requests[i] = {file, static_cast<uint64_t>(from), static_cast<uint64_t>(n),
                   reinterpret_cast<std::byte*>(const_cast<uint8_t*>(memory)) + at};
  }
  return requests;
}

// Stride between rows of a 2-D byte array whose rows are contiguous; throws for others.
template <class Rows>
uint64_t row_stride(const Rows& rows, const char* name) {
  if (rows.shape(0) == 0 || rows.shape(1) == 0) return rows.shape(1);
  if ((rows.shape(1) > 1 && rows.stride(1) != 1) ||
      (rows.shape(0) > 1 && rows.stride(0) < static_cast<int64_t>(rows.shape(1))))
    throw Error(ErrorKind::argument, std::string(name) + " must have contiguous, ascending rows of bytes");
  return rows.shape(0) > 1 ? static_cast<uint64_t>(rows.stride(0)) : rows.shape(1);
}

struct Output {
  std::byte* data;
  uint64_t stride;
};

Output check_output(const ByteRows& out, size_t num_ids, uint64_t row_bytes) {
  if (out.shape(0) != num_ids || out.shape(1) != row_bytes)
    throw Error(ErrorKind::argument, "output of " + std::to_string(out.shape(0)) + " rows of " +
                                         std::to_string(out.shape(1)) + " bytes given for " +
                                         std::to_string(num_ids) + " rows of " + std::to_string(row_bytes) +
                                         " bytes");
  return {reinterpret_cast<std::byte*>(out.data()), row_stride(out, "out")};
}

PyIoJob submit_reads(BlockIo& io, FileId file, Ids offsets, Ids lengths, Bytes out, Ids positions) {
  auto requests = make_requests(file, offsets, lengths, positions, out.data(), out.size());
  std::shared_ptr<IoJob> job;
  {
    nb::gil_scoped_release release;
    job = io.submit(IoOp::read, std::move(requests));
  }
  return {std::move(job), std::move(out)};
}

PyIoJob submit_writes(BlockIo& io, FileId file, Ids offsets, Ids lengths, ConstBytes data, Ids positions) {
  auto requests = make_requests(file, offsets, lengths, positions, data.data(), data.size());
  std::shared_ptr<IoJob> job;
  {
    nb::gil_scoped_release release;
    job = io.submit(IoOp::write, std::move(requests));
  }
  return {std::move(job), std::move(data)};
}

void bind_options(nb::module_& m) {
  nb::enum_<OpenMode>(m, "OpenMode")
      .value("read", OpenMode::read)
      .value("create", OpenMode::create)
      .value("update", OpenMode::update)
      .value("pages", OpenMode::pages);
  nb::enum_<Backend>(m, "Backend")
      .value("automatic", Backend::automatic)
      .value("uring", Backend::uring)
      .value("pread", Backend::pread);
#ifdef OUTCROP_HAVE_URING
  m.attr("built_with_uring") = true;  // whether the kernel allows it is another matter
#else
  m.attr("built_with_uring") = false;
#endif
  nb::class_<FaultPlan>(m, "FaultPlan")
      .def(nb::init<>())
      .def("any", &FaultPlan::any)
      .def_rw("short_probability", &FaultPlan::short_probability)
      .def_rw("eagain_probability", &FaultPlan::eagain_probability)
      .def_rw("error_probability", &FaultPlan::error_probability)
      .def_rw("error_number", &FaultPlan::error_number)
      .def_rw("fail_at_op", &FaultPlan::fail_at_op)
      .def_rw("fail_attempts", &FaultPlan::fail_attempts)
      .def_rw("disk_full_after_bytes", &FaultPlan::disk_full_after_bytes)
      .def_rw("fail_enter_at", &FaultPlan::fail_enter_at)
      .def_rw("fail_enters", &FaultPlan::fail_enters)
      .def_rw("delay_us", &FaultPlan::delay_us)
      .def_rw("seed", &FaultPlan::seed);
  nb::class_<IoOptions>(m, "IoOptions")
      .def(nb::init<>())
      .def_rw("backend", &IoOptions::backend)
      .def_rw("depth", &IoOptions::depth)
      .def_rw("max_request_bytes", &IoOptions::max_request_bytes)
      .def_rw("direct", &IoOptions::direct)
      .def_rw("threads", &IoOptions::threads)
      .def_rw("rate_bytes_per_second", &IoOptions::rate_bytes_per_second)
      .def_rw("requests_per_second", &IoOptions::requests_per_second)
      .def_rw("unwritten_bytes", &IoOptions::unwritten_bytes)
      .def_rw("faults", &IoOptions::faults);
  nb::class_<IoCounters>(m, "IoCounters")
      .def_ro("read_bytes", &IoCounters::read_bytes)
      .def_ro("read_ops", &IoCounters::read_ops)
      .def_ro("write_bytes", &IoCounters::write_bytes)
      .def_ro("write_ops", &IoCounters::write_ops)
      .def_ro("bounce_bytes", &IoCounters::bounce_bytes)
      .def_ro("short_reads", &IoCounters::short_reads)
      .def_ro("retries", &IoCounters::retries);
}

void bind_engine(nb::module_& m) {
  const auto no_gil = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<PyIoJob>(m, "IoJob", "Reads or writes under way; keeps its array alive.")
      .def("wait", &PyIoJob::wait, "Blocks until all is done; raises IoError, each time, if anything failed.")
      .def_prop_ro("done", [](const PyIoJob& job) { return job.job().done(); });
  nb::class_<BlockIo>(m, "BlockIo")
      .def_static("create", &BlockIo::create, "options"_a, "budget"_a)
      .def("open", &BlockIo::open, "path"_a, "mode"_a, no_gil)
      .def("close", &BlockIo::close, "file"_a, no_gil)
      .def("size_bytes", &BlockIo::size_bytes, "file"_a)
      .def("path", &BlockIo::path, "file"_a)
      .def("sync", &BlockIo::sync, "file"_a, no_gil)
      .def("drop_cache", &BlockIo::drop_cache, "file"_a, no_gil)
      .def("resize", &BlockIo::resize, "file"_a, "bytes"_a, no_gil)
      .def_prop_ro("counters", &BlockIo::counters)
      .def_prop_ro("backend_name", &BlockIo::backend_name)
      .def(
          "read",
          [](BlockIo& io, FileId f, uint64_t offset, Bytes out) {
            nb::gil_scoped_release release;
            io.read(f, offset, out.data(), out.size());
          },
          "file"_a, "offset"_a, "out"_a)
      .def(
          "write",
          [](BlockIo& io, FileId f, uint64_t offset, ConstBytes data) {
            nb::gil_scoped_release release;
            io.write(f, offset, data.data(), data.size());
          },
          "file"_a, "offset"_a, "data"_a)
      .def("submit_reads", &submit_reads, "file"_a, "offsets"_a, "lengths"_a, "out"_a, "positions"_a,
           "Starts reading lengths[i] bytes at offsets[i] into out[positions[i]:].")
      .def("submit_writes", &submit_writes, "file"_a, "offsets"_a, "lengths"_a, "data"_a, "positions"_a,
           "Starts writing data[positions[i]:][:lengths[i]] at offsets[i].");
}

void bind_rows(nb::module_& m) {
  nb::class_<PyRowJob>(m, "RowJob", "Rows under way; keeps its output alive.")
      .def("wait", &PyRowJob::wait, "Fills the output; raises IoError if a read failed.")
      .def_prop_ro("ready", [](const PyRowJob& job) { return job.job().ready(); });
  nb::class_<RowReader>(m, "RowReader", "Rows of an open file by id: out[i] = file_rows[ids[i]].")
      .def(
          "__init__",
          [](RowReader* self, std::shared_ptr<BlockIo> io, Budget& budget, FileId file, uint64_t base,
             uint64_t stride, uint64_t row_bytes, uint64_t num_rows, uint64_t scratch_bytes, bool merge) {
            new (self) RowReader(std::move(io), budget, file, {base, stride, row_bytes}, num_rows,
                                 scratch_bytes, merge);
          },
          "io"_a, "budget"_a, "file"_a, "base"_a, "stride"_a, "row_bytes"_a, "num_rows"_a, "scratch_bytes"_a,
          "merge"_a = true)
      .def_static("min_scratch_bytes", &RowReader::min_scratch_bytes, "row_bytes"_a)
      .def(
          "read_rows",
          [](RowReader& reader, Ids ids, ByteRows out) {
            const Output o = check_output(out, ids.size(), reader.layout().row_bytes);
            nb::gil_scoped_release release;
            reader.read_rows(ids.data(), ids.size(), o.data, o.stride);
          },
          "ids"_a, "out"_a)
      .def(
          "read_sorted",
          [](RowReader& reader, Array1<const int32_t> ids, Array1<const int32_t> positions, ByteRows out) {
            const Output o = check_output(out, out.shape(0), reader.layout().row_bytes);
            if (ids.size() != positions.size())
              throw Error(ErrorKind::format, "an address table has " + std::to_string(ids.size()) +
                                                 " rows and " + std::to_string(positions.size()) +
                                                 " positions");
            nb::gil_scoped_release release;
            reader.read_sorted(ids.data(), positions.data(), ids.size(), o.data, out.shape(0), o.stride);
          },
          "ids"_a, "positions"_a, "out"_a, "out[positions] = file_rows[ids] for ids that do not fall.")
      .def(
          "check_pages",
          [](RowReader& reader, Array1<const uint32_t> crcs, std::string remedy) {
            reader.check_pages(crcs.data(), crcs.size(), std::move(remedy));
          },
          "crcs"_a, "remedy"_a, nb::keep_alive<1, 2>(),
          "Compares each page with its CRC-32C when it is first read; an error ends with the remedy.")
      .def(
          "count_read_bytes",
          [](const RowReader& reader, Ids ids) {
            nb::gil_scoped_release release;
            return reader.count_read_bytes(ids.data(), ids.size());
          },
          "ids"_a)
      .def_prop_ro("num_rows", &RowReader::num_rows)
      .def_prop_ro("group_rows", &RowReader::group_rows);
  nb::class_<RowStream>(m, "RowStream", "Rows of an open file, asked for and waited for separately.")
      .def(
          "__init__",
          [](RowStream* self, std::shared_ptr<BlockIo> io, Budget& budget, FileId file, uint64_t base,
             uint64_t stride, uint64_t row_bytes, uint64_t num_rows, uint64_t scratch_bytes) {
            new (self)
                RowStream(std::move(io), budget, file, {base, stride, row_bytes}, num_rows, scratch_bytes);
          },
          "io"_a, "budget"_a, "file"_a, "base"_a, "stride"_a, "row_bytes"_a, "num_rows"_a, "scratch_bytes"_a)
      .def_static("min_scratch_bytes", &RowStream::min_scratch_bytes, "row_bytes"_a)
      .def(
          "submit",
          [](RowStream& stream, Ids ids, Array1<const int32_t> positions, ByteRows out) {
            const Output o = check_output(out, out.shape(0), stream.layout().row_bytes);
            check_length("positions", positions.size(), ids.size());
            std::unique_ptr<RowJob> job;
            {
              nb::gil_scoped_release release;
              job = stream.submit(ids.data(), positions.data(), ids.size(), o.data, out.shape(0), o.stride);
            }
            return PyRowJob(std::move(job), RowArrays{std::move(ids), std::move(positions), std::move(out)});
          },
          "ids"_a, "positions"_a, "out"_a, "Starts out[positions] = file_rows[ids] for ids that do not fall.")
      .def(
          "check_pages",
          [](RowStream& stream, Array1<const uint32_t> crcs, std::string remedy) {
            stream.check_pages(crcs.data(), crcs.size(), std::move(remedy));
          },
          "crcs"_a, "remedy"_a, nb::keep_alive<1, 2>(),
          "Compares each page with its CRC-32C when it is first read; before anything is submitted.");
  m.def(
      "count_read_bytes",
      [](Ids ids, uint64_t base, uint64_t stride, uint64_t row_bytes, bool merge) {
        if (row_bytes == 0 || stride < row_bytes)
          throw Error(ErrorKind::argument, "rows of " + std::to_string(row_bytes) +
                                               " bytes with a stride of " + std::to_string(stride) +
                                               " bytes overlap or are empty");
        nb::gil_scoped_release release;
        return count_read_bytes(ids.data(), ids.size(), {base, stride, row_bytes}, merge);
      },
      "ids"_a, "base"_a, "stride"_a, "row_bytes"_a, "merge"_a = true,
      "Bytes of page reads for these rows: len(unique pages) * 4096, or the sum of all page spans without "
      "merging.");
  m.def(
      "gather_rows",
      [](WorkerPool& workers, ConstByteRows table, Ids ids, ByteRows out) {
        const Output o = check_output(out, ids.size(), table.shape(1));
        const RowTable t{reinterpret_cast<const std::byte*>(table.data()), table.shape(0),
                         row_stride(table, "table"), table.shape(1)};
        nb::gil_scoped_release release;
        gather_rows(workers, t, ids.data(), ids.size(), o.data, o.stride);
      },
      "workers"_a, "table"_a, "ids"_a, "out"_a, "In memory: out[:] = table[ids], rows of bytes.");
}

void bind_page_sums(nb::module_& m) {
  m.def(
      "check_pages",
      [](ConstBytes data, uint64_t first, Array1<const uint32_t> crcs, const std::string& path,
         const std::string& remedy) {
        if (data.size() % kPageBytes)
          throw Error(ErrorKind::argument, std::to_string(data.size()) + " bytes are no whole pages");
        nb::gil_scoped_release release;
        check_run({crcs.data(), crcs.size()}, path, remedy, first, data.size() / kPageBytes,
                  reinterpret_cast<const std::byte*>(data.data()));
      },
      "data"_a, "first"_a, "crcs"_a, "path"_a, "remedy"_a,
      "Raises ChecksumError unless page i of data has checksum crcs[first + i].");
}

RowTable row_table(const ConstByteRows& rows) {
  return {reinterpret_cast<const std::byte*>(rows.data()), rows.shape(0), row_stride(rows, "rows"),
          rows.shape(1)};
}

void bind_row_sums(nb::module_& m) {
  m.def(
      "sum_rows",
      [](WorkerPool& workers, ConstByteRows rows, Array1<uint32_t> out) {
        if (out.size() != rows.shape(0))
          throw Error(ErrorKind::argument, std::to_string(rows.shape(0)) + " rows have no " +
                                               std::to_string(out.size()) + " checksums");
        nb::gil_scoped_release release;
        sum_rows(workers, row_table(rows), out.data());
      },
      "workers"_a, "rows"_a, "out"_a, "out[i] = CRC-32C of rows[i], rows of bytes.");
  m.def(
      "compare_rows",
      [](WorkerPool& workers, ConstByteRows rows, Ids ids, Array1<const uint32_t> crcs) {
        if (ids.size() != rows.shape(0))
          throw Error(ErrorKind::argument,
                      std::to_string(rows.shape(0)) + " rows have no " + std::to_string(ids.size()) + " ids");
        RowMismatch found;
        {
          nb::gil_scoped_release release;
          found = compare_rows(workers, row_table(rows), ids.data(), {crcs.data(), crcs.size()});
        }
        return nb::make_tuple(found.first, found.count);
      },
      "workers"_a, "rows"_a, "ids"_a, "crcs"_a,
      "(i, n): n rows have another CRC-32C than crcs[ids[i]], or an id without one; i is the first of them, "
      "len(rows) without any.");
}

}  // namespace

void bind_io(nb::module_& m) {
  bind_page_sums(m);
  bind_row_sums(m);
  bind_options(m);
  bind_engine(m);
  bind_rows(m);
}

}  // namespace outcrop
