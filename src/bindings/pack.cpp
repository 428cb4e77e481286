#include "bindings.h"

namespace outcrop {

void bind_pack(nb::module_&) {}

}  // namespace outcrop
