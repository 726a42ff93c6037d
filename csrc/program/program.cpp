#include "program/program.h"

#include <string>
#include <utility>

#include "program/partition.h"
#include "program/require.h"

namespace dragoman {

Program::Program(long max_tokens, long max_sequences, long max_logit_rows, const std::shared_ptr<KVPool>& kv,
                 const std::shared_ptr<StatePool>& states)
    : recorder_(max_tokens, max_sequences, max_logit_rows, kv, states, adapters_),
      checker_(recorder_.limits(), kv, states) {}

Logits Program::run(const Batch& batch, Interrupt& interrupt) {
  const std::lock_guard lock(running_);
  CheckedBatch& checked = checker_.check(batch);
  adapters_.find_rows(batch);
  const std::vector<Operation>& operations = recorder_.operations();
  const long count = static_cast<long>(operations.size()),
             end = batch.operations_end < 0 ? count : batch.operations_end;
  require(0 <= batch.first_operation && batch.first_operation <= end && end <= count,
          "run: the program has " + std::to_string(count) + " operations");
  const bool whole = batch.first_operation == 0 && end == count;
  const long rows = whole && recorder_.is_divisible() ? rows_of_partition(batch, recorder_.weights_bytes()) : 0;
  if (rows > 0) {
    divide(checked, rows, partitions_);
    runner_.run_partitions(operations, partitions_, profiler_, interrupt);
  } else {
    const Range range{.begin = batch.first_operation, .end = end};
    runner_.run_together(operations, range, checked, profiler_, interrupt);
  }
  return recorder_.result(batch.logits);
}

void Program::set_adapter(long slot, const std::vector<std::shared_ptr<LowRank>>& changes) {
  std::unique_ptr<const Adapter> adapter = adapters_.copy(slot, changes);
  const std::lock_guard lock(running_);
  adapters_.put(slot, std::move(adapter));
}

void Program::remove_adapter(long slot) {
  const std::lock_guard lock(running_);
  adapters_.remove(slot);
}

std::vector<Timing> Program::profile(bool by_shape) {
  const std::lock_guard lock(running_);
  return profiler_.take(recorder_.operations(), by_shape);
}

}  // namespace dragoman
