// Common beginning of all instruction sets: functions of single numbers, and the macros that declare functions.
//
// Included once per instruction set, like all parts of it: see kernels.inl.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/half.h"

namespace dragoman::DRAGOMAN_ISA {

constexpr int kWidth = 16;

#define DRAGOMAN_INLINE static inline __attribute__((always_inline))
// Before loops over an array of accumulators: if it unrolls them later, GCC keeps the array in memory at the loop's
// beginning and end.
#define DRAGOMAN_UNROLL _Pragma("GCC unroll 16")

DRAGOMAN_INLINE float bits_to_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
DRAGOMAN_INLINE std::uint32_t float_to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

// bfloat16 is the upper half of a float32; rounding is to nearest even, NaN stays NaN.
DRAGOMAN_INLINE float bf16_to_float(std::uint16_t value) {
  return bits_to_float(static_cast<std::uint32_t>(value) << 16);
}
DRAGOMAN_INLINE std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

DRAGOMAN_INLINE std::uint32_t load_u32(const void* p) {
  std::uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

// The levels that four bits of a key or value stand for: bit 3 is the sign. They are those of the least square error
// for a normal distribution, in units of 2.7326 standard deviations / 127.
constexpr std::int8_t kLevels[16] = {6, 18, 31, 44, 58, 75, 96, 127, -6, -18, -31, -44, -58, -75, -96, -127};

// Sizes that are measured, not derived, separately for each instruction set.
struct Tuning {
  // Maximum rows of a tile of a matrix product: enough chains to cover the latency of the multiplier (about 12), in a
  // shape with the fewest loads, and no more than the registers hold. A quantized chain takes two, integer and float.
  int quantized_rows, wide_rows, float_rows;
  // Maximum number of rows for which the vectors of a tile compute their group's products together: only then are lines
  // read in order.
  int together_rows;
  // Minimum number of rows for which a wide tile uses the instruction set's add_wide_groups(); kNever: it has none.
  int assembly_rows;
  // The same of a bfloat16 tile, for all of its groups: add_bfloat16_groups(), which keeps the order of additions.
  int bfloat16_rows = 1 << 20;
  // Minimum number of rows for which a single tile prefetches its weights `ahead_bytes` ahead; with fewer, and with
  // float32 weights, the processor's own prefetcher is faster alone. That of int4 is also for the chunked formats whose
  // codes take as little time to open.
  int ahead_rows_bfloat16, ahead_rows_int8, ahead_rows_int4, ahead_rows_chunked;
  long ahead_bytes;
  // Queries, or queries and vectors of values, of a register tile of attention.
  int score_rows, weigh_rows, weigh_vectors;
  // Numbers of 32 bits in a register, of which squares are transposed.
  int turn_lanes;
  // Rows of a tile of a low-rank change: enough chains to hide the latency of an addition.
  int shrink_rows, expand_rows;
  // Independent chains that keep the multiplier busy when nothing else is done.
  int peak_chains;
};
constexpr int kNever = 1 << 20;

}  // namespace dragoman::DRAGOMAN_ISA
