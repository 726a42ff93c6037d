// What the files of all instruction sets begin with: single numbers, and how their functions are declared.
//
// Included once per instruction set, like all of its chapters: see kernels.inl.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/half.h"

namespace dragoman::DRAGOMAN_ISA {

constexpr int kWidth = 16;

#define DRAGOMAN_INLINE static inline __attribute__((always_inline))
// Before loops over an array of accumulators: unrolled later, GCC has it in memory at the loop's beginning and end.
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

// Sizes that are measured, not derived. Each instruction set has its own.
struct Tuning {
  // Most rows of a tile of a matrix product: enough chains to cover the latency of the multiplier (about 12), in a
  // shape that loads least, and no more than the registers hold. A quantized chain takes two, integer and float.
  int quantized_rows, wide_rows, float_rows;
  // Up to how many rows the vectors of a tile take their group's products side by side: only then are lines read in
  // order.
  int together_rows;
  // From how many rows on a wide tile is add_wide_groups() of the instruction set; kNever: it has none.
  int assembly_rows;
  // From how many rows on a single tile fetches its weights `ahead_bytes` ahead; with fewer, and with float32 weights,
  // the processor's own prefetcher does better alone.
  int ahead_rows_bfloat16, ahead_rows_int8, ahead_rows_int4;
  long ahead_bytes;
  // Queries, or queries and vectors of values, of a register tile of attention.
  int score_rows, weigh_rows, weigh_vectors;
  // Rows of a tile of a low-rank change: as many chains as hide the latency of an addition.
  int shrink_rows, expand_rows;
  // Independent chains that keep the multiplier busy when nothing else is done.
  int peak_chains;
};
constexpr int kNever = 1 << 20;

}  // namespace dragoman::DRAGOMAN_ISA
