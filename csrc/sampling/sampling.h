// From logits to a token: scans over a whole row of the vocabulary, and the steps of the choice.
#pragma once

#include <cstdint>
#include <span>

namespace dragoman {

// Rows are scanned in blocks of this many tokens: a block whose maximum is too small is skipped in later scans.
constexpr long kScanBlock = 64;
constexpr long scan_blocks(long vocab) { return (vocab + kScanBlock - 1) / kScanBlock; }

// The green list of a watermark: token v is on it where 32 bits of Philox4x64-10, with key (key, 1) and counter
// (v / 8, previous, 0, 0), are below the limit: word v % 8 of the block, low halves first.
struct GreenList {
  std::uint64_t key;
  std::uint64_t previous;  // the token before
  std::uint64_t limit;     // 2^32 times the share of green tokens
};

struct SamplingKernels {
  // The maximum of each block; *maximum is that of all. False when there is a NaN or +infinity among x.
  bool (*scan)(const float* x, long vocab, float* block_maxima, float* maximum);

  // Σ exp((x − maximum) · inverse_temperature), and each block's part.
  double (*sum)(const float* x, long vocab, float maximum, float inverse_temperature, float* block_sums);

  // With the logarithms l = (x − maximum) · inverse_temperature: Σ exp(l) and Σ exp(l) · l, in float64.
  void (*moments)(const float* x, long count, float maximum, float inverse_temperature, double* mass, double* products);

  // weights[i] = exp((x[i] − maximum) · inverse_temperature)
  void (*weigh)(const float* x, long count, float maximum, float inverse_temperature, float* weights);

  // Ids and values of all x >= floor, ascending by id; returns how many. ids and values have room for all of vocab.
  long (*collect)(const float* x, long vocab, const float* block_maxima, float floor, std::int32_t* ids, float* values);

  // Moves the candidates i with low <= x[i] <= high to the front of ids, logits and weights, in their order; returns
  // how many there are. x may be weights or logits, of which it is read before it is overwritten.
  long (*keep_between)(const float* x, float low, float high, long count, std::int32_t* ids, float* logits,
                       float* weights);

  // x[i] += delta where token first + i is on the green list, i < count; first is a multiple of 8.
  void (*add_to_green)(float* x, long first, long count, const GreenList& green, float delta);
};

// Rows of logits: row r is at data + r · stride.
template <class Float>
struct RowsOf {
  Float* data;
  long rows;
  long vocab;
  long stride;

  Float* row(long r) const { return data + r * stride; }
};
using LogitRows = RowsOf<const float>;
using WritableRows = RowsOf<float>;

// One value for each row. A null pointer means off for all rows.
struct Sampling {
  const float* temperature;                   // 0: the most likely token, lowest id first
  const float* uniform;                       // in [0, 1)
  std::span<const float* const> truncations;  // the values of each, in the order of truncations()
  const std::int32_t* mirostat = nullptr;     // 0: off; version 1 or 2, in place of all truncations
  const float* mirostat_limit = nullptr;      // its state, the largest surprise in bits
  float* mirostat_surprise = nullptr;         // out: bits of the drawn token before truncation; 0 where it is off
  const std::uint8_t* overwrite = nullptr;    // not 0: the row becomes the distribution of its token
};

// One token of each row, and, where logprobs is not null, its log-softmax among the row's logits. The token of a row
// that is not a distribution is −1, its logprob NaN. A row's token depends on that row alone. A row to overwrite holds
// after that its logits divided by the temperature, −infinity where dropped; with temperature 0 it stays as it is.
void sample(const WritableRows& logits, const Sampling& sampling, std::int32_t* token_ids, float* logprobs);

// row[v] += delta for every token v of the green list.
void add_to_green_list(float* row, long vocab, const GreenList& green, float delta);

// out[i] = log_softmax(logits[rows[i]])[ids[i]]
void log_softmax_at(const LogitRows& logits, const std::int32_t* rows, const std::int32_t* ids, long count, float* out);

// The k most likely tokens of each of the given rows, descending, ties by lower id; −1 and NaN where there are fewer.
void top_logprobs(const LogitRows& logits, const std::int32_t* rows, long count, long k, std::int32_t* ids,
                  float* logprobs);

}  // namespace dragoman
