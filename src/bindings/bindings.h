// Shared by the binding files. Bindings check arguments and release the GIL; they compute nothing.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>

#include "base/buffer.h"
#include "base/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace outcrop {

template <class T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = Array1<const int64_t>;  // global node ids
using Bytes = Array1<uint8_t>;      // writable memory
using ConstBytes = Array1<const uint8_t>;

inline void check_length(const char* name, size_t have, size_t want) {
  if (have != want)
    throw Error(ErrorKind::argument, std::string(name) + " has " + std::to_string(have) + " elements, " +
                                         std::to_string(want) + " were expected");
}

// A NumPy array that owns a Buffer (and with it the Buffer's reservation).
inline nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> to_numpy(Buffer buffer) {
  auto* owned = new Buffer(std::move(buffer));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Buffer*>(p); });
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(owned->as<uint8_t>(), {owned->size()}, owner);
}

void bind_base(nb::module_& m);
void bind_io(nb::module_& m);
void bind_quantised(nb::module_& m);
void bind_sparse_rows(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_relations(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_pack(nb::module_& m);
void bind_segments(nb::module_& m);
void bind_cache(nb::module_& m);
void bind_embed_orders(nb::module_& m);
void bind_embed(nb::module_& m);
void bind_infer(nb::module_& m);
void bind_cpu_kernels(nb::module_& m);
void bind_device(nb::module_& m);
void bind_rings(nb::module_& m);

}  // namespace outcrop
