// A decoder as a list of operations over float32 buffers: recorded once, run once per step.
//
//   Recorder      checks each operation and makes it a function of the rows
//   BatchChecker  checks a batch against what the operations ask of it
//   AdapterTable  knows what adapters change, and whose rows a batch has
//   partition.h   divides the batch of a small model among the threads
//   Runner        runs the operations, on the batch or on its partitions
//   Profiler      adds up their time
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "program/adapter_table.h"
#include "program/batch_checker.h"
#include "program/interrupt.h"
#include "program/profiler.h"
#include "program/recorder.h"
#include "program/runner.h"

namespace dragoman {

class Program {
 public:
  // states: null where nothing recurs.
  Program(long max_tokens, long max_sequences, long max_logit_rows, const std::shared_ptr<KVPool>& kv,
          const std::shared_ptr<StatePool>& states);

  // Before the first run.
  Recorder& recorder() { return recorder_; }

  // Runs all operations on the batch. Throws std::invalid_argument, before anything is written, on a batch that does
  // not fit, and Interrupted. The result is valid until the next run.
  Logits run(const Batch& batch, Interrupt& interrupt);

  // Sets the change of each target for the rows of a slot's sequences, null for none; copied. From any thread: it waits
  // for a run to end. Throws std::invalid_argument on changes that do not fit their targets.
  void set_adapter(long slot, const std::vector<std::shared_ptr<LowRank>>& changes);
  void remove_adapter(long slot);

  std::vector<Timing> profile(bool by_shape);

 private:
  std::mutex running_;
  AdapterTable adapters_;
  Recorder recorder_;
  BatchChecker checker_;
  Runner runner_;
  Profiler profiler_;
  std::vector<RowPartition> partitions_;  // of a partitioned batch
};

}  // namespace dragoman
