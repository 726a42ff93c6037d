// The input of a program: a batch as given, as checked, and as partitioned.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "recurrence/recurrence.h"

namespace dragoman {

constexpr long kRotaryAxes = 3;

// One flat batch: the rows of all sequences one after the other.
struct Batch {
  const std::int32_t* token_ids;  // [tokens]
  const std::int32_t* positions;  // [tokens]
  long tokens;
  const std::int32_t* row_starts;  // [sequences + 1]
  long sequences;
  const std::int32_t* block_tables;  // [groups of layers, sequences, table_width]
  long groups;
  long table_width;
  const std::int32_t* logit_rows;  // [logits], ascending
  long logits;
  // Rows with a given embedding instead of a lookup: row override_rows[i] gets override_values[i, :], of whose parts
  // later operations may add those after the first.
  const std::int32_t* override_rows = nullptr;
  const float* override_values = nullptr;
  long overrides = 0;
  long override_width = 0;
  const std::int32_t* adapters = nullptr;  // [sequences]: the slot of each one's adapter, or -1; null: no adapters
  // For cross-attention: the blocks of the encoder input of each sequence, and its number of positions.
  const std::int32_t* cross_tables = nullptr;   // [sequences, cross_width]
  const std::int32_t* cross_lengths = nullptr;  // [sequences]
  long cross_width = 0;
  // For recurrences: the slot with each sequence's state before its first row (of position 0: any, the state is zero),
  // and the slot of the state after each row, or -1; the last row of every sequence has one.
  const std::int32_t* state_slots = nullptr;  // [sequences]
  const std::int32_t* state_rows = nullptr;   // [tokens]
  // Of each row the position before which it sees all, its own included; null: that after its own.
  const std::int32_t* seen_ends = nullptr;  // [tokens]
  // For rotations by several axes: of each row three positions; null: its own.
  const std::int32_t* rotary_positions = nullptr;  // [3, tokens]
  // The operations to run, from first_operation to before operations_end; -1: all that follow. Those before must have
  // run on the same rows.
  long first_operation = 0;
  long operations_end = -1;

  long table_stride() const { return sequences * table_width; }
};

// A batch with which no operation reads or writes beyond its memory: see BatchChecker.
struct CheckedBatch {
  const Batch* batch = nullptr;
  std::vector<Attention::Sequence> sequences;        // split where the batch is partitioned
  std::vector<Attention::Sequence> cross_sequences;  // the encoder inputs for their cross-attention
  std::vector<StateRows> states;                     // of each sequence
};

// Half-open range.
struct Range {
  long begin, end;

  long count() const { return end - begin; }
};

// Meaning of a buffer's rows.
enum class Rows : std::uint8_t { unwritten, tokens, logits };

// The unit that passes all operations together: a batch, or some of its neighbouring rows.
struct RowPartition {
  const CheckedBatch* checked;
  Range tokens, logits;   // rows of the buffers
  Range sequences;        // of checked->sequences
  std::size_t waits_for;  // the first partition with rows of this one's first sequence; itself, if it has them all
  // The first partition with rows of the KV block that this one's first row is written to; itself, if it has them all.
  std::size_t shares_block_with;

  const Batch& batch() const { return *checked->batch; }
  const Range& rows(Rows kind) const { return kind == Rows::tokens ? tokens : logits; }
  const Attention::Sequence* first_sequence() const { return checked->sequences.data() + sequences.begin; }
};

// The result of a run: row r is at data + r · stride.
struct Logits {
  const float* data;
  long rows;
  long vocab;
  long stride;
};

}  // namespace dragoman
