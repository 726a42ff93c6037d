#include "program/adapter_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "program/require.h"

namespace dragoman {

std::size_t AdapterTable::add_target(AdapterTarget target) {
  targets_.push_back(target);
  return targets_.size() - 1;
}

std::unique_ptr<const Adapter> AdapterTable::copy(long slot,
                                                  const std::vector<std::shared_ptr<LowRank>>& changes) const {
  require(slot >= 0 && slot < kMostAdapters, "there are slots for " + std::to_string(kMostAdapters) + " adapters");
  require(changes.size() == targets_.size(), "an adapter needs an entry for each product that it can change");
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const LowRank* const change = changes[i].get();
    if (change == nullptr) continue;
    bool fits = change->k() == targets_[i].k;
    for (const LowRankPart& part : change->parts()) fits = fits && part.offset + part.n <= targets_[i].n;
    require(fits, "the change of product " + std::to_string(i) + " does not fit it");
    bytes += change->bytes();
  }
  auto adapter = std::make_unique<Adapter>();
  adapter->memory = AnonymousMemory(std::max<std::size_t>(bytes, 1));
  std::uint8_t* at = adapter->memory.data();
  for (const std::shared_ptr<LowRank>& change : changes) {
    adapter->changes.push_back(change == nullptr ? nullptr : std::make_unique<const LowRank>(*change, at));
    if (change != nullptr) at += change->bytes();
  }
  return adapter;
}

void AdapterTable::put(long slot, std::unique_ptr<const Adapter> adapter) {
  if (static_cast<std::size_t>(slot) >= adapters_.size()) adapters_.resize(static_cast<std::size_t>(slot) + 1);
  adapters_[static_cast<std::size_t>(slot)] = std::move(adapter);
}

void AdapterTable::remove(long slot) {
  if (slot >= 0 && static_cast<std::size_t>(slot) < adapters_.size()) adapters_[static_cast<std::size_t>(slot)].reset();
}

// Neighbouring rows of one adapter become one entry, so that its weights are read once.
void AdapterTable::find_rows(const Batch& batch) {
  token_adapters_.clear();
  logit_adapters_.clear();
  if (batch.adapters == nullptr) return;
  const auto add = [](std::vector<SlotRows>& found, long slot, long begin, long end) {
    if (slot < 0) return;
    if (!found.empty() && found.back().slot == slot && found.back().end == begin) {
      found.back().end = end;
    } else {
      found.push_back({.slot = slot, .begin = begin, .end = end});
    }
  };
  long row = 0;
  for (long s = 0; s < batch.sequences; ++s) {
    const long slot = batch.adapters[s];
    if (slot < -1 || slot >= static_cast<long>(adapters_.size()) || (slot >= 0 && adapters_[slot] == nullptr)) {
      throw std::invalid_argument("there is no adapter in slot " + std::to_string(slot));
    }
    add(token_adapters_, slot, batch.row_starts[s], batch.row_starts[s + 1]);
    const long first = row;
    while (row < batch.logits && batch.logit_rows[row] < batch.row_starts[s + 1]) ++row;
    if (row > first) add(logit_adapters_, slot, first, row);
  }
}

void AdapterTable::apply(std::size_t target, Rows rows, const Matrix& w, const float* x, long ldx, float* y, long ldy) {
  changed_.clear();
  for (const SlotRows& own : rows == Rows::tokens ? token_adapters_ : logit_adapters_) {
    const LowRank* const change = adapters_[static_cast<std::size_t>(own.slot)]->changes[target].get();
    if (change != nullptr) changed_.push_back({.change = change, .begin = own.begin, .end = own.end});
  }
  add_low_rank(w, changed_, x, ldx, y, ldy, scratch_);
}

}  // namespace dragoman
