#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "kernels.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace dragoman {

void bind_linear(nb::module_& m) {
  m.def("instruction_set", [] { return std::string(kernels().name); });
  m.def("instruction_sets", [] { return supported_kernels(); });
  m.def("force", [](const std::string& name) { force_kernels(name); }, nb::arg("name"));
  m.def("set_threads", [](int threads) { pool().resize(threads); }, nb::arg("threads"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("threads", [] { return pool().threads(); });
}

}  // namespace dragoman
