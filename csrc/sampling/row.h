// One row of logits: the queries that the steps of a choice share. Nothing here sorts the vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "sampling/candidates.h"
#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();  // above the value of forbidden tokens

// A single row is scanned by all threads, in parts of this many tokens.
constexpr long kPart = 256 * kScanBlock;

// Scratch memory of a thread for one row, kept between rows.
struct Workspace {
  struct Part {
    float maximum;
    bool valid;             // neither NaN nor +infinity
    double mass, products;  // of moments()
  };
  std::vector<Part> parts;
  Candidates candidates;
  std::vector<float> block_maxima, block_sums;
  CandidateScratch scratch;
};

inline Workspace& workspace() {
  thread_local Workspace instance;
  return instance;
}

// Of weights w = exp(l): Σ w, and the mean of l, Σ w · l / Σ w.
struct Moments {
  double mass, mean;
};

// One row's logits, with the maximum and validity that every step needs first.
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

  // Also writes the sums of the blocks to the workspace.
  double sum(float inverse_temperature) const {
    pool().parallel_for(vocab_, kPart, [&](long begin, long end) {
      kernels().sampling.sum(logits_ + begin, end - begin, maximum_, inverse_temperature,
                             work_.block_sums.data() + begin / kScanBlock);
    });
    double total = 0;  // in the order of the blocks, whatever the number of threads
    for (const float part : work_.block_sums) total += part;
    return total;
  }

  Moments moments(float inverse_temperature) const {
    pool().parallel_for(vocab_, kPart, [&](long begin, long end) {
      Workspace::Part& part = work_.parts[begin / kPart];
      kernels().sampling.moments(logits_ + begin, end - begin, maximum_, inverse_temperature, &part.mass,
                                 &part.products);
    });
    double mass = 0, products = 0;
    for (const Workspace::Part& part : work_.parts) mass += part.mass, products += part.products;
    return {mass, products / mass};
  }

  float log_sum() const { return static_cast<float>(std::log(sum(1.0f))); }

  // A value that at least k tokens reach: the k-th largest block maximum, as each block has one such token.
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
    if (block == static_cast<long>(sums.size())) block = last;  // rounding led past the end because u is close to 1
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

}  // namespace dragoman
