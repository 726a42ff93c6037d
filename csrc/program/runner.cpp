#include "program/runner.h"

#include <atomic>
#include <chrono>
#include <cstdint>

#include "thread_pool.h"

namespace dragoman {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kInterrupted = SIZE_MAX;  // progress of a partition that ended early: others do not wait for it

}  // namespace

void Runner::run_together(const std::vector<Operation>& operations, const Range& range, const CheckedBatch& checked,
                          Profiler& profiler, Interrupt& interrupt) {
  const Batch& batch = *checked.batch;
  const RowPartition all{.checked = &checked,
                         .tokens = {0, batch.tokens},
                         .logits = {0, batch.logits},
                         .sequences = {0, batch.sequences},
                         .waits_for = 0,
                         .shares_block_with = 0};
  Clock::time_point before = Clock::now();
  for (std::size_t i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i) {
    if (interrupt.is_raised(before)) throw Interrupted();
    if (operations[i].is_optional && checked.cross_sequences.empty()) continue;
    operations[i].run(all, scratch_);
    const Clock::time_point after = Clock::now();
    profiler.add(i, std::chrono::duration<double>(after - before).count());
    before = after;
  }
}

void Runner::run_partitions(const std::vector<Operation>& operations, const std::vector<RowPartition>& partitions,
                            Profiler& profiler, Interrupt& interrupt) {
  const std::size_t count = partitions.size();
  while (progress_.size() < count) progress_.emplace_back();
  for (std::size_t number = 0; number < count; ++number) {
    progress_[number].operations.store(0, std::memory_order_relaxed);
  }
  seconds_.assign(count * operations.size(), 0.0);
  // When a partition waits for others, these are running or done.
  pool().parallel_for_ascending(static_cast<long>(count), 1, [&](long begin, long end) {
    thread_local Scratch scratch(0);
    for (long number = begin; number < end; ++number) {
      run_partition(operations, partitions, static_cast<std::size_t>(number), scratch, interrupt);
    }
  });
  for (std::size_t number = 0; number < count; ++number) {
    if (progress_[number].operations.load(std::memory_order_relaxed) == kInterrupted) throw Interrupted();
  }
  for (std::size_t i = 0; i < operations.size(); ++i) {
    double seconds = 0;
    for (std::size_t number = 0; number < count; ++number) seconds += seconds_[number * operations.size() + i];
    profiler.add(i, seconds / pool().threads());
  }
}

void Runner::run_partition(const std::vector<Operation>& operations, const std::vector<RowPartition>& partitions,
                           std::size_t number, Scratch& scratch, Interrupt& interrupt) {
  const RowPartition& partition = partitions[number];
  const auto wait_for = [&](std::size_t first, std::size_t done) {
    for (std::size_t other = first; other < number; ++other) {
      wait_until([&] { return progress_[other].operations.load(std::memory_order_acquire) >= done; });
    }
  };
  Clock::time_point before = Clock::now();
  for (std::size_t i = 0; i < operations.size(); ++i) {
    if (interrupt.is_raised(before)) {
      progress_[number].operations.store(kInterrupted, std::memory_order_release);
      return;
    }
    // Keys and values before the partition's own rows must be written. And a block is read as a whole, with the tokens
    // that a row does not see: it is written when the earlier partitions have read it. None waits for later ones.
    if (operations[i].kind == OperationKind::attend) wait_for(partition.waits_for, i);
    if (operations[i].kind == OperationKind::write_kv) {
      wait_for(partition.shares_block_with, operations[i].reads_end);
    }
    operations[i].run(partition, scratch);
    progress_[number].operations.store(i + 1, std::memory_order_release);
    const Clock::time_point after = Clock::now();
    seconds_[number * operations.size() + i] = std::chrono::duration<double>(after - before).count();
    before = after;
  }
}

}  // namespace dragoman
