#include "base/budget.h"
#include "base/checksum.h"
#include "base/parallel.h"
#include "bindings.h"

namespace outcrop {

void bind_base(nb::module_& m) {
  nb::class_<Reservation>(m, "Reservation")
      .def_prop_ro("bytes", &Reservation::bytes)
      .def("release", &Reservation::release)
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](Reservation& r, nb::args) { r.release(); });
  nb::class_<Budget::Usage>(m, "Usage")
      .def_ro("now_bytes", &Budget::Usage::now_bytes)
      .def_ro("peak_bytes", &Budget::Usage::peak_bytes);
  nb::class_<Budget>(m, "Budget")
      .def_static("create", &Budget::create, "limit_bytes"_a = UINT64_MAX, "rehearsal"_a = false,
                  "measure_bytes"_a = 0)
      .def("reserve", &Budget::reserve, "tag"_a, "bytes"_a)
      .def(
          "empty",
          [](Budget& b, const std::string& tag, size_t bytes) { return to_numpy(Buffer(b, tag, bytes)); },
          "tag"_a, "bytes"_a, "Page-aligned uint8 array of `bytes`, zeroed, held under `tag` while it lives.")
      .def_prop_ro("limit_bytes", &Budget::limit_bytes)
      .def_prop_ro("now_bytes", &Budget::now_bytes)
      .def_prop_ro("peak_bytes", &Budget::peak_bytes)
      .def_prop_ro("free_bytes", &Budget::free_bytes)
      .def_prop_ro("by_tag", &Budget::by_tag);
  nb::class_<WorkerPool>(m, "WorkerPool")
      .def(nb::init<unsigned>(), "threads"_a = 0)
      .def_prop_ro("threads", &WorkerPool::threads);
  m.def(
      "crc32c",
      [](ConstBytes data, uint32_t crc) {
        nb::gil_scoped_release release;
        return crc32c(data.data(), data.size(), crc);
      },
      "data"_a, "crc"_a = 0);
  m.def(
      "crc32c_pages",
      [](ConstBytes data, Array1<uint32_t> out) {
        if (data.size() != out.size() * kPageBytes)
          throw Error(ErrorKind::argument, std::to_string(data.size()) + " bytes are not " +
                                               std::to_string(out.size()) + " pages");
        nb::gil_scoped_release release;
        crc32c_pages(data.data(), out.size(), out.data());
      },
      "data"_a, "out"_a, "out[i] = CRC-32C of page i.");
  m.def("crc32c_combine", &crc32c_combine, "crc_a"_a, "crc_b"_a, "bytes_b"_a);
}

}  // namespace outcrop
