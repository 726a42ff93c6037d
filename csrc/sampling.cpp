// The choice of a token, step by step over the candidates that are left. Nothing here sorts the vocabulary.
#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();  // above what is forbidden

// A row that is alone is looked at by all threads, in parts of so many tokens.
constexpr long kPart = 256 * kScanBlock;

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

// What a thread needs for one row, kept between rows.
struct Workspace {
  struct Part {
    float maximum;
    bool valid;  // neither NaN nor +infinity
  };
  std::vector<Part> parts;
  Candidates candidates;
  std::vector<float> block_maxima, block_sums, selection;
  static constexpr std::uint32_t kBins = 2048;
  std::vector<double> histogram = std::vector<double>(2 * kBins);
  std::vector<std::int32_t> in_bin;
};

Workspace& workspace() {
  thread_local Workspace instance;
  return instance;
}

// One row's logits with what every step asks of them first.
class Row {
 public:
  Row(const float* logits, long vocab, Workspace& work) : logits_(logits), vocab_(vocab), work_(work) {
    work.block_maxima.resize(scan_blocks(vocab));
    work.block_sums.resize(scan_blocks(vocab));
    std::vector<Workspace::Part>& parts = work.parts;
    parts.resize((vocab + kPart - 1) / kPart);
    pool().parallel_for(vocab, kPart, [&](long begin, long end) {
      Workspace::Part& part = parts[begin / kPart];
      part.valid = kernels().sampling.scan(logits + begin, end - begin, work.block_maxima.data() + begin / kScanBlock,
                                           &part.maximum);
    });
    maximum_ = -kInfinity;
    valid_ = true;
    for (const Workspace::Part& part : parts) {
      maximum_ = std::max(maximum_, part.maximum);
      valid_ = valid_ && part.valid;
    }
    valid_ = valid_ && maximum_ > -kInfinity;
  }

  bool valid() const { return valid_; }
  float maximum() const { return maximum_; }
  long vocab() const { return vocab_; }

  std::int32_t most_likely() const {
    const auto block = std::find(work_.block_maxima.begin(), work_.block_maxima.end(), maximum_);
    const float* const begin = logits_ + (block - work_.block_maxima.begin()) * kScanBlock;
    return static_cast<std::int32_t>(std::find(begin, logits_ + vocab_, maximum_) - logits_);
  }

  // Also leaves the sums of the blocks in the workspace.
  double sum(float inverse_temperature) const {
    pool().parallel_for(vocab_, kPart, [&](long begin, long end) {
      kernels().sampling.sum(logits_ + begin, end - begin, maximum_, inverse_temperature,
                             work_.block_sums.data() + begin / kScanBlock);
    });
    double total = 0;  // in the order of the blocks, however many threads there are
    for (const float part : work_.block_sums) total += part;
    return total;
  }

  float log_sum() const { return static_cast<float>(std::log(sum(1.0f))); }

  // A value that at least k tokens reach: that of the k-th largest block maximum, each block having one such token.
  float reached_by(long k) const {
    if (k > static_cast<long>(work_.block_maxima.size())) return -kInfinity;
    work_.selection = work_.block_maxima;
    std::nth_element(work_.selection.begin(), work_.selection.begin() + (k - 1), work_.selection.end(), std::greater<>());
    return work_.selection[k - 1];
  }

  Candidates& collect(float floor) const {
    Candidates& c = work_.candidates;
    c.reserve(vocab_);
    c.count = kernels().sampling.collect(logits_, vocab_, work_.block_maxima.data(), floor, c.ids.data(), c.logits.data());
    return c;
  }

  void weigh(Candidates& c, float inverse_temperature) const {
    kernels().sampling.weigh(c.logits.data(), c.count, maximum_, inverse_temperature, c.weights.data());
  }

  // Inverse distribution function over the whole row in token-id order.
  std::int32_t draw(float inverse_temperature, float uniform) const {
    const double target = uniform * sum(inverse_temperature);
    const std::vector<float>& sums = work_.block_sums;
    double below = 0;
    long block = 0, last = 0;
    for (; block < static_cast<long>(sums.size()); ++block) {
      if (sums[block] <= 0) continue;
      last = block;
      if (below + sums[block] > target) break;
      below += sums[block];
    }
    if (block == static_cast<long>(sums.size())) block = last;  // u is so near to 1 that rounding led past the end
    float weights[kScanBlock];
    const long first = block * kScanBlock, count = std::min(kScanBlock, vocab_ - first);
    kernels().sampling.weigh(logits_ + first, count, maximum_, inverse_temperature, weights);
    long drawn = 0;
    for (long i = 0; i < count; ++i) {
      if (weights[i] <= 0) continue;
      drawn = i;
      below += weights[i];
      if (below > target) break;
    }
    return static_cast<std::int32_t>(first + drawn);
  }

 private:
  const float* logits_;
  const long vocab_;
  Workspace& work_;
  float maximum_;
  bool valid_;
};

// Top-k: drops what is below the k-th largest logit; ties with it stay.
void keep_top_k(Candidates& c, long k, std::vector<float>& selection) {
  if (c.count <= k) return;
  selection.assign(c.logits.begin(), c.logits.begin() + c.count);
  std::nth_element(selection.begin(), selection.begin() + (k - 1), selection.end(), std::greater<>());
  const float floor = selection[k - 1];
  c.filter([&](long i) { return c.logits[i] >= floor; });
}

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
Crossing find_crossing(const Candidates& c, Key key, double target, Workspace& work) {
  constexpr struct { int shift; std::uint32_t mask; } kLevels[] = {{21, 1023}, {10, 2047}, {0, 1023}};
  constexpr std::uint32_t kBins = Workspace::kBins, kNone = kBins;
  if (static_cast<long>(work.in_bin.size()) <= c.count) work.in_bin.resize(c.count + 1);
  std::int32_t* const in_bin = work.in_bin.data();  // the candidates in the bin of the crossing so far
  long size = c.count;
  double above = 0;  // weight of all that is certainly above
  for (const auto [shift, mask] : kLevels) {
    const bool first = shift == kLevels[0].shift;
    const auto bin_of = [&, shift = shift, mask = mask](long i) { return key(i) >> shift & mask; };
    std::fill(work.histogram.begin(), work.histogram.end(), 0.0);
    double* const even = work.histogram.data();
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

// Top-p: the smallest set, most likely first, whose weight reaches `target`; the token that crosses it stays, ties by id.
void keep_top_p(Candidates& c, double target, Workspace& work) {
  const Crossing crossing = find_crossing(c, [&](long i) { return bits_of(c.weights[i]); }, target, work);
  if (crossing.count == 0) return;
  const float weight = c.weights[crossing.in_bin[0]];
  const double needed = std::ceil((target - crossing.above) / weight);
  const long size = crossing.count;
  const long members = std::clamp(needed < static_cast<double>(size) ? static_cast<long>(needed) : size, 1L, size);
  const std::int32_t last = c.ids[crossing.in_bin[members - 1]];
  c.filter([&](long i) { return c.weights[i] > weight || (c.weights[i] == weight && c.ids[i] <= last); });
}

// Min-p: drops what is less likely than min_p times the most likely token, whose weight is 1.
void keep_min_p(Candidates& c, float min_p) {
  c.filter([&](long i) { return c.weights[i] >= min_p; });
}

// Typical-p (Meister et al., "Locally typical sampling", 2023): the tokens whose surprise is nearest to the entropy, as
// many as it takes to reach the share p of the weight. Those as near as the last one stay too.
//
// The surprise of a token less the entropy is the mean of the logarithms of the weights less that of its own weight.
void keep_typical(Candidates& c, float typical_p, float maximum, float inverse_temperature, Workspace& work) {
  const double mass = c.mass();
  double mean = 0;
  for (long i = 0; i < c.count; ++i) {
    if (c.weights[i] > 0) mean += c.weights[i] * static_cast<double>((c.logits[i] - maximum) * inverse_temperature);
  }
  mean /= mass;
  std::vector<float>& distance = work.selection;
  distance.resize(c.count);
  for (long i = 0; i < c.count; ++i) {
    distance[i] = static_cast<float>(std::abs((c.logits[i] - maximum) * inverse_temperature - mean));
  }
  const auto nearness = [&](long i) { return 0x7fffffffu - bits_of(distance[i]); };
  const Crossing crossing = find_crossing(c, nearness, typical_p * mass, work);
  if (crossing.count == 0) return;
  const float farthest = distance[crossing.in_bin[0]];
  c.filter([&](long i) { return distance[i] <= farthest; });
}

// XTC ("exclude top choices"): where two tokens or more have at least the threshold's share of the weight, all of these
// but the least likely go; of equally likely ones the last by id stays.
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

// How many tokens mirostat 1 keeps (Basu et al., "Mirostat", 2021, algorithm 1): the exponent s of Zipf's law is
// estimated from the 100 steepest steps of the distribution, and the size follows from it and the largest surprise.
long mirostat_size(const Row& row, float limit, float inverse_temperature, Workspace& work) {
  constexpr long kSteps = 100;
  const long looked_at = std::min(kSteps + 1, row.vocab());
  const Candidates& c = row.collect(row.reached_by(looked_at));
  std::vector<float>& top = work.selection;
  top.assign(c.logits.begin(), c.logits.begin() + c.count);
  const long found = std::min(looked_at, c.count);
  std::partial_sort(top.begin(), top.begin() + found, top.end(), std::greater<>());
  double numerator = 0, denominator = 0;
  for (long i = 0; i + 1 < found && top[i + 1] > -kInfinity; ++i) {
    const double step = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    numerator += (static_cast<double>(top[i]) - top[i + 1]) * inverse_temperature * step;
    denominator += step * step;
  }
  if (denominator == 0) return 1;
  const double n = static_cast<double>(row.vocab()), s = numerator / denominator, epsilon = s - 1;
  const double factor = std::abs(epsilon) < 1e-9 ? 1 / std::log(n) : epsilon / (1 - std::pow(n, -epsilon));
  const double size = std::round(std::pow(factor * std::exp2(limit), 1 / s)) + 1;
  return size < n ? std::max(1L, static_cast<long>(size)) : row.vocab();
}

// Inverse distribution function over the candidates in token-id order: the place of the one that is drawn.
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

// What was drawn, and from which candidates; null: from the whole row.
struct Choice {
  std::int32_t token_id;
  const Candidates* candidates = nullptr;
};

Choice choose_by_mirostat(const Row& row, const Sampling& s, long r, float inverse, Workspace& work) {
  const float limit = s.mirostat_limit[r];
  const double mass = row.sum(inverse);
  Candidates* c = nullptr;
  if (s.mirostat[r] == 1) {
    const long size = mirostat_size(row, limit, inverse, work);
    c = &row.collect(std::max(row.reached_by(size), kLowest));
    keep_top_k(*c, size, work.selection);
    row.weigh(*c, inverse);
  } else {
    // Version 2: the tokens with at most the largest surprise, and in any case the most likely one, whose weight is 1.
    const double floor = std::min(1.0, mass * std::exp2(-static_cast<double>(limit)));
    c = &row.collect(static_cast<float>(row.maximum() + s.temperature[r] * (std::log(floor) - 1e-3)));
    row.weigh(*c, inverse);
    c->filter([&](long i) { return c->weights[i] >= floor; });
  }
  const long drawn = draw(*c, s.uniform[r]);
  s.mirostat_surprise[r] = static_cast<float>(std::log2(mass / c->weights[drawn]));
  return {c->ids[drawn], c};
}

Choice choose(const Row& row, const Sampling& s, long r, Workspace& work) {
  const float temperature = s.temperature[r], top_p = s.top_p[r], min_p = s.min_p[r];
  const long top_k = s.top_k[r];
  if (temperature == 0) return {row.most_likely()};
  const float inverse = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  if (s.mirostat != nullptr && s.mirostat[r] != 0) return choose_by_mirostat(row, s, r, inverse, work);
  const bool by_k = top_k > 0 && top_k < row.vocab(), by_p = top_p < 1, by_min = min_p > 0;
  const bool by_typical = s.typical_p != nullptr && s.typical_p[r] < 1;
  const bool by_xtc = s.xtc_threshold != nullptr && s.xtc_threshold[r] < 1;
  if (!by_k && !by_p && !by_min && !by_typical && !by_xtc) return {row.draw(inverse, s.uniform[r])};

  // Tokens that cannot survive are not even collected. Top-k: see reached_by. Min-p: by its definition. Top-p: all tokens
  // lighter than (1 − p) / vocab of the whole weigh less than 1 − p of it together, so the set is complete without them.
  // The logarithm is slackened; the steps themselves are exact.
  const auto logit_of = [&](double weight) {
    return static_cast<float>(row.maximum() + temperature * (std::log(weight) - 1e-3));
  };
  double mass = 0;
  Candidates* c = nullptr;
  if (by_k) {
    c = &row.collect(std::max(row.reached_by(top_k), kLowest));
    keep_top_k(*c, top_k, work.selection);
    row.weigh(*c, inverse);
    mass = c->mass();
  } else {
    float floor = by_min ? logit_of(min_p) : -kInfinity;
    if (by_p) {
      mass = row.sum(inverse);
      floor = std::max(floor, logit_of((1.0 - top_p) * mass / static_cast<double>(row.vocab())));
    }
    c = &row.collect(std::max(floor, kLowest));
    row.weigh(*c, inverse);
  }
  if (by_p) keep_top_p(*c, top_p * mass, work);
  if (by_min) keep_min_p(*c, min_p);
  if (by_typical) keep_typical(*c, s.typical_p[r], row.maximum(), inverse, work);
  if (by_xtc) exclude_top_choices(*c, s.xtc_threshold[r]);
  return {c->ids[draw(*c, s.uniform[r])], c};
}

// Makes of a row what its token was drawn from.
void overwrite(float* row, long vocab, float temperature, const Candidates* candidates) {
  if (temperature == 0) return;
  const float inverse = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  if (candidates == nullptr) {
    for (long i = 0; i < vocab; ++i) row[i] *= inverse;
    return;
  }
  std::fill(row, row + vocab, -kInfinity);
  for (long i = 0; i < candidates->count; ++i) row[candidates->ids[i]] = candidates->logits[i] * inverse;
}

}  // namespace

void sample(const WritableRows& logits, const Sampling& sampling, std::int32_t* token_ids, float* logprobs) {
  pool().parallel_for(logits.rows, 1, [&](long begin, long end) {
    for (long r = begin; r < end; ++r) {
      Workspace& work = workspace();
      const Row row(logits.row(r), logits.vocab, work);
      if (sampling.mirostat_surprise != nullptr) sampling.mirostat_surprise[r] = 0;
      const Choice choice = row.valid() ? choose(row, sampling, r, work) : Choice{-1};
      token_ids[r] = choice.token_id;
      if (logprobs != nullptr) {
        logprobs[r] = row.valid() ? logits.row(r)[token_ids[r]] - row.maximum() - row.log_sum() : kNaN;
      }
      if (row.valid() && sampling.overwrite != nullptr && sampling.overwrite[r] != 0) {
        overwrite(logits.row(r), logits.vocab, sampling.temperature[r], choice.candidates);
      }
    }
  });
}

void log_softmax_at(const LogitRows& logits, const std::int32_t* rows, const std::int32_t* ids, long count, float* out) {
  std::vector<long> starts;  // where a new row begins: its sum is needed once
  for (long i = 0; i < count; ++i) {
    if (i == 0 || rows[i] != rows[i - 1]) starts.push_back(i);
  }
  starts.push_back(count);
  pool().parallel_for(static_cast<long>(starts.size()) - 1, 1, [&](long begin, long end) {
    for (long s = begin; s < end; ++s) {
      const float* const x = logits.row(rows[starts[s]]);
      const Row row(x, logits.vocab, workspace());
      const float log_sum = row.valid() ? row.log_sum() : kNaN;
      for (long i = starts[s]; i < starts[s + 1]; ++i) out[i] = x[ids[i]] - row.maximum() - log_sum;
    }
  });
}

void top_logprobs(const LogitRows& logits, const std::int32_t* rows, long count, long k, std::int32_t* ids,
                  float* logprobs) {
  pool().parallel_for(count, 1, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      const Row row(logits.row(rows[i]), logits.vocab, workspace());
      std::fill(ids + i * k, ids + (i + 1) * k, -1);
      std::fill(logprobs + i * k, logprobs + (i + 1) * k, kNaN);
      if (!row.valid()) continue;
      const Candidates& c = row.collect(row.reached_by(k));
      std::vector<long> order(c.count);
      for (long j = 0; j < c.count; ++j) order[j] = j;
      const long found = std::min(k, c.count);
      std::partial_sort(order.begin(), order.begin() + found, order.end(), [&](long a, long b) {
        return c.logits[a] > c.logits[b] || (c.logits[a] == c.logits[b] && a < b);
      });
      const float log_sum = row.log_sum();
      for (long j = 0; j < found; ++j) {
        ids[i * k + j] = c.ids[order[j]];
        logprobs[i * k + j] = c.logits[order[j]] - row.maximum() - log_sum;
      }
    }
  });
}

}  // namespace dragoman
