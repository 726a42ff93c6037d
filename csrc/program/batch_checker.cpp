#include "program/batch_checker.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace dragoman {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string number_of(long value) { return std::to_string(value); }

}  // namespace

BatchChecker::BatchChecker(const BatchLimits& limits, std::shared_ptr<const KVPool> kv,
                           std::shared_ptr<const StatePool> states)
    : limits_(limits),
      kv_(std::move(kv)),
      states_(std::move(states)),
      slot_uses_(states_ == nullptr ? 0 : static_cast<std::size_t>(states_->slots())) {
  for (long g = 0; g < kv_->groups(); ++g) block_written_.emplace_back(static_cast<std::size_t>(kv_->blocks(g)));
}

CheckedBatch& BatchChecker::check(const Batch& batch) {
  checked_.batch = &batch;
  checked_.sequences.clear();
  checked_.cross_sequences.clear();
  check_rows(batch);
  ++step_;
  for (long s = 0; s < batch.sequences; ++s) check_sequence(batch, s);
  const bool looks = limits_.cross_attends && batch.cross_tables != nullptr;
  for (long s = 0; looks && s < batch.sequences; ++s) check_cross(batch, s);
  if (limits_.recurs) check_states(batch);
  return checked_;
}

void BatchChecker::check_states(const Batch& batch) {
  if (batch.state_slots == nullptr) refuse("the program has recurrences, and the batch has no slots for their states");
  const long slots = states_->slots();
  checked_.states.clear();
  for (const Attention::Sequence& sequence : checked_.sequences) {
    const long number = static_cast<long>(checked_.states.size());
    const long before = sequence.position == 0 ? -1 : batch.state_slots[number];
    if (sequence.position > 0) {
      if (before < 0 || before >= slots) {
        refuse("slot " + number_of(before) + " is not in a pool of " + number_of(slots));
      }
      SlotUse& use = slot_uses_[before];
      use = {.written = use.written, .read = step_, .reader = use.read == step_ && use.reader != number ? -1 : number};
    }
    const std::int32_t* const rows = batch.state_rows + sequence.row;
    if (rows[sequence.rows - 1] < 0) refuse("the last row of a sequence must have a slot for its state");
    checked_.states.push_back({.row = sequence.row, .rows = sequence.rows, .before = before, .slots = rows});
  }
  for (const StateRows& states : checked_.states) {
    const long number = &states - checked_.states.data();
    for (long r = 0; r < states.rows; ++r) {
      const long slot = states.slots[r];
      if (slot < -1 || slot >= slots) refuse("slot " + number_of(slot) + " is not in a pool of " + number_of(slots));
      if (slot < 0) continue;
      SlotUse& use = slot_uses_[slot];
      if (use.written == step_) refuse("slot " + number_of(slot) + " would be written twice in one step");
      if (use.read == step_ && use.reader != number) {
        refuse("slot " + number_of(slot) + " would be written and read by two sequences in one step");
      }
      use.written = step_;
    }
  }
}

void BatchChecker::check_rows(const Batch& batch) const {
  if (!limits_.has_logits && batch.logits > 0) refuse("the program has no logits");
  if (batch.tokens < 1 || batch.tokens > limits_.max_tokens) {
    refuse("a step has 1 to " + number_of(limits_.max_tokens) + " tokens, not " + number_of(batch.tokens));
  }
  if (batch.groups != kv_->groups()) {
    refuse("a step has block tables of " + number_of(kv_->groups()) + " groups of layers, not " +
           number_of(batch.groups));
  }
  if (batch.sequences < 1 || batch.sequences > limits_.max_sequences) {
    refuse("a step has 1 to " + number_of(limits_.max_sequences) + " sequences, not " + number_of(batch.sequences));
  }
  if (batch.logits > limits_.max_logit_rows) {
    refuse("a step has at most " + number_of(limits_.max_logit_rows) + " logits rows, not " + number_of(batch.logits));
  }
  for (long i = 0; i < batch.tokens; ++i) {
    if (batch.token_ids[i] < 0 || batch.token_ids[i] >= limits_.vocab) {
      refuse("token id " + number_of(batch.token_ids[i]) + " is not in a vocabulary of " + number_of(limits_.vocab));
    }
  }
  for (long i = 0; i < batch.logits; ++i) {
    const long row = batch.logit_rows[i];
    if (row < 0 || row >= batch.tokens || (i > 0 && row <= batch.logit_rows[i - 1])) {
      refuse("logit_rows must ascend within the rows of the batch");
    }
  }
  const long whole = limits_.given_parts * limits_.embedding_width;
  if (batch.overrides > 0 && batch.override_width != limits_.embedding_width && batch.override_width != whole) {
    refuse("given embeddings must be " + number_of(limits_.embedding_width) +
           (limits_.given_parts > 1 ? " or " + number_of(whole) : "") + " wide");
  }
  for (long i = 0; i < batch.overrides; ++i) {
    if (batch.override_rows[i] < 0 || batch.override_rows[i] >= batch.tokens) {
      refuse("a given embedding belongs to row " + number_of(batch.override_rows[i]) + ", which is not in the batch");
    }
  }
  for (long i = 0; batch.rotary_positions != nullptr && i < kRotaryAxes * batch.tokens; ++i) {
    if (batch.rotary_positions[i] < 0 || batch.rotary_positions[i] >= limits_.positions) {
      refuse("rotary position " + number_of(batch.rotary_positions[i]) + " is not in tables of " +
             number_of(limits_.positions));
    }
  }
  if (limits_.cross_attends && !limits_.cross_is_optional && batch.cross_tables == nullptr) {
    refuse("the program looks at another text, and the batch has none");
  }
  if (batch.row_starts[0] != 0 || batch.row_starts[batch.sequences] != batch.tokens) {
    refuse("row_starts must begin with 0 and end with the number of tokens");
  }
  for (long s = 0; s < batch.sequences; ++s) {
    // Checked here: an end that is too large is detected before its rows are read.
    if (batch.row_starts[s + 1] <= batch.row_starts[s] || batch.row_starts[s + 1] > batch.tokens) {
      refuse("row_starts must ascend: every sequence has at least one row");
    }
  }
}

void BatchChecker::require_block(long block, long group) const {
  if (block < 0 || block >= kv_->blocks(group)) {
    refuse("block " + number_of(block) + " is not in a pool of " + number_of(kv_->blocks(group)));
  }
}

void BatchChecker::check_cross(const Batch& batch, long s) {
  const long row = batch.row_starts[s], rows = batch.row_starts[s + 1] - row, length = batch.cross_lengths[s];
  const std::int32_t* const blocks = batch.cross_tables + s * batch.cross_width;
  if (length == 0 && limits_.cross_is_optional) return;
  if (length < 1 || (length - 1) / kBlockTokens >= batch.cross_width) {
    refuse("another text of " + number_of(length) + " positions does not fit a block table of " +
           number_of(batch.cross_width));
  }
  for (long b = 0; b <= (length - 1) / kBlockTokens; ++b) {
    require_block(blocks[b], 0);
    if (!limits_.looks_at_step && block_written_[0][blocks[b]] == step_) {
      refuse("block " + number_of(blocks[b]) + " would be written and looked at as another text in one step");
    }
  }
  checked_.cross_sequences.push_back({.row = row, .rows = rows, .position = 0, .blocks = blocks, .length = length});
}

void BatchChecker::check_sequence(const Batch& batch, long s) {
  const long row = batch.row_starts[s], rows = batch.row_starts[s + 1] - row;
  const long first = batch.positions[row], last = first + rows - 1;
  if (first < 0 || last >= limits_.positions) {
    refuse("positions " + number_of(first) + " to " + number_of(last) + " are not all in tables of " +
           number_of(limits_.positions));
  }
  for (long i = 1; i < rows; ++i) {
    if (batch.positions[row + i] != first + i) refuse("the positions of a sequence must be consecutive");
  }
  for (long i = 0; batch.seen_ends != nullptr && i < rows; ++i) {
    const long end = batch.seen_ends[row + i];
    if (end <= first + i || end > last + 1 || (i > 0 && end < batch.seen_ends[row + i - 1])) {
      refuse("seen_ends must ascend from the position after a row's own to the sequence's end");
    }
  }
  for (long g = 0; g < kv_->groups(); ++g) check_blocks(batch, s, g, first, last);
  checked_.sequences.push_back({.row = row,
                                .rows = rows,
                                .position = first,
                                .blocks = batch.block_tables + s * batch.table_width,
                                .length = last + 1,
                                .table_stride = batch.table_stride(),
                                .ends = batch.seen_ends == nullptr ? nullptr : batch.seen_ends + row});
}

// Checks the blocks of the positions from first to last, and of those that they see.
void BatchChecker::check_blocks(const Batch& batch, long s, long group, long first, long last) {
  const BatchLimits::Group& limits = limits_.groups[group];
  if (!limits.attends && !limits.writes_kv) return;
  if (last / kBlockTokens >= batch.table_width) {
    refuse("position " + number_of(last) + " is beyond a block table of " + number_of(batch.table_width));
  }
  const std::int32_t* const blocks = batch.block_tables + group * batch.table_stride() + s * batch.table_width;
  const long seen = !limits.attends ? first : limits.window == 0 ? 0 : std::max(0L, first - limits.window + 1);
  for (long b = seen / kBlockTokens; b <= last / kBlockTokens; ++b) require_block(blocks[b], group);
  if (!limits.writes_kv) return;
  for (long b = first / kBlockTokens; b <= last / kBlockTokens; ++b) {
    if (!limits_.looks_at_step && block_written_[group][blocks[b]] == step_) {
      refuse("block " + number_of(blocks[b]) + " would be written twice in one step");
    }
    block_written_[group][blocks[b]] = step_;
  }
}

}  // namespace dragoman
