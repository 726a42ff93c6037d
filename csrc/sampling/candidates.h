// The tokens that a choice is still between, and the steps that leave some of them out.
#pragma once

#include <cstdint>
#include <vector>

namespace dragoman {

// The tokens that are still in play, ascending by id, and their weights: exp((logit − maximum) / temperature).
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
      if (!keep(i)) continue;
      ids[kept] = ids[i], logits[kept] = logits[i], weights[kept] = weights[i];
      ++kept;
    }
    count = kept;
  }

  double mass() const {
    double parts[4] = {};  // additions that do not wait for each other
    long i = 0;
    for (; i + 4 <= count; i += 4) {
      for (long j = 0; j < 4; ++j) parts[j] += weights[i + j];
    }
    for (; i < count; ++i) parts[0] += weights[i];
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
  }
};

// Memory that the steps need, kept from row to row.
struct CandidateScratch {
  std::vector<float> selection;
  static constexpr std::uint32_t kBins = 2048;
  std::vector<double> histogram = std::vector<double>(2 * kBins);
  std::vector<std::int32_t> in_bin;
};

// Top-k: drops what is below the k-th largest logit; ties with it stay.
void keep_top_k(Candidates& c, long k, CandidateScratch& scratch);

// Top-p: the smallest set, most likely first, whose weight reaches `target`; the token that crosses it stays, ties by
// id.
void keep_top_p(Candidates& c, double target, CandidateScratch& scratch);

// Min-p: drops what is less likely than min_p times the most likely token, whose weight is 1.
void keep_min_p(Candidates& c, float min_p);

// Typical-p (Meister et al., "Locally typical sampling", 2023): the tokens whose surprise is nearest to the entropy, as
// many as it takes to reach the share p of the weight. Those as near as the last one stay too.
//
// The surprise of a token less the entropy is the mean of the logarithms of the weights less that of its own weight.
void keep_typical(Candidates& c, float typical_p, float maximum, float inverse_temperature, CandidateScratch& scratch);

// XTC ("exclude top choices"): where two tokens or more have at least the threshold's share of the weight, all of these
// but the least likely go; of equally likely ones the last by id stays.
void exclude_top_choices(Candidates& c, float threshold);

// Inverse distribution function over the candidates in token-id order: the place of the one that is drawn.
long draw(const Candidates& c, float uniform);

}  // namespace dragoman
