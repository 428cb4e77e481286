#include "bindings.h"

namespace outcrop {

void bind_sampler(nb::module_&) {}

}  // namespace outcrop
