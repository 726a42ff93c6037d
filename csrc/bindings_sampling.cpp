#include "bindings.h"

namespace dragoman {

void bind_sampling(nanobind::module_&) {}

}  // namespace dragoman
