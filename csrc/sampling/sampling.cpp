// The choice of a token of each row. Nothing here sorts the vocabulary.
#include "sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "sampling/candidates.h"
#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();  // above what is forbidden

// A row that is alone is looked at by all threads, in parts of so many tokens.
constexpr long kPart = 256 * kScanBlock;

// What a thread needs for one row, kept between rows.
struct Workspace {
  struct Part {
    float maximum;
    bool valid;  // neither NaN nor +infinity
  };
  std::vector<Part> parts;
  Candidates candidates;
  std::vector<float> block_maxima, block_sums;
  CandidateScratch scratch;
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
    std::vector<float>& selection = work_.scratch.selection;
    selection = work_.block_maxima;
    std::nth_element(selection.begin(), selection.begin() + (k - 1), selection.end(), std::greater<>());
    return selection[k - 1];
  }

  Candidates& collect(float floor) const {
    Candidates& c = work_.candidates;
    c.reserve(vocab_);
    c.count =
        kernels().sampling.collect(logits_, vocab_, work_.block_maxima.data(), floor, c.ids.data(), c.logits.data());
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

// How many tokens mirostat 1 keeps (Basu et al., "Mirostat", 2021, algorithm 1): the exponent s of Zipf's law is
// estimated from the 100 steepest steps of the distribution, and the size follows from it and the largest surprise.
long mirostat_size(const Row& row, float limit, float inverse_temperature, Workspace& work) {
  constexpr long kSteps = 100;
  const long looked_at = std::min(kSteps + 1, row.vocab());
  const Candidates& c = row.collect(row.reached_by(looked_at));
  std::vector<float>& top = work.scratch.selection;
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
    keep_top_k(*c, size, work.scratch);
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

  // Tokens that cannot survive are not even collected. Top-k: see reached_by. Min-p: by its definition. Top-p: all
  // tokens lighter than (1 − p) / vocab of the whole weigh less than 1 − p of it together, so the set is complete
  // without them. The logarithm is slackened; the steps themselves are exact.
  const auto logit_of = [&](double weight) {
    return static_cast<float>(row.maximum() + temperature * (std::log(weight) - 1e-3));
  };
  double mass = 0;
  Candidates* c = nullptr;
  if (by_k) {
    c = &row.collect(std::max(row.reached_by(top_k), kLowest));
    keep_top_k(*c, top_k, work.scratch);
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
  if (by_p) keep_top_p(*c, top_p * mass, work.scratch);
  if (by_min) keep_min_p(*c, min_p);
  if (by_typical) keep_typical(*c, s.typical_p[r], row.maximum(), inverse, work.scratch);
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

void log_softmax_at(const LogitRows& logits, const std::int32_t* rows, const std::int32_t* ids, long count,
                    float* out) {
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
