// Chooses the token of each row.
#include "sampling/sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <vector>

#include "sampling/candidates.h"
#include "sampling/row.h"
#include "sampling/truncations.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

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

// The drawn token, and the candidates it was drawn from; null: the whole row.
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
    // Version 2: the tokens with at most the largest surprise, and always the most likely one, whose weight is 1.
    const double floor = std::min(1.0, mass * std::exp2(-static_cast<double>(limit)));
    c = &row.collect(static_cast<float>(row.maximum() + s.temperature[r] * (std::log(floor) - 1e-3)));
    row.weigh(*c, inverse);
    c->filter([&](long i) { return c->weights[i] >= floor; });
  }
  const long drawn = draw(*c, s.uniform[r]);
  s.mirostat_surprise[r] = static_cast<float>(std::log2(mass / c->weights[drawn]));
  return {c->ids[drawn], c};
}

// The tokens that the truncations of a row keep; null: none is on.
Candidates* truncate(const Row& row, const Sampling& s, long r, float inverse, Workspace& work) {
  struct Active {
    const Truncation* truncation;
    float value;
  };
  std::array<Active, kMostTruncations> active;
  std::size_t count = 0;
  for (std::size_t i = 0; i < s.truncations.size(); ++i) {
    if (s.truncations[i] == nullptr) continue;
    const Truncation& truncation = truncations()[i];
    const float value = s.truncations[i][r];
    if (truncation.is_on(value, row.vocab())) active[count++] = {&truncation, value};
  }
  if (count == 0) return nullptr;

  // Tokens that cannot survive are not collected. A floor that follows from the mass of the whole row is valid only
  // where nothing is dropped before; the mass that one truncation passes to the next is that of all tokens it keeps.
  Remaining remaining(row, s.temperature[r], inverse, work);
  float floor = kLowest;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [truncation, value] = active[i];
    if (truncation->floor == nullptr || (i > 0 && truncation->reckons_with_mass)) break;
    floor = std::max(floor, truncation->floor(remaining, value));
  }
  remaining.collect(floor);
  for (std::size_t i = 0; i < count; ++i) {
    active[i].truncation->keep(remaining, active[i].value);
    remaining.set_truncated();
  }
  return &remaining.candidates;
}

Choice choose(const Row& row, const Sampling& s, long r, Workspace& work) {
  const float temperature = s.temperature[r];
  if (temperature == 0) return {row.most_likely()};
  const float inverse = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  if (s.mirostat != nullptr && s.mirostat[r] != 0) return choose_by_mirostat(row, s, r, inverse, work);
  const Candidates* const c = truncate(row, s, r, inverse, work);
  if (c == nullptr) return {row.draw(inverse, s.uniform[r])};
  return {c->ids[draw(*c, s.uniform[r])], c};
}

// Overwrites a row with the distribution that its token was drawn from.
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

void add_to_green_list(float* row, long vocab, const GreenList& green, float delta) {
  constexpr long kTokens = 16384;  // some 20 µs
  pool().parallel_for(vocab, kTokens, [&](long begin, long end) {
    kernels().sampling.add_to_green(row + begin, begin, end - begin, green, delta);
  });
}

void log_softmax_at(const LogitRows& logits, const std::int32_t* rows, const std::int32_t* ids, long count,
                    float* out) {
  std::vector<long> starts;  // at the start of a row: its sum is needed once
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
