// Everything in a decoder that is neither a matrix product nor attention: norms, rotary embedding, activations.
//
// Each row is computed on its own, in an order that depends on nothing but its width. ld* are distances between rows in
// floats. Rows need no alignment.
#pragma once

#include <cstdint>

namespace dragoman {

enum class Norm : std::uint8_t { rms, layer };
enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, relu };

struct TransformKernels {
  // out = x / rms(x) · weight, or (x − mean) / sqrt(variance + eps) · weight, then + bias where not null. out may be x.
  void (*norm)(Norm kind, const float* x, long ldx, long rows, long width, const float* weight, const float* bias,
               float eps, float* out, long ldout);

  // RMS norm over each of `heads` neighbouring heads of every row, in place, all with the same weight [head_dim].
  void (*head_norm)(float* x, long ldx, long rows, long heads, long head_dim, const float* weight, float eps);

  // Rotary embedding in place: of each head, elements i and i + half (i < half) are a pair, or, where interleaved, 2i and
  // 2i + 1. It is turned by the angle whose cosine and sine stand in row positions[r] of the tables [·, half]; elements
  // from 2·half on stay.
  void (*rotate)(float* x, long ldx, long rows, long heads, long head_dim, const float* cos, const float* sin, long half,
                 const std::int32_t* positions, bool interleaved);

  // out = act(x[:, :width]) · x[:, width : 2·width]
  void (*gate)(Activation activation, const float* x, long ldx, long rows, long width, float* out, long ldout);

  // x = act(x)
  void (*activate)(Activation activation, float* x, long ldx, long rows, long width);

  // out += x
  void (*add)(float* out, long ldout, const float* x, long ldx, long rows, long width);

  // x += table[positions[r]]
  void (*add_positions)(float* x, long ldx, long rows, long width, const float* table, const std::int32_t* positions);

  // x *= factor
  void (*scale)(float* x, long ldx, long rows, long width, float factor);
};

}  // namespace dragoman
