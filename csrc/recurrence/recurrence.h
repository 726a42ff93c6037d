// Layers with a state of fixed size: short causal convolutions, and linear recurrences.
//
// A sequence's rows are computed token by token in one fixed order, in float32, whatever else is in the batch and
// however the text was divided into steps: so the same tokens give the same bits. The state before a sequence's first
// row is read from its slot (zeros at position 0); states are written after the rows that ask for it.
#pragma once

#include <cstdint>

#include "layers/transform.h"
#include "recurrence/state_pool.h"

namespace dragoman {

// The rows of one sequence in a step.
struct StateRows {
  long row, rows;
  long before;                // slot; -1: zeros
  const std::int32_t* slots;  // [rows]: slot of the state after each row, -1 for none; the last row has one

  long after() const { return slots[rows - 1]; }
};

// y[c] = act(bias[c] + Σ_j weight[j][c] · x[t − taps + 1 + j][c]), in place, of channels [begin, end).
// State: the last taps − 1 inputs, [taps − 1][width].
struct Convolution {
  StatePart state;
  float* x;  // column 0 of the batch's row 0
  long ldx;
  long width;
  long taps;
  const float* weight;  // [taps][width]
  const float* bias;    // [width]; null: zero
  bool activated;       // by SiLU
};

constexpr long kMostTaps = 16;

// Channels of many rows that are computed together: rows are far apart, and their lines fetched faster by fours.
constexpr long kChannelsTogether = 64;

// For each head, with S of [key_dim, value_dim], zero at first:
//
//   S = decay · S;  u = factor · (v − Sᵀ·k) where delta, else factor · v;  S = S + k·uᵀ;  out = Sᵀ·q + skip · v
//
// Gated DeltaNet (Yang et al. 2024, https://arxiv.org/abs/2412.06464) is the delta rule; Kimi Delta Attention (Kimi
// Team 2025, https://arxiv.org/abs/2510.26692) is the same where each row of S has a decay of its own; Mamba-2 (Dao, Gu
// 2024, https://arxiv.org/abs/2405.21060) is without it: k = B, q = C, v = x, factor = Δ, decay = exp(Δ·A), skip = D.
// Neighbouring heads share a query and key. State: [heads][key_dim][value_dim, padded to 16].
struct LinearRecurrence {
  StatePart state;
  const float* q;  // column 0 of queries, keys, values, decays and factors in the batch's row 0
  const float* k;
  const float* v;
  long ldx;
  const float* decay;   // [heads], or [heads · key_dim]
  const float* factor;  // [heads]
  long ldgates;
  float* out;  // [heads · value_dim]
  long ldout;
  long heads, group;  // heads that share a query and key
  long key_dim, value_dim;
  const float* skip;  // [heads]; null: zero
  bool delta;
  bool key_decays;  // a decay for each row of S; with the delta rule only

  long padded_value_dim() const { return (value_dim + 15) / 16 * 16; }
  long head_floats() const { return key_dim * padded_value_dim(); }
};

// For each channel c, with h of state_dim numbers, zero at first, and step = softplus(steps[c] + bias[c]):
//
//   h[n] = exp(−rate[n][c] · step) · h[n] + (step · x[c]) · b[n];  out = Σ_n h[n] · c[n] + skip[c] · x[c]
//
// Mamba (Gu, Dao 2023, https://arxiv.org/abs/2312.00752). State: [state_dim][width, padded to 16].
struct SelectiveScan {
  StatePart state;
  const float* x;      // [width], of the batch's row 0, as all others
  const float* steps;  // [width]
  const float* b;      // [state_dim]
  const float* c;
  long ldx, ldsteps, ldbc;
  const float* rate;  // [state_dim][width]
  const float* bias;  // [width]
  const float* skip;
  float* out;  // [width]
  long ldout;
  long width, state_dim;

  long padded_width() const { return (width + 15) / 16 * 16; }
};

// For each channel c, with h a number, zero at first, a = exp(−rate[c] · sigmoid(decay[c] + decay_bias[c])), and
// u = sigmoid(input[c] + input_bias[c]) · x[c]:
//
//   h = a · h + sqrt(1 − a²) · u, and at position 0 h = u;  x = h
//
// RG-LRU (De et al. 2024, Griffin, https://arxiv.org/abs/2402.19427). State: [width].
struct GatedUnit {
  StatePart state;
  float* x;            // [width], of the batch's row 0, as both inputs of gates
  const float* input;  // [width]
  const float* decay;
  long ldx, ldinput, lddecay;
  const float* rate;  // [width]
  const float* input_bias;
  const float* decay_bias;
  long width;
};

// Most columns of a head's state that are computed together: of a single row, whose state is read from memory in one
// piece, and of several, whose state then stays in half of the first-level cache.
constexpr long kColumnsOfOne = 128, kColumnsOfMany = 32;

enum class Gate : std::uint8_t { plain, silu, sigmoid, gelu_tanh };

struct RecurrenceKernels {
  void (*convolve)(const Convolution& layer, const StateRows& rows, long begin, long end);

  // One head, and its columns [begin, end): at most kColumnsOfOne or, where there are several rows, kColumnsOfMany.
  // scratch: key_dim · kColumnsOfMany floats, aligned to cache lines.
  void (*recur)(const LinearRecurrence& layer, const StateRows& rows, long head, long begin, long end, float* scratch);

  // Channels [begin, end).
  void (*scan)(const SelectiveScan& layer, const StateRows& rows, long begin, long end);

  // Channels [begin, end).
  void (*unit)(const GatedUnit& layer, const StateRows& rows, long begin, long end);

  // With step = softplus(x + bias) within [least, most]: the first `count` columns of out are exp(−rate · step), the
  // `factors` columns after them sigmoid(y), or, where y is null, the steps.
  void (*gates)(const float* x, const float* y, long ldx, long rows, long count, long factors, const float* rate,
                const float* bias, float least, float most, float* out, long ldout);

  // out = x · y, x · silu(y), x · sigmoid(y) or x · gelu(y), of `width` columns; out may be x or y.
  void (*multiply)(Gate gate, const float* x, long ldx, const float* y, long ldy, long rows, long width, float* out,
                   long ldout);
};

// On the threads of the pool.
void convolve(const Convolution& layer, const StateRows* sequences, long count);
void recur(const LinearRecurrence& layer, const StateRows* sequences, long count);
void scan(const SelectiveScan& layer, const StateRows* sequences, long count);
void unit(const GatedUnit& layer, const StateRows* sequences, long count);

}  // namespace dragoman
