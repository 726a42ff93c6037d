#include "program/partition.h"

#include <algorithm>

#include "thread_pool.h"

namespace dragoman {
namespace {

// Weights that fit a processor's last-level cache.
constexpr std::size_t kSmallBytes = 16 << 20;

// Minimum rows of a batch per thread, and maximum of a partition.
constexpr long kLeastRows = 2, kMostRows = 16;

}  // namespace

long rows_of_partition(const Batch& batch, std::size_t weights_bytes) {
  const long threads = pool().threads();
  if (threads == 1 || weights_bytes > kSmallBytes || batch.overrides > 0 || batch.adapters != nullptr ||
      batch.seen_ends != nullptr || batch.tokens < kLeastRows * threads) {
    return 0;
  }
  const long rounds = (batch.tokens + threads * kMostRows - 1) / (threads * kMostRows), parts = rounds * threads;
  return (batch.tokens + parts - 1) / parts;
}

void divide(CheckedBatch& checked, long rows, std::vector<RowPartition>& partitions) {
  const Batch& batch = *checked.batch;
  std::vector<Attention::Sequence> cut;
  partitions.clear();
  long logit = 0;
  const auto end_partition = [&](long row) {
    RowPartition& last = partitions.back();
    last.tokens.end = row;
    last.sequences.end = static_cast<long>(cut.size());
    while (logit < batch.logits && batch.logit_rows[logit] < row) ++logit;
    last.logits.end = logit;
  };
  std::size_t first = 0;  // the sequence's first partition
  for (const Attention::Sequence& sequence : checked.sequences) {
    for (long done = 0; done < sequence.rows;) {
      const long row = sequence.row + done;
      if (row % rows == 0) {
        if (row > 0) end_partition(row);
        const long count = static_cast<long>(cut.size());
        const std::size_t here = partitions.size();
        const long in_block = std::min(done, (sequence.position + done) % kBlockTokens);  // of the rows before
        partitions.push_back({.checked = &checked,
                              .tokens = {row, row},
                              .logits = {logit, logit},
                              .sequences = {count, count},
                              .waits_for = done == 0 ? here : first,
                              .shares_block_with = static_cast<std::size_t>((row - in_block) / rows)});
      }
      if (done == 0) first = partitions.size() - 1;
      const long count = std::min(sequence.rows - done, rows - row % rows);
      cut.push_back({.row = row,
                     .rows = count,
                     .position = sequence.position + done,
                     .blocks = sequence.blocks,
                     .length = sequence.position + done + count,
                     .table_stride = sequence.table_stride});
      done += count;
    }
  }
  end_partition(batch.tokens);
  checked.sequences.swap(cut);
}

}  // namespace dragoman
