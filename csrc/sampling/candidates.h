// The remaining candidates of a token choice.
#pragma once

#include <cstdint>
#include <vector>

#include "simd/kernels.h"

namespace dragoman {

// The candidate tokens, ascending by id, and their weights: exp((logit − maximum) / temperature).
struct Candidates {
  std::vector<std::int32_t> ids;
  std::vector<float> logits;
  std::vector<float> weights;
  long count = 0;

  void reserve(long vocab) {
    if (static_cast<long>(ids.size()) >= vocab) return;
    ids.resize(vocab), logits.resize(vocab), weights.resize(vocab);
  }

  // Keeps the candidates i for which keep(i) holds, in their order.
  template <class Keep>
  void filter(Keep keep) {
    long kept = 0;
    for (long i = 0; i < count; ++i) {
      const bool stays = keep(i);  // of i itself, whose place may be written below
      ids[kept] = ids[i], logits[kept] = logits[i], weights[kept] = weights[i];  // a branch would be mispredicted often
      kept += stays;
    }
    count = kept;
  }

  // Keeps the candidates i with low <= x[i] <= high, in their order.
  void keep_between(const float* x, float low, float high) {
    count = kernels().sampling.keep_between(x, low, high, count, ids.data(), logits.data(), weights.data());
  }

  double mass() const {
    double parts[4] = {};  // independent additions
    long i = 0;
    for (; i + 4 <= count; i += 4) {
      for (long j = 0; j < 4; ++j) parts[j] += weights[i + j];
    }
    for (; i < count; ++i) parts[0] += weights[i];
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }
};

// Scratch memory of the steps, kept from row to row.
struct CandidateScratch {
  std::vector<float> selection;
  static constexpr std::uint32_t kBins = 2048;
  std::vector<double> histogram = std::vector<double>(2 * kBins);
  std::vector<std::int32_t> in_bin;
};

// Drops candidates below the k-th largest logit; ties with it stay.
void keep_top_k(Candidates& c, long k, CandidateScratch& scratch);

// Inverse distribution function over the candidates in token-id order: the place of the drawn one.
long draw(const Candidates& c, float uniform);

}  // namespace dragoman
