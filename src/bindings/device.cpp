#include "bindings.h"

namespace outcrop {

void bind_device(nb::module_& m) {
  m.def(
      "memory_as",
      [](uintptr_t address, const std::vector<size_t>& shape, const std::vector<int64_t>& strides, int kind,
         int bits, int device_type, int device, nb::object owner) {
        if (shape.size() != strides.size()) {
          throw Error(ErrorKind::argument, "shape has " + std::to_string(shape.size()) +
                                               " dimensions, strides " + std::to_string(strides.size()));
        }
        const nb::dlpack::dtype type{static_cast<uint8_t>(kind), static_cast<uint8_t>(bits), 1};
        return nb::ndarray<>(reinterpret_cast<void*>(address), shape.size(), shape.data(), std::move(owner),
                             strides.data(), type, device_type, device);
      },
      "address"_a, "shape"_a, "strides"_a, "kind"_a, "bits"_a, "device_type"_a, "device"_a, "owner"_a,
      "A DLPack capsule of memory as the device of a type and number sees it; keeps owner alive. Strides are "
      "in "
      "elements.");
}

}  // namespace outcrop
