// Memory of several processors: which of them has a page.
//
// A processor reads memory of its own node at twice the rate of another's. Weights are read by all threads, in chunks
// that any of them may take, so their pages alternate between the nodes, and all memory controllers work at once.
#pragma once

#include <cstddef>
#include <vector>

namespace dragoman {

// Memory that is asked for from now on is spread over these nodes, page by page as it is touched; with fewer than two,
// it comes from where it is touched first. Returns whether the system does that, which it may refuse (a container's
// filter of system calls) or not know. Throws std::invalid_argument for a node below 0 or above 1023.
bool set_memory_nodes(const std::vector<int>& nodes);

// Whether memory is spread.
bool memory_is_spread();

// Spreads the pages of a region that nobody has touched. Does nothing unless set_memory_nodes() returned true.
void spread_over_nodes(void* address, std::size_t bytes);

}  // namespace dragoman
