// The division of a small model's batch: each thread takes some rows through all operations by itself, instead of all
// threads one operation after the other. Each layer is some 15 loops of 5 to 50 µs; waiting for each other at the end
// of each took a fifth of a step of 32 rows and two fifths of one of 8. The weights are read once for each partition,
// so they have to be small.
#pragma once

#include <cstddef>
#include <vector>

#include "program/batch.h"

namespace dragoman {

// How many rows a partition of the batch has, where it pays to divide it; 0 where it does not. weights_bytes: that each
// row is multiplied with.
long rows_of_partition(const Batch& batch, std::size_t weights_bytes);

// Cuts the batch into partitions of so many rows, and its sequences where a partition is full.
void divide(CheckedBatch& checked, long rows, std::vector<RowPartition>& partitions);

}  // namespace dragoman
