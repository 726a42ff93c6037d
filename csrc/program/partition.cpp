// A small model's batch in parts: each thread takes some rows through all operations by itself, instead of all threads
// one operation after the other. Each layer is some 15 loops of 5 to 50 µs; waiting for each other at the end of each took
// a fifth of a step of 32 rows and two fifths of one of 8. The weights are read once for each part, so they have to be
// small.
#include <algorithm>
#include <chrono>
#include <thread>

#include "program/program.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

// Weights that a processor's last cache holds.
constexpr std::size_t kSmallBytes = 16 << 20;

// Fewest rows of a batch, by thread, and most of a part.
constexpr long kLeastRows = 2, kMostRows = 16;

}  // namespace

// 0: the batch is not to be divided.
long Program::rows_of_part(const Batch& batch) const {
  const long threads = pool().threads();
  if (threads == 1 || !divisible_ || weights_bytes_ > kSmallBytes || batch.overrides > 0 || batch.adapters != nullptr ||
      batch.tokens < kLeastRows * threads) {
    return 0;
  }
  const long rounds = (batch.tokens + threads * kMostRows - 1) / (threads * kMostRows), parts = rounds * threads;
  return (batch.tokens + parts - 1) / parts;
}

// Sequences are cut where a part is full.
void Program::divide(const Batch& batch, long rows) {
  std::vector<Attention::Sequence> cut;
  parts_.clear();
  long logit = 0;
  const auto end_part = [&](long row) {
    Part& part = parts_.back();
    part.tokens.end = row;
    part.sequences.end = static_cast<long>(cut.size());
    while (logit < batch.logits && batch.logit_rows[logit] < row) ++logit;
    part.logits.end = logit;
  };
  std::size_t first_part = 0;  // of the sequence
  for (const Attention::Sequence& sequence : sequences_) {
    for (long done = 0; done < sequence.rows;) {
      const long row = sequence.row + done;
      if (row % rows == 0) {
        if (row > 0) end_part(row);
        const long count = static_cast<long>(cut.size());
        const std::size_t here = parts_.size();
        parts_.push_back({&batch, {row, row}, {logit, logit}, {count, count}, done == 0 ? here : first_part});
      }
      if (done == 0) first_part = parts_.size() - 1;
      const long count = std::min(sequence.rows - done, rows - row % rows);
      cut.push_back({row, count, sequence.position + done, sequence.blocks, sequence.position + done + count});
      done += count;
    }
  }
  end_part(batch.tokens);
  sequences_.swap(cut);
}

void Program::run_parts() {
  const std::size_t parts = parts_.size();
  while (progress_.size() < parts) progress_.emplace_back();
  for (std::size_t part = 0; part < parts; ++part) progress_[part].operations.store(0, std::memory_order_relaxed);
  seconds_.assign(parts * operations_.size(), 0.0);
  // In ascending order: whoever has a part that waits for others, knows that these are at work or done.
  pool().parallel_for(static_cast<long>(parts), 1, [&](long begin, long end) {
    thread_local Scratch scratch(0);
    for (long part = begin; part < end; ++part) run_part(static_cast<std::size_t>(part), scratch);
  });
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    ++operations_[i].calls;
    for (std::size_t part = 0; part < parts; ++part) {
      operations_[i].seconds += seconds_[part * operations_.size() + i] / pool().threads();
    }
  }
}

void Program::run_part(std::size_t number, Scratch& scratch) {
  using Clock = std::chrono::steady_clock;
  const Part& part = parts_[number];
  Clock::time_point before = Clock::now();
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    // Keys and values before the part's own rows have to be there.
    for (std::size_t other = part.waits_for; other < number && operations_[i].kind == kAttend; ++other) {
      wait_until([&] { return progress_[other].operations.load(std::memory_order_acquire) >= i; });
    }
    operations_[i].run(part, scratch);
    progress_[number].operations.store(i + 1, std::memory_order_release);
    const Clock::time_point after = Clock::now();
    seconds_[number * operations_.size() + i] = std::chrono::duration<double>(after - before).count();
    before = after;
  }
}

}  // namespace dragoman
