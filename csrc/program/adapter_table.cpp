// Adapters of a program: which products they can change, and which rows of a batch belong to which.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "program/program.h"

namespace dragoman {

int Program::adapt(int out, int x, const Matrix& w) {
  const Buffer& from = read(x);
  const Buffer& to = read(out);
  if (from.width != w.k || to.width != w.n) throw std::invalid_argument("adapt: the buffers are not the product's");
  if (from.rows != to.rows) throw std::invalid_argument("adapt: the buffers have rows of different kinds");
  const std::size_t site = sites_.size();
  sites_.push_back({w.n, w.k});
  const bool of_tokens = from.rows == Rows::tokens;
  push(kAdapt, [=, this, &from, &to, &w](const Part& part, Scratch&) {
    if (part.batch->adapters == nullptr) return;
    changed_.clear();
    for (const AdapterRows& rows : of_tokens ? token_adapters_ : logit_adapters_) {
      const LowRank* const change = adapters_[static_cast<std::size_t>(rows.slot)]->changes[site].get();
      if (change != nullptr) changed_.push_back({change, rows.begin, rows.end});
    }
    add_low_rank(w, changed_, from.data(), from.stride, const_cast<float*>(to.data()), to.stride, lora_scratch_);
  });
  return static_cast<int>(site);
}

void Program::set_adapter(long slot, const std::vector<std::shared_ptr<LowRank>>& changes) {
  if (slot < 0 || slot >= kMostAdapters) {
    throw std::invalid_argument("there are slots for " + std::to_string(kMostAdapters) + " adapters");
  }
  if (changes.size() != sites_.size()) {
    throw std::invalid_argument("an adapter needs an entry for each product that it can change");
  }
  std::size_t bytes = 0;
  for (std::size_t site = 0; site < sites_.size(); ++site) {
    const LowRank* const change = changes[site].get();
    if (change == nullptr) continue;
    bool fits = change->k() == sites_[site].k;
    for (const LowRankPart& part : change->parts()) fits = fits && part.offset + part.n <= sites_[site].n;
    if (!fits) throw std::invalid_argument("the change of product " + std::to_string(site) + " does not fit it");
    bytes += change->bytes();
  }
  auto adapter = std::make_unique<Adapter>();
  adapter->memory = AnonymousMemory(std::max<std::size_t>(bytes, 1));
  std::uint8_t* at = adapter->memory.data();
  for (const std::shared_ptr<LowRank>& change : changes) {
    adapter->changes.push_back(change == nullptr ? nullptr : std::make_unique<const LowRank>(*change, at));
    if (change != nullptr) at += change->bytes();
  }
  const std::lock_guard lock(running_);
  if (static_cast<std::size_t>(slot) >= adapters_.size()) adapters_.resize(static_cast<std::size_t>(slot) + 1);
  adapters_[static_cast<std::size_t>(slot)] = std::move(adapter);
}

void Program::remove_adapter(long slot) {
  const std::lock_guard lock(running_);
  if (slot >= 0 && static_cast<std::size_t>(slot) < adapters_.size()) adapters_[static_cast<std::size_t>(slot)].reset();
}

// Neighbouring rows of one adapter become one entry, so that its weights are read once.
void Program::find_adapter_rows(const Batch& batch) {
  token_adapters_.clear();
  logit_adapters_.clear();
  if (batch.adapters == nullptr) return;
  const auto add = [](std::vector<AdapterRows>& found, long slot, long begin, long end) {
    if (slot < 0) return;
    if (!found.empty() && found.back().slot == slot && found.back().end == begin) {
      found.back().end = end;
    } else {
      found.push_back({slot, begin, end});
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

}  // namespace dragoman
