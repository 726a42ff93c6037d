// What a program runs on: a batch as it is given, as it was checked, and as it is divided.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"

namespace dragoman {

// One flat batch: the rows of all sequences one after the other.
struct Batch {
  const std::int32_t* token_ids;  // [tokens]
  const std::int32_t* positions;  // [tokens]
  long tokens;
  const std::int32_t* row_starts;  // [sequences + 1]
  long sequences;
  const std::int32_t* block_tables;  // [sequences, table_width]
  long table_width;
  const std::int32_t* logit_rows;  // [logits], ascending
  long logits;
  // Rows whose embedding is given instead of looked up: row override_rows[i] gets override_values[i, :].
  const std::int32_t* override_rows = nullptr;
  const float* override_values = nullptr;
  long overrides = 0;
  long override_width = 0;
  const std::int32_t* adapters = nullptr;  // [sequences]: the slot of each one's adapter, or -1; null: none has any
  // For cross-attention: where the text lies that each sequence looks at, and how many positions it has.
  const std::int32_t* cross_tables = nullptr;   // [sequences, cross_width]
  const std::int32_t* cross_lengths = nullptr;  // [sequences]
  long cross_width = 0;
};

// A batch that no operation reads or writes beyond its memory for: see BatchChecker.
struct CheckedBatch {
  const Batch* batch = nullptr;
  std::vector<Attention::Sequence> sequences;        // cut where the batch is divided
  std::vector<Attention::Sequence> cross_sequences;  // the texts that these look at by cross-attention
};

// From the one to before the other.
struct Range {
  long begin, end;

  long count() const { return end - begin; }
};

// What the rows of a buffer are.
enum class Rows : std::uint8_t { unwritten, tokens, logits };

// What goes through all operations together: a batch, or some of its neighbouring rows.
struct RowPartition {
  const CheckedBatch* checked;
  Range tokens, logits;   // rows of the buffers
  Range sequences;        // of checked->sequences
  std::size_t waits_for;  // the first partition with rows of this one's first sequence; itself, if it has them all

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
