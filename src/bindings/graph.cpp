#include "bindings.h"

namespace outcrop {

void bind_graph(nb::module_&) {}

}  // namespace outcrop
