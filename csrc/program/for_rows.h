// Division of the rows of an operation among threads.
#pragma once

#include <algorithm>

#include "program/batch.h"
#include "thread_pool.h"

namespace dragoman {

// Calls body(begin, end) for chunks of the rows, each of about as many floats as take some µs. width: floats of a row.
template <class Body>
void for_rows(const Range& rows, long width, Body&& body) {
  constexpr long kChunkFloats = 16384;
  pool().parallel_for(rows.count(), pool().fair_grain(rows.count(), std::max(1L, kChunkFloats / width)),
                      [&](long begin, long end) { body(rows.begin + begin, rows.begin + end); });
}

}  // namespace dragoman
