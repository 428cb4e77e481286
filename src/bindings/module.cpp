#include "bindings.h"

namespace outcrop {
namespace {

const char* python_class(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::argument:
      return "ArgumentError";
    case ErrorKind::format:
      return "FormatError";
    case ErrorKind::checksum:
      return "ChecksumError";
    case ErrorKind::budget:
      return "BudgetError";
    case ErrorKind::io:
      return "IoError";
    case ErrorKind::cancelled:
      return "CancelledError";
  }
  return "OutcropError";
}

// One C++ error type, one translator.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& e) {
    nb::object type = nb::module_::import_("outcrop.errors").attr(python_class(e.kind()));
    nb::object error = e.error_number() ? type(e.error_number(), e.what()) : type(e.what());
    PyErr_SetObject(type.ptr(), error.ptr());
  }
}

}  // namespace
}  // namespace outcrop

NB_MODULE(_core, m) {
  nb::register_exception_translator(outcrop::translate);
  outcrop::bind_base(m);
  outcrop::bind_io(m);
  outcrop::bind_quantised(m);
  outcrop::bind_sparse_rows(m);
  outcrop::bind_graph(m);
  outcrop::bind_relations(m);
  outcrop::bind_sampling(m);
  outcrop::bind_pack(m);
  outcrop::bind_segments(m);
  outcrop::bind_cache(m);
  outcrop::bind_embed_orders(m);
  outcrop::bind_embed(m);
  outcrop::bind_infer(m);
  outcrop::bind_cpu_kernels(m);
  outcrop::bind_device(m);
  outcrop::bind_rings(m);
}
