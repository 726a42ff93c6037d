// The adapters of a program: which products they can change, what is in each slot, and whose rows a batch has.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "layers/lora.h"
#include "memory/anonymous_memory.h"
#include "program/batch.h"

namespace dragoman {

constexpr long kMostAdapters = 1024;

// A product that adapters can change.
struct AdapterTarget {
  long n, k;
};

// What an adapter does to each target, in the order of their recording; null: nothing.
struct Adapter {
  AnonymousMemory memory;  // of all changes, one after the other in huge pages
  std::vector<std::unique_ptr<const LowRank>> changes;
};

class AdapterTable {
 public:
  // Returns the target's number.
  std::size_t add_target(AdapterTarget target);

  // The adapter with copies of these changes. Throws std::invalid_argument where they do not fit their targets.
  std::unique_ptr<const Adapter> copy(long slot, const std::vector<std::shared_ptr<LowRank>>& changes) const;

  // Not while a batch runs.
  void put(long slot, std::unique_ptr<const Adapter> adapter);
  void remove(long slot);

  // Which rows of the batch belong to which slot. Throws std::invalid_argument on an empty slot.
  void find_rows(const Batch& batch);

  // Adds to y, whose rows hold x · Wᵀ, what the adapters of the batch change in this target.
  void apply(std::size_t target, Rows rows, const Matrix& w, const float* x, long ldx, float* y, long ldy);

 private:
  struct SlotRows {
    long slot, begin, end;
  };

  std::vector<AdapterTarget> targets_;
  std::vector<std::unique_ptr<const Adapter>> adapters_;   // by slot
  std::vector<SlotRows> token_adapters_, logit_adapters_;  // of the batch that runs
  std::vector<LowRankRows> changed_;                       // of the product that runs
  LoraScratch scratch_;
};

}  // namespace dragoman
