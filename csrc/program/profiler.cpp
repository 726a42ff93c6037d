#include "program/profiler.h"

#include <algorithm>
#include <utility>

namespace dragoman {

void Profiler::add(std::size_t operation, double seconds) {
  if (operation >= spent_.size()) spent_.resize(operation + 1);
  ++spent_[operation].calls;
  spent_[operation].seconds += seconds;
}

std::vector<Timing> Profiler::take(const std::vector<Operation>& operations, bool by_shape) {
  spent_.resize(operations.size());
  std::vector<Timing> taken;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    std::string name = name_of(operations[i].kind);
    if (by_shape && !operations[i].shape.empty()) name += " " + operations[i].shape;
    auto timing = std::find_if(taken.begin(), taken.end(), [&](const Timing& t) { return t.operation == name; });
    if (timing == taken.end()) timing = taken.insert(taken.end(), {std::move(name), 0, 0.0});
    const Spent spent = std::exchange(spent_[i], {});
    timing->calls += spent.calls;
    timing->seconds += spent.seconds;
  }
  return taken;
}

}  // namespace dragoman
