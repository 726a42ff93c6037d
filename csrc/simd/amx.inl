// The kernels of AVX-512, but for products of many rows of integers, and all of bfloat16, in AMX's tiles.
// clang-format off: the order is that of use
#include "simd/math.h"
#include "gemm/output.inl"
#include "gemm/codes.inl"
#include "simd/amx_tiles.h"
#include "simd/kernels.h"
#include "simd/amx_integers.h"
#include "simd/amx_bfloat16.h"
#include "layers/transform.inl"
#include "attention/split.inl"
#include "simd/amx_attention.h"
// clang-format on

namespace dragoman {
namespace avx512 {
const Kernels& table();
}

namespace DRAGOMAN_ISA {

inline void multiply_matrix(const Matrix& w, const Activations& a, long begin, long end, float* y, long ldy,
                            const float* bias, bool accumulate) {
  const Output out{.y = y, .ldy = ldy, .n = w.n, .bias = bias, .accumulate = accumulate};
  if (w.precision == Precision::bfloat16) return multiply_bfloat16_matrix(w, a, begin, end, out);
  if (w.precision == Precision::float32 || !is_for_tiles(w, a.rows)) {
    return avx512::table().linear.multiply(w, a, begin, end, y, ldy, bias, accumulate);
  }
  switch (w.precision) {
    case Precision::int8:
      return w.wide ? multiply_integers<Kind<Precision::int8, true>>(w, a, begin, end, out)
                    : multiply_integers<Kind<Precision::int8>>(w, a, begin, end, out);
    case Precision::int4:
      return w.minimum ? multiply_integers<Kind<Precision::int4, false, true>>(w, a, begin, end, out)
                       : multiply_integers<Kind<Precision::int4>>(w, a, begin, end, out);
    case Precision::mxfp4: return multiply_integers<Kind<Precision::mxfp4>>(w, a, begin, end, out);
    case Precision::iq4_nl: return multiply_integers<Kind<Precision::iq4_nl>>(w, a, begin, end, out);
    case Precision::iq4_xs: return multiply_integers<Kind<Precision::iq4_xs>>(w, a, begin, end, out);
    case Precision::q3_k: return multiply_integers<Kind<Precision::q3_k>>(w, a, begin, end, out);
    case Precision::q4_k: return multiply_integers<Kind<Precision::q4_k>>(w, a, begin, end, out);
    case Precision::q5_k: return multiply_integers<Kind<Precision::q5_k>>(w, a, begin, end, out);
    case Precision::q6_k: return multiply_integers<Kind<Precision::q6_k>>(w, a, begin, end, out);
    default: return;  // those of floats are above
  }
}

// Products of tiles on registers only, with four tiles of sums.
inline double multiply_peak(Precision precision, long rounds, float* sink) {
  if (precision == Precision::float32) return avx512::table().linear.multiply_peak(precision, rounds, sink);
  alignas(64) float sums[kTileRows][kWidth] = {};
  shape_tiles(kTileRows, kTileBytes);
  start_sums(true);
  DRAGOMAN_TILE_LOAD(4, sums, kTileBytes);
  DRAGOMAN_TILE_LOAD(6, sums, kTileBytes);
  for (long r = 0; r < rounds; ++r) {
    if (precision == Precision::bfloat16) {
      DRAGOMAN_TILE_DOT_BF16(0, 4, 6);
      DRAGOMAN_TILE_DOT_BF16(1, 4, 6);
      DRAGOMAN_TILE_DOT_BF16(2, 4, 6);
      DRAGOMAN_TILE_DOT_BF16(3, 4, 6);
    } else {
      DRAGOMAN_TILE_DOT_BYTES(0, 4, 6);
      DRAGOMAN_TILE_DOT_BYTES(1, 4, 6);
      DRAGOMAN_TILE_DOT_BYTES(2, 4, 6);
      DRAGOMAN_TILE_DOT_BYTES(3, 4, 6);
    }
  }
  DRAGOMAN_TILE_STORE(0, sums, kTileBytes);
  DRAGOMAN_TILE_RELEASE();
  *sink = sums[0][0];
  const double products = precision == Precision::bfloat16 ? 32 : 64;
  return static_cast<double>(rounds) * 4 * 2 * kTileRows * kWidth * products;
}

void attend_split(const AttentionPiece& piece, float* states, float* workspace) {
  if (piece.tile->kv->precision != KVPrecision::bfloat16) {
    return avx512::table().attention.attend_split(piece, states, workspace);
  }
  SplitAttention<TiledPairs>(piece, states, workspace).run();
}

#define DRAGOMAN_STRING_(x) #x
#define DRAGOMAN_STRING(x) DRAGOMAN_STRING_(x)

const Kernels& table() {
  static const Kernels kernels = [] {
    Kernels own = avx512::table();
    own.name = DRAGOMAN_STRING(DRAGOMAN_ISA);
    own.linear.multiply = multiply_matrix;
    own.linear.multiply_peak = multiply_peak;
    own.attention.attend_split = attend_split;
    return own;
  }();
  return kernels;
}

}  // namespace DRAGOMAN_ISA
}  // namespace dragoman
