// The truncations: each drops some of the candidate tokens. Another one is a row of the table in
// truncations.cpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>

#include "sampling/candidates.h"
#include "sampling/row.h"

namespace dragoman {

// The state that a truncation works on: the candidates, and the row that they are from.
class Remaining {
 public:
  Remaining(const Row& row, float temperature, float inverse_temperature, Workspace& work)
      : row(row),
        temperature(temperature),
        inverse_temperature(inverse_temperature),
        candidates(work.candidates),
        scratch(work.scratch) {}

  const Row& row;
  const float temperature;
  const float inverse_temperature;
  Candidates& candidates;
  CandidateScratch& scratch;

  // Weight of all tokens that the truncations before kept; before the first, of the row, collected or not.
  double mass() {
    if (is_truncated_) return candidates.mass();
    if (mass_of_row_ < 0) mass_of_row_ = row.sum(inverse_temperature);
    return mass_of_row_;
  }

  // The logit of a weight, lowered by a margin, so that values below it are lighter in float32 too.
  float logit_of(double weight) const {
    return static_cast<float>(row.maximum() + temperature * (std::log(weight) - 1e-3));
  }

  // Of all tokens of the row.
  Moments moments() {
    if (moments_.mass < 0) moments_ = row.moments(inverse_temperature);
    return moments_;
  }

  // Collects the tokens that reach the floor, with their weights. Tokens that cannot survive are below it.
  void collect(float floor) {
    row.weigh(row.collect(floor), inverse_temperature);
    floor_ = floor;
  }
  float floor() const { return floor_; }

  bool is_truncated() const { return is_truncated_; }
  void set_truncated() { is_truncated_ = true; }

 private:
  bool is_truncated_ = false;
  double mass_of_row_ = -1;
  Moments moments_{.mass = -1, .mean = 0};
  float floor_ = kLowest;
};

struct Truncation {
  const char* name;  // of its parameter
  float maximum;     // of its values, which are at least 0
  bool (*is_on)(float value, long vocab);

  // Drops candidates; at least one stays. Their weights are exp((logit − maximum) / temperature).
  void (*keep)(Remaining& remaining, float value);

  // Optional: a logit below which it drops every token of the row. Called before candidates are collected.
  float (*floor)(Remaining& remaining, float value) = nullptr;
  bool reckons_with_mass = false;  // so the floor holds only where no other truncation comes before
};

constexpr std::size_t kMostTruncations = 32;

// In the order in which they run.
std::span<const Truncation> truncations();

}  // namespace dragoman
