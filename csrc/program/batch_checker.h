// The check of a whole batch, so that no operation can read or write beyond its memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention/kv_pool.h"
#include "program/batch.h"
#include "recurrence/state_pool.h"

namespace dragoman {

// Requirements of a program's operations for every batch.
struct BatchLimits {
  long max_tokens, max_sequences, max_logit_rows;
  long vocab = INT32_MAX;  // smallest of the embedding tables
  long embedding_width = 0;
  long given_parts = 1;        // most parts of a given embedding, each as wide
  long positions = INT32_MAX;  // smallest of the position tables
  // Of the layers of each group of the pool.
  struct Group {
    long window = 0;  // positions that must be in blocks: the largest window, or 0 for all
    bool attends = false, writes_kv = false;
  };
  std::vector<Group> groups = {};
  bool writes_kv = false, cross_attends = false, recurs = false, has_logits = false;
  bool cross_is_optional = false;  // sequences may have no other text
  bool looks_at_step = false;      // other texts may be what the step writes, and sequences may share blocks
};

class BatchChecker {
 public:
  // limits: borrowed; they may change until the first batch.
  // states: null where the program has no recurrences.
  BatchChecker(const BatchLimits& limits, std::shared_ptr<const KVPool> kv, std::shared_ptr<const StatePool> states);

  // Throws std::invalid_argument on a batch that does not fit. The result is valid until the next call.
  CheckedBatch& check(const Batch& batch);

 private:
  void check_rows(const Batch& batch) const;
  void check_sequence(const Batch& batch, long sequence);
  void check_cross(const Batch& batch, long sequence);
  void check_states(const Batch& batch);
  void check_blocks(const Batch& batch, long sequence, long group, long first, long last);
  void require_block(long block, long group) const;

  const BatchLimits& limits_;
  const std::shared_ptr<const KVPool> kv_;
  const std::shared_ptr<const StatePool> states_;
  CheckedBatch checked_;
  std::vector<std::vector<std::uint64_t>> block_written_;  // by group and block: the last step that wrote it
  // By slot: the last step that wrote or read it, and the sequence that did.
  struct SlotUse {
    std::uint64_t written = 0, read = 0;
    long reader = -1;
  };
  std::vector<SlotUse> slot_uses_;
  std::uint64_t step_ = 0;
};

}  // namespace dragoman
