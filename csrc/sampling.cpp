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
    double total = 0;
    for (long i = 0; i < count; ++i) total += weights[i];
    return total;
  }
};

// What a thread needs for one row, kept between rows.
struct Workspace {
  Candidates candidates;
  std::vector<float> block_maxima, block_sums, selection;
  std::vector<double> histogram = std::vector<double>(1024);
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
    valid_ = kernels().sampling.scan(logits, vocab, work.block_maxima.data(), &maximum_);
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
    return kernels().sampling.sum(logits_, vocab_, maximum_, inverse_temperature, work_.block_sums.data());
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

// Top-p: the smallest set, most likely first, whose weight reaches `target`; the token that crosses it stays, ties by id.
//
// The weight at which the target is crossed is found by radix: the bits of a float between 0 and 1 order like its value,
// so the weights are summed up by their leading 11 bits, then, of the bin where the crossing is, by the next 10 and the
// last 10. After that all weights of the bin are equal, and the first few by id belong to the set.
void keep_top_p(Candidates& c, double target, Workspace& work) {
  constexpr int kShifts[] = {20, 10, 0};
  std::vector<std::int32_t>& in_bin = work.in_bin;  // the candidates in the bin of the crossing so far
  double above = 0;  // weight of all that is certainly in the set
  for (const int shift : kShifts) {
    std::fill(work.histogram.begin(), work.histogram.end(), 0.0);
    const auto bin_of = [&](long i) { return bits_of(c.weights[i]) >> shift & 1023u; };
    if (shift == kShifts[0]) {
      for (long i = 0; i < c.count; ++i) work.histogram[bin_of(i)] += c.weights[i];
    } else {
      for (const std::int32_t i : in_bin) work.histogram[bin_of(i)] += c.weights[i];
    }
    std::uint32_t crossing = 1024, lowest = 1024;
    for (std::uint32_t bin = 1024; bin-- > 0 && crossing == 1024;) {
      if (work.histogram[bin] <= 0) continue;
      lowest = bin;
      if (above + work.histogram[bin] >= target) {
        crossing = bin;
      } else {
        above += work.histogram[bin];
      }
    }
    if (crossing == 1024) {
      if (shift == kShifts[0]) return;  // all together do not reach it: all stay
      crossing = lowest;                // a rounding error between the sum of a bin and the sums of its parts
      above -= work.histogram[lowest];
    }
    if (shift == kShifts[0]) {
      in_bin.clear();
      for (long i = 0; i < c.count; ++i) {
        if (bin_of(i) == crossing) in_bin.push_back(static_cast<std::int32_t>(i));
      }
    } else {
      std::erase_if(in_bin, [&](long i) { return bin_of(i) != crossing; });
    }
  }

  const float weight = c.weights[in_bin.front()];
  const double needed = std::ceil((target - above) / weight);
  const long size = static_cast<long>(in_bin.size());
  const long members = std::clamp(needed < static_cast<double>(size) ? static_cast<long>(needed) : size, 1L, size);
  const std::int32_t last = c.ids[in_bin[members - 1]];
  c.filter([&](long i) { return c.weights[i] > weight || (c.weights[i] == weight && c.ids[i] <= last); });
}

// Min-p: drops what is less likely than min_p times the most likely token, whose weight is 1.
void keep_min_p(Candidates& c, float min_p) {
  c.filter([&](long i) { return c.weights[i] >= min_p; });
}

// Inverse distribution function over the candidates in token-id order.
std::int32_t draw(const Candidates& c, float uniform) {
  const double target = uniform * c.mass();
  double below = 0;
  std::int32_t drawn = c.ids[0];
  for (long i = 0; i < c.count; ++i) {
    if (c.weights[i] <= 0) continue;
    drawn = c.ids[i];
    below += c.weights[i];
    if (below > target) break;
  }
  return drawn;
}

std::int32_t choose(const Row& row, const Sampling& s, long r, Workspace& work) {
  const float temperature = s.temperature[r], top_p = s.top_p[r], min_p = s.min_p[r];
  const long top_k = s.top_k[r];
  if (temperature == 0) return row.most_likely();
  const float inverse = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  const bool by_k = top_k > 0 && top_k < row.vocab(), by_p = top_p < 1, by_min = min_p > 0;
  if (!by_k && !by_p && !by_min) return row.draw(inverse, s.uniform[r]);

  // Tokens that cannot survive are not even collected. Top-k: see reached_by. Min-p: by its definition. Top-p: all tokens
  // lighter than (1 − p) / vocab of the whole weigh less than 1 − p of it together, so the set is complete without them.
  // The logarithm is slackened; the steps themselves are exact.
  const auto logit_of = [&](double weight) {
    return static_cast<float>(row.maximum() + temperature * (std::log(weight) - 1e-3));
  };
  double mass = 0;
  Candidates* c = nullptr;
  if (by_k) {
    c = &row.collect(row.reached_by(top_k));
    keep_top_k(*c, top_k, work.selection);
    row.weigh(*c, inverse);
    mass = c->mass();
  } else {
    float floor = by_min ? logit_of(min_p) : -kInfinity;
    if (by_p) {
      mass = row.sum(inverse);
      floor = std::max(floor, logit_of((1.0 - top_p) * mass / static_cast<double>(row.vocab())));
    }
    c = &row.collect(floor);
    row.weigh(*c, inverse);
  }
  if (by_p) keep_top_p(*c, top_p * mass, work);
  if (by_min) keep_min_p(*c, min_p);
  return draw(*c, s.uniform[r]);
}

}  // namespace

void sample(const LogitRows& logits, const Sampling& sampling, std::int32_t* token_ids, float* logprobs) {
  pool().parallel_for(logits.rows, 1, [&](long begin, long end) {
    for (long r = begin; r < end; ++r) {
      Workspace& work = workspace();
      const Row row(logits.row(r), logits.vocab, work);
      token_ids[r] = row.valid() ? choose(row, sampling, r, work) : -1;
      if (logprobs == nullptr) continue;
      logprobs[r] = row.valid() ? logits.row(r)[token_ids[r]] - row.maximum() - row.log_sum() : kNaN;
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
