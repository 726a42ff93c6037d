// Running: the batch is checked as a whole, so that no operation can read or write beyond its memory, then every
// operation runs in the order it was recorded.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "program/program.h"

namespace dragoman {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

std::string number(long value) { return std::to_string(value); }

}  // namespace

void Program::check(const Batch& batch) {
  if (logits_ < 0 && batch.logits > 0) refuse("the program has no logits");
  if (batch.tokens < 1 || batch.tokens > max_tokens_) {
    refuse("a step has 1 to " + number(max_tokens_) + " tokens, not " + number(batch.tokens));
  }
  if (batch.sequences < 1 || batch.sequences > max_sequences_) {
    refuse("a step has 1 to " + number(max_sequences_) + " sequences, not " + number(batch.sequences));
  }
  if (batch.logits > max_logit_rows_) {
    refuse("a step has at most " + number(max_logit_rows_) + " logits rows, not " + number(batch.logits));
  }
  for (long i = 0; i < batch.tokens; ++i) {
    if (batch.token_ids[i] < 0 || batch.token_ids[i] >= vocab_) {
      refuse("token id " + number(batch.token_ids[i]) + " is not in a vocabulary of " + number(vocab_));
    }
  }
  for (long i = 0; i < batch.logits; ++i) {
    const long row = batch.logit_rows[i];
    if (row < 0 || row >= batch.tokens || (i > 0 && row <= batch.logit_rows[i - 1])) {
      refuse("logit_rows must ascend within the rows of the batch");
    }
  }
  if (batch.overrides > 0 && batch.override_width != embedding_width_) {
    refuse("given embeddings must be " + number(embedding_width_) + " wide");
  }
  for (long i = 0; i < batch.overrides; ++i) {
    if (batch.override_rows[i] < 0 || batch.override_rows[i] >= batch.tokens) {
      refuse("a given embedding belongs to row " + number(batch.override_rows[i]) + ", which is not in the batch");
    }
  }
  if (crosses_ && batch.cross_tables == nullptr) refuse("the program looks at another text, and the batch has none");
  if (batch.row_starts[0] != 0 || batch.row_starts[batch.sequences] != batch.tokens) {
    refuse("row_starts must begin with 0 and end with the number of tokens");
  }
  for (long s = 0; s < batch.sequences; ++s) {
    // Checked on the way: an end that is too large is caught before its rows are looked at.
    if (batch.row_starts[s + 1] <= batch.row_starts[s] || batch.row_starts[s + 1] > batch.tokens) {
      refuse("row_starts must ascend: every sequence has at least one row");
    }
  }
  find_adapter_rows(batch);
  ++step_;
  for (long s = 0; s < batch.sequences; ++s) check_sequence(batch, s);
  for (long s = 0; crosses_ && s < batch.sequences; ++s) check_cross(batch, s);
}

void Program::check_cross(const Batch& batch, long s) {
  const long row = batch.row_starts[s], rows = batch.row_starts[s + 1] - row, length = batch.cross_lengths[s];
  const std::int32_t* const blocks = batch.cross_tables + s * batch.cross_width;
  if (length < 1 || (length - 1) / kBlockTokens >= batch.cross_width) {
    refuse("another text of " + number(length) + " positions does not fit a block table of " +
           number(batch.cross_width));
  }
  for (long b = 0; b <= (length - 1) / kBlockTokens; ++b) {
    if (blocks[b] < 0 || blocks[b] >= kv_->blocks()) {
      refuse("block " + number(blocks[b]) + " is not in a pool of " + number(kv_->blocks()));
    }
    if (block_written_[blocks[b]] == step_) {
      refuse("block " + number(blocks[b]) + " would be written and looked at as another text in one step");
    }
  }
  crossed_.push_back({row, rows, 0, blocks, length});
}

void Program::check_sequence(const Batch& batch, long s) {
  const long row = batch.row_starts[s], rows = batch.row_starts[s + 1] - row;
  const long first = batch.positions[row], last = first + rows - 1;
  if (first < 0 || last >= positions_) {
    refuse("positions " + number(first) + " to " + number(last) + " are not all in tables of " + number(positions_));
  }
  for (long i = 1; i < rows; ++i) {
    if (batch.positions[row + i] != first + i) refuse("the positions of a sequence must be consecutive");
  }
  const std::int32_t* const blocks = batch.block_tables + s * batch.table_width;
  if (attends_ || writes_kv_) {
    if (last / kBlockTokens >= batch.table_width) {
      refuse("position " + number(last) + " is beyond a block table of " + number(batch.table_width));
    }
    const long seen = !attends_ ? first : window_ == 0 ? 0 : std::max(0L, first - window_ + 1);
    for (long b = seen / kBlockTokens; b <= last / kBlockTokens; ++b) {
      if (blocks[b] < 0 || blocks[b] >= kv_->blocks()) {
        refuse("block " + number(blocks[b]) + " is not in a pool of " + number(kv_->blocks()));
      }
    }
  }
  if (writes_kv_) {
    for (long b = first / kBlockTokens; b <= last / kBlockTokens; ++b) {
      if (block_written_[blocks[b]] == step_) {
        refuse("block " + number(blocks[b]) + " would be written twice in one step");
      }
      block_written_[blocks[b]] = step_;
    }
  }
  sequences_.push_back({row, rows, first, blocks, last + 1});
}

Logits Program::run(const Batch& batch) {
  const std::lock_guard lock(running_);
  sequences_.clear();
  crossed_.clear();
  check(batch);
  if (const long rows = rows_of_part(batch)) {
    divide(batch, rows);
    run_parts();
  } else {
    run_together(batch);
  }
  if (logits_ < 0) return {nullptr, 0, 0, 0};
  const Buffer& result = at(logits_);
  return {result.data(), batch.logits, result.width, result.stride};
}

void Program::run_together(const Batch& batch) {
  using Clock = std::chrono::steady_clock;
  const Part all{&batch, {0, batch.tokens}, {0, batch.logits}, {0, batch.sequences}, 0};
  Clock::time_point before = Clock::now();
  for (Operation& operation : operations_) {
    operation.run(all, scratch_);
    const Clock::time_point after = Clock::now();
    ++operation.calls;
    operation.seconds += std::chrono::duration<double>(after - before).count();
    before = after;
  }
}

std::vector<Program::Timing> Program::profile(bool by_shape) {
  static constexpr const char* names[kKinds] = {"embed",  "norm",       "linear", "rotate",     "write_kv",
                                                "attend", "activation", "experts", "adapt",  "add",
                                                "scale",  "select_rows"};
  const std::lock_guard lock(running_);
  std::vector<Timing> taken;
  for (Operation& operation : operations_) {
    std::string name = names[operation.kind];
    if (by_shape && !operation.shape.empty()) name += " " + operation.shape;
    auto timing = std::find_if(taken.begin(), taken.end(), [&](const Timing& t) { return t.operation == name; });
    if (timing == taken.end()) timing = taken.insert(taken.end(), {std::move(name), 0, 0.0});
    timing->calls += std::exchange(operation.calls, 0);
    timing->seconds += std::exchange(operation.seconds, 0.0);
  }
  return taken;
}

}  // namespace dragoman
