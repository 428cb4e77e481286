#include "bindings.h"
#include "cpu_kernels/kernels.h"
#include "cpu_kernels/sample.h"

namespace outcrop {

namespace {

using ConstRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using Rows = nb::ndarray<uint8_t, nb::ndim<2>, nb::device::cpu>;
using Index = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class A>
A dense_rows(const char* name, A rows) {
  if (rows.shape(1) > 1 && rows.stride(1) != 1) {
    throw Error(ErrorKind::argument, std::string(name) + " has gaps between the bytes of a row");
  }
  return rows;
}

}  // namespace

void bind_cpu_kernels(nb::module_& m) {
  m.def(
      "cpu_gather",
      [](const ConstRows& table, const Index& index, const Rows& out, int word_bytes, int64_t warps) {
        dense_rows("table", table);
        dense_rows("out", out);
        check_length("out", out.shape(0), index.shape(0));
        check_length("a row of out", out.shape(1), table.shape(1));
        const int index_bytes = index.dtype().bits / 8;
        if (index.dtype().code != static_cast<uint8_t>(nb::dlpack::dtype_code::Int) ||
            (index_bytes != 4 && index_bytes != 8)) {
          throw Error(ErrorKind::argument, "an index is int32 or int64");
        }
        const CpuRows rows{reinterpret_cast<const std::byte*>(table.data()),
                           table.stride(0),
                           static_cast<int64_t>(table.shape(0)),
                           reinterpret_cast<std::byte*>(out.data()),
                           out.stride(0),
                           static_cast<int64_t>(table.shape(1))};
        nb::gil_scoped_release release;
        return cpu_gather(rows, index.data(), index_bytes, static_cast<int64_t>(index.shape(0)), word_bytes,
                          warps);
      },
      "table"_a, "index"_a, "out"_a, "word_bytes"_a, "warps"_a = 2,
      "out[i] = table[index[i]] by the code of the GPU kernel, lane by lane; -1, or a place in index that is "
      "no row.");
  m.def(
      "cpu_assemble",
      [](const std::vector<ConstRows>& tables, const Array1<const uint64_t>& place, const Rows& out,
         int word_bytes, int64_t warps) {
        check_length("tables", tables.size(), 3);
        check_length("out", out.shape(0), place.shape(0));
        dense_rows("out", out);
        std::vector<CpuTable> rows;
        for (const ConstRows& table : tables) {
          dense_rows("a table", table);
          check_length("a row of out", out.shape(1), table.shape(1));
          rows.push_back({reinterpret_cast<const std::byte*>(table.data()), table.stride(0),
                          static_cast<int64_t>(table.shape(0))});
        }
        nb::gil_scoped_release release;
        return cpu_assemble(rows.data(), place.data(), static_cast<int64_t>(place.shape(0)),
                            reinterpret_cast<std::byte*>(out.data()), static_cast<int64_t>(out.shape(1)),
                            word_bytes, warps);
      },
      "tables"_a, "place"_a, "out"_a, "word_bytes"_a, "warps"_a = 2,
      "out[i] = tables[place[i] >> 56][place[i] & (1 << 56) - 1] by the code of the GPU kernel; -1, or a "
      "place that "
      "is none.");
  m.def("cpu_gather_requests", &cpu_gather_requests, "address"_a, "row_bytes"_a,
        "Lines of 128 bytes that the kernel asks for to read a row at an address.");
  m.def(
      "cpu_sample",
      [](const std::string& entry, int64_t warps, const std::vector<int64_t>& arguments, bool backwards) {
        nb::gil_scoped_release release;
        cpu_sample(entry, warps, arguments, backwards);
      },
      "entry"_a, "warps"_a, "arguments"_a, "backwards"_a = false,
      "Runs a kernel of kernels/sample.cu on the CPU. Arguments are addresses and numbers, and not checked: "
      "for "
      "whoever launches kernels.");
}

}  // namespace outcrop
