#include "sampling/candidates.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

namespace dragoman {
namespace {

std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Where the weights, summed up from the largest key down, reach a target: the key there, and the weight above it.
struct Crossing {
  double above;
  const std::int32_t* in_bin;  // the candidates with this key, ascending by id
  long count;                  // 0: all together do not reach the target
};

// Keys have 31 bits, as those of a float that is not negative, which order like its value. So the crossing is found by
// radix: the weights are summed up by the leading 10 bits of their keys, then, of the bin where the crossing is, by the
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
  double above = 0;  // weight of all that is certainly above
  for (const auto [shift, mask] : kLevels) {
    const bool first = shift == kLevels[0].shift;
    const auto bin_of = [&, shift = shift, mask = mask](long i) { return key(i) >> shift & mask; };
    std::fill(scratch.histogram.begin(), scratch.histogram.end(), 0.0);
    double* const even = scratch.histogram.data();
    double* const odd = even + kBins;
    if (first) {
      // Neighbours add to histograms of their own: they are often of one bin, and would wait for each other.
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
      crossing = lowest;  // a rounding error between the sum of a bin and the sums of its parts
      above -= even[lowest];
    }
    // Written always, in the bin or not: a branch here would be mispredicted all the time.
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

}  // namespace

void keep_top_k(Candidates& c, long k, CandidateScratch& scratch) {
  if (c.count <= k) return;
  std::vector<float>& selection = scratch.selection;
  selection.assign(c.logits.begin(), c.logits.begin() + c.count);
  std::nth_element(selection.begin(), selection.begin() + (k - 1), selection.end(), std::greater<>());
  const float floor = selection[k - 1];
  c.filter([&](long i) { return c.logits[i] >= floor; });
}

void keep_top_p(Candidates& c, double target, CandidateScratch& scratch) {
  const Crossing crossing = find_crossing(c, [&](long i) { return bits_of(c.weights[i]); }, target, scratch);
  if (crossing.count == 0) return;
  const float weight = c.weights[crossing.in_bin[0]];
  const double needed = std::ceil((target - crossing.above) / weight);
  const long size = crossing.count;
  const long members = std::clamp(needed < static_cast<double>(size) ? static_cast<long>(needed) : size, 1L, size);
  const std::int32_t last = c.ids[crossing.in_bin[members - 1]];
  c.filter([&](long i) { return c.weights[i] > weight || (c.weights[i] == weight && c.ids[i] <= last); });
}

void keep_min_p(Candidates& c, float min_p) {
  c.filter([&](long i) { return c.weights[i] >= min_p; });
}

void keep_typical(Candidates& c, float typical_p, float maximum, float inverse_temperature, CandidateScratch& scratch) {
  const double mass = c.mass();
  double mean = 0;
  for (long i = 0; i < c.count; ++i) {
    if (c.weights[i] > 0) mean += c.weights[i] * static_cast<double>((c.logits[i] - maximum) * inverse_temperature);
  }
  mean /= mass;
  std::vector<float>& distance = scratch.selection;
  distance.resize(c.count);
  for (long i = 0; i < c.count; ++i) {
    distance[i] = static_cast<float>(std::abs((c.logits[i] - maximum) * inverse_temperature - mean));
  }
  const auto nearness = [&](long i) { return 0x7fffffffu - bits_of(distance[i]); };
  const Crossing crossing = find_crossing(c, nearness, typical_p * mass, scratch);
  if (crossing.count == 0) return;
  const float farthest = distance[crossing.in_bin[0]];
  c.filter([&](long i) { return distance[i] <= farthest; });
}

void exclude_top_choices(Candidates& c, float threshold) {
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
