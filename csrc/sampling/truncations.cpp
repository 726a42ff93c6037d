#include "sampling/truncations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>

namespace dragoman {
namespace {

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// The point where the weights, summed from the largest key down, reach a target: its key, and the weight above it.
struct Crossing {
  double above;
  const std::int32_t* in_bin;  // the candidates with this key, ascending by id
  long count;                  // 0: all together do not reach the target
};

// Keys have 31 bits: those of non-negative floats, which order like their values. So the crossing is found by
// radix: the weights are summed by the leading 10 bits of their keys, then, in the bin of the crossing, by the
// next 11 and the last 10.
template <class Key>
Crossing find_crossing(const Candidates& c, Key key, double target, CandidateScratch& scratch) {
  constexpr struct {
    int shift;
    std::uint32_t mask;
  } kLevels[] = {{21, 1023}, {10, 2047}, {0, 1023}};
  constexpr std::uint32_t kBins = CandidateScratch::kBins, kNone = kBins;
  if (static_cast<long>(scratch.in_bin.size()) <= c.count) scratch.in_bin.resize(c.count + 1);
  std::int32_t* const in_bin = scratch.in_bin.data();  // the candidates in the bin of the crossing so far
  long size = c.count;
  double above = 0;  // weight of all candidates that are certainly above
  for (const auto [shift, mask] : kLevels) {
    const bool first = shift == kLevels[0].shift;
    const auto bin_of = [&, shift = shift, mask = mask](long i) { return key(i) >> shift & mask; };
    std::fill(scratch.histogram.begin(), scratch.histogram.end(), 0.0);
    double* const even = scratch.histogram.data();
    double* const odd = even + kBins;
    if (first) {
      // Neighbours add to separate histograms: they are often of one bin, and would wait for each other.
      long i = 0;
      for (; i + 1 < c.count; i += 2) {
        even[bin_of(i)] += c.weights[i];
        odd[bin_of(i + 1)] += c.weights[i + 1];
      }
      if (i < c.count) even[bin_of(i)] += c.weights[i];
      for (std::uint32_t bin = 0; bin < kBins; ++bin) even[bin] += odd[bin];
    } else {
      for (long j = 0; j < size; ++j) even[bin_of(in_bin[j])] += c.weights[in_bin[j]];
    }
    std::uint32_t crossing = kNone, lowest = kNone;
    for (std::uint32_t bin = kBins; bin-- > 0 && crossing == kNone;) {
      if (even[bin] <= 0) continue;
      lowest = bin;
      if (above + even[bin] >= target) {
        crossing = bin;
      } else {
        above += even[bin];
      }
    }
    if (crossing == kNone) {
      if (first) return {above, in_bin, 0};
      crossing = lowest;  // a rounding difference between the sum of a bin and the sums of its parts
      above -= even[lowest];
    }
    // Written always, in the bin or not: a branch here would be mispredicted often.
    long found = 0;
    for (long j = 0; j < size; ++j) {
      const std::int32_t i = first ? static_cast<std::int32_t>(j) : in_bin[j];
      in_bin[found] = i;
      found += bin_of(i) == crossing;
    }
    size = found;
  }
  return {above, in_bin, size};
}

// Top-k: drops candidates below the k-th largest logit; ties with it stay. A value that k tokens reach is a floor.
bool top_k_is_on(float k, long vocab) { return k > 0 && k < static_cast<float>(vocab); }
float top_k_floor(Remaining& r, float k) { return r.row.reached_by(static_cast<long>(k)); }
void keep_top_k(Remaining& r, float k) { keep_top_k(r.candidates, static_cast<long>(k), r.scratch); }

// Top-p: the smallest set, most likely first, whose mass reaches the share p; the token that crosses it stays, ties by
// id. All tokens lighter than (1 − p) / vocab of the whole weigh less than 1 − p of it together, so the set is complete
// without them.
bool is_below_one(float value, long) { return value < 1; }
float top_p_floor(Remaining& r, float top_p) {
  return r.logit_of((1.0 - top_p) * r.mass() / static_cast<double>(r.row.vocab()));
}
void keep_top_p(Remaining& r, float top_p) {
  Candidates& c = r.candidates;
  const double target = top_p * r.mass();
  const Crossing crossing = find_crossing(c, [&](long i) { return bits_of(c.weights[i]); }, target, r.scratch);
  if (crossing.count == 0) return;
  const float weight = c.weights[crossing.in_bin[0]];
  const double needed = std::ceil((target - crossing.above) / weight);
  const long size = crossing.count;
  const long members = std::clamp(needed < static_cast<double>(size) ? static_cast<long>(needed) : size, 1L, size);
  const std::int32_t last = c.ids[crossing.in_bin[members - 1]];
  c.keep_between(c.weights.data(), weight, kInfinity);
  if (members == size) return;
  c.filter([&](long i) { return c.weights[i] > weight || c.ids[i] <= last; });
}

// Min-p: drops tokens less likely than min_p times the most likely one, whose weight is 1.
bool is_above_zero(float value, long) { return value > 0; }
float min_p_floor(Remaining& r, float min_p) { return r.logit_of(min_p); }
void keep_min_p(Remaining& r, float min_p) { r.candidates.keep_between(r.candidates.weights.data(), min_p, kInfinity); }

// Typical-p (Meister et al., "Locally typical sampling", 2023): the tokens whose surprise is nearest to the entropy, as
// many as it takes to reach the share p of the mass. Those as near as the last one stay too.
//
// The surprise of a token minus the entropy is the mean of the logarithms of the weights minus that of its weight.
void find_distances(const Remaining& r, double mean) {
  const Candidates& c = r.candidates;
  const float maximum = r.row.maximum(), inverse_temperature = r.inverse_temperature;
  std::vector<float>& distance = r.scratch.selection;
  distance.resize(c.count);
  for (long i = 0; i < c.count; ++i) {
    distance[i] = static_cast<float>(std::abs((c.logits[i] - maximum) * inverse_temperature - mean));
  }
}

// Tokens lighter than (1 − p) / vocab of the whole weigh less than 1 − p of it together, and the others are no farther
// from the entropy than the lightest or the heaviest of them.
float typical_floor(Remaining& r, float typical_p) {
  const auto [mass, mean] = r.moments();
  const double lightest = (1.0 - typical_p) * mass / static_cast<double>(r.row.vocab());
  return r.logit_of(std::min(lightest, std::exp(2 * mean)));
}

// What is kept is defined by sums over all tokens in the order of their ids. Most rows are decided as well by sums in
// any other order, whose roundings are bounded, and by the tokens near the entropy. Returns whether this row is; if
// not, nothing is changed.
bool keep_clearly_typical(Remaining& r, float typical_p) {
  Candidates& c = r.candidates;
  const auto [mass, mean] = r.moments();
  const double additions = 4 * (static_cast<double>(r.row.vocab()) + 16) * 0x1p-53;
  const double mass_error = (additions + 0x1p-23) * mass, mean_error = (additions + 0x1p-22) * -mean;
  const double target = typical_p * mass;
  find_distances(r, mean);
  const float* const distance = r.scratch.selection.data();

  // The crossing is in one of many narrow bins, whose few tokens are sorted.
  constexpr int kBins = CandidateScratch::kBins;
  constexpr long kMostInBin = 4096;
  const double reach = mean - static_cast<double>((r.floor() - r.row.maximum()) * r.inverse_temperature);
  const float bins_per_unit = static_cast<float>(kBins / std::min(reach, 100.0));
  const auto bin_of = [&](float d) { return static_cast<std::int32_t>(std::min(d * bins_per_unit, kBins - 1.0f)); };
  if (static_cast<long>(r.scratch.in_bin.size()) <= c.count) r.scratch.in_bin.resize(c.count + 1);
  std::int32_t* const in_bin = r.scratch.in_bin.data();  // at first the bin of each candidate
  for (long i = 0; i < c.count; ++i) in_bin[i] = bin_of(distance[i]);
  std::fill(r.scratch.histogram.begin(), r.scratch.histogram.end(), 0.0);
  double* const even = r.scratch.histogram.data();
  double* const odd = even + kBins;
  const float* const weights = c.weights.data();
  for (long i = 0; i + 1 < c.count; i += 2) {
    even[in_bin[i]] += weights[i];
    odd[in_bin[i + 1]] += weights[i + 1];
  }
  if (c.count % 2 != 0) even[in_bin[c.count - 1]] += weights[c.count - 1];
  double nearer = 0;
  std::int32_t bin = 0;
  for (; bin < kBins && nearer + (even[bin] + odd[bin]) < target; ++bin) nearer += even[bin] + odd[bin];
  if (bin == kBins) return false;
  long size = 0;
  constexpr long kLookedAt = 16;  // of which seldom one is in the bin
  for (long first = 0; first < c.count; first += kLookedAt) {
    const long end = std::min(first + kLookedAt, c.count);
    std::int32_t found = 0;
    if (end - first == kLookedAt) {
      for (long i = first; i < first + kLookedAt; ++i) found |= in_bin[i] == bin ? -1 : 0;
      if (found == 0) continue;
    }
    for (long i = first; i < end; ++i) {
      const bool is_in_bin = in_bin[i] == bin;
      in_bin[size] = static_cast<std::int32_t>(i);
      size += is_in_bin;
    }
  }
  if (size > kMostInBin) return false;
  std::sort(in_bin, in_bin + size, [&](std::int32_t a, std::int32_t b) { return distance[a] < distance[b]; });

  // Those of equal distance are kept together.
  for (long first = 0, end; first < size; first = end) {
    const float farthest = distance[in_bin[first]];
    double members = 0;
    for (end = first; end < size && distance[in_bin[end]] == farthest; ++end) members += c.weights[in_bin[end]];
    if (nearer + members < target) {
      nearer += members;
      continue;
    }
    if (!(nearer < target - mass_error && nearer + members >= target + mass_error)) return false;
    for (long j = first; j < end; ++j) {
      if (c.logits[in_bin[j]] != c.logits[in_bin[first]]) return false;
    }
    // All others are so much nearer or farther that they are so with another mean, and however distances are rounded.
    const double margin = 2 * mean_error + 0x1p-21 * farthest;
    const auto least = static_cast<float>(farthest - margin), most = static_cast<float>(farthest + margin);
    if (least < 0 ? bin > 0 : bin_of(least) != bin) return false;
    if (bin_of(most) != bin || !(most < reach)) return false;
    if (first > 0 && distance[in_bin[first - 1]] >= least) return false;
    if (end < size && distance[in_bin[end]] <= most) return false;
    c.keep_between(distance, 0, farthest);
    return true;
  }
  return false;
}

void keep_typical(Remaining& r, float typical_p) {
  if (!r.is_truncated()) {
    if (keep_clearly_typical(r, typical_p)) return;
    r.collect(kLowest);
  }
  Candidates& c = r.candidates;
  const double mass = c.mass();
  double mean = 0;
  for (long i = 0; i < c.count; ++i) {
    if (c.weights[i] > 0) {
      mean += c.weights[i] * static_cast<double>((c.logits[i] - r.row.maximum()) * r.inverse_temperature);
    }
  }
  find_distances(r, mean / mass);
  const std::vector<float>& distance = r.scratch.selection;
  const auto nearness = [&](long i) { return 0x7fffffffu - bits_of(distance[i]); };
  const Crossing crossing = find_crossing(c, nearness, typical_p * mass, r.scratch);
  if (crossing.count == 0) return;
  const float farthest = distance[crossing.in_bin[0]];
  c.keep_between(distance.data(), 0, farthest);
}

// XTC ("exclude top choices"): where two tokens or more have at least the threshold's share of the mass, all of these
// but the least likely are dropped; of equally likely ones the last by id stays.
void exclude_top_choices(Remaining& r, float threshold) {
  Candidates& c = r.candidates;
  const double floor = threshold * c.mass();
  long count = 0, least = -1;
  for (long i = 0; i < c.count; ++i) {
    if (c.weights[i] < floor) continue;
    ++count;
    if (least < 0 || c.weights[i] <= c.weights[least]) least = i;
  }
  if (count < 2) return;
  const std::int32_t stays = c.ids[least];
  c.filter([&](long i) { return c.weights[i] < floor || c.ids[i] == stays; });
}

// The order in which they run. Values are at least 0.
constexpr Truncation kTruncations[] = {
    {.name = "top_k", .maximum = kInfinity, .is_on = top_k_is_on, .keep = keep_top_k, .floor = top_k_floor},
    {.name = "top_p",
     .maximum = 1,
     .is_on = is_below_one,
     .keep = keep_top_p,
     .floor = top_p_floor,
     .reckons_with_mass = true},
    {.name = "min_p", .maximum = 1, .is_on = is_above_zero, .keep = keep_min_p, .floor = min_p_floor},
    {.name = "typical_p",
     .maximum = 1,
     .is_on = is_below_one,
     .keep = keep_typical,
     .floor = typical_floor,
     .reckons_with_mass = true},
    {.name = "xtc_threshold", .maximum = 1, .is_on = is_below_one, .keep = exclude_top_choices},
};
static_assert(std::size(kTruncations) <= kMostTruncations);

}  // namespace

std::span<const Truncation> truncations() { return kTruncations; }

void keep_top_k(Candidates& c, long k, CandidateScratch& scratch) {
  if (c.count <= k) return;
  std::vector<float>& selection = scratch.selection;
  selection.assign(c.logits.begin(), c.logits.begin() + c.count);
  std::nth_element(selection.begin(), selection.begin() + (k - 1), selection.end(), std::greater<>());
  const float floor = selection[k - 1];
  c.keep_between(c.logits.data(), floor, kInfinity);
}

long draw(const Candidates& c, float uniform) {
  const double target = uniform * c.mass();
  double below = 0;
  long drawn = 0;
  for (long i = 0; i < c.count; ++i) {
    if (c.weights[i] <= 0) continue;
    drawn = i;
    below += c.weights[i];
    if (below > target) break;
  }
  return drawn;
}

}  // namespace dragoman
