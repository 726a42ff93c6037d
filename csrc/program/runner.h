// The execution of recorded operations.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <vector>

#include "gemm/linear.h"
#include "program/interrupt.h"
#include "program/operation.h"
#include "program/profiler.h"

namespace dragoman {

class Runner {
 public:
  // The operations of a range on the whole batch: all threads of the pool work on one operation after the other. Both
  // throw Interrupted.
  void run_together(const std::vector<Operation>& operations, const Range& range, const CheckedBatch& checked,
                    Profiler& profiler, Interrupt& interrupt);

  // Each thread takes partitions through all operations, and waits for other partitions only where it needs their keys
  // and values.
  void run_partitions(const std::vector<Operation>& operations, const std::vector<RowPartition>& partitions,
                      Profiler& profiler, Interrupt& interrupt);

 private:
  // Number of operations a partition has completed. Alone on its cache line, because other partitions read it.
  struct alignas(64) Progress {
    std::atomic<std::size_t> operations{0};
  };

  void run_partition(const std::vector<Operation>& operations, const std::vector<RowPartition>& partitions,
                     std::size_t number, Scratch& scratch, Interrupt& interrupt);

  Scratch scratch_;
  std::deque<Progress> progress_;  // of each partition
  std::vector<double> seconds_;    // [partitions, operations]
};

}  // namespace dragoman
