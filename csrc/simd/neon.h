// ARMv8.0 (armv8.cpp); with the dot products of ARMv8.2 (neon.cpp); and with the instructions of ARMv8.6 for bfloat16
// and for bytes of which only one is signed (neon_i8mm.cpp). The contract of each name is in portable.h.
#pragma once

#include <arm_neon.h>

#include "gemm/linear.h"
#include "simd/scalar.h"

namespace dragoman::DRAGOMAN_ISA {

#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr bool kHasMatrices = true;
#define DRAGOMAN_NEON_MATRICES
#else
constexpr bool kHasMatrices = false;
#endif

#if defined(__ARM_FEATURE_DOTPROD)
constexpr bool kHasDotProducts = true;
#else
constexpr bool kHasDotProducts = false;
#endif

// By counting instructions (docs/performance.md), not measured: nobody has run these kernels on a real processor.
constexpr Tuning kTuning{
    .quantized_rows = 4,
    // 24 sums, four quarters of weights and one quad of activations, of 32 registers; or those of neon_matrix_tiles.h
    .wide_rows = kHasMatrices      ? 8
                 : kHasDotProducts ? 6
                                   : 4,
    .float_rows = kHasMatrices ? 6 : 4,  // without bfdot, bfloat16 weights are widened into twice as many registers
    .together_rows = 2,
    .assembly_rows = kHasMatrices ? 3 : kNever,
    .bfloat16_rows = kHasMatrices ? 3 : kNever,
    .ahead_rows_bfloat16 = kNever,  // the processors' own prefetchers alone
    .ahead_rows_int8 = kNever,
    .ahead_rows_int4 = kNever,
    .ahead_rows_chunked = kNever,
    .ahead_bytes = 4096,
    .score_rows = 2,
    .weigh_rows = 2,
    .weigh_vectors = 2,
    .turn_lanes = 4,
    .shrink_rows = 1,
    .expand_rows = 2,
    .peak_chains = 4,  // of four registers each
};

// 16 lanes, four in each register.
struct Vec {
  float32x4_t a, b, c, d;
};
using ActGroupVecs = Vec[kWeightGroups][2];
struct Power {
  Vec whole, fraction;
};

// The function of each quarter of its arguments.
template <class Result, class Function, class... Quarters>
DRAGOMAN_INLINE Result each(Function function, Quarters... of) {
  return {function(of.a...), function(of.b...), function(of.c...), function(of.d...)};
}
#define DRAGOMAN_QUARTER __attribute__((always_inline))

DRAGOMAN_INLINE Vec load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
DRAGOMAN_INLINE void store(float* p, Vec a) {
  vst1q_f32(p, a.a);
  vst1q_f32(p + 4, a.b);
  vst1q_f32(p + 8, a.c);
  vst1q_f32(p + 12, a.d);
}
DRAGOMAN_INLINE Vec load_partial(const float* p, long n) {
  float all[16] = {};
  std::memcpy(all, p, static_cast<std::size_t>(n) * 4);
  return load(all);
}
DRAGOMAN_INLINE void store_partial(float* p, Vec a, long n) {
  float all[16];
  store(all, a);
  std::memcpy(p, all, static_cast<std::size_t>(n) * 4);
}
DRAGOMAN_INLINE Vec broadcast(float a) {
  const float32x4_t four = vdupq_n_f32(a);
  return {four, four, four, four};
}
DRAGOMAN_INLINE Vec operator+(Vec a, Vec b) { return {a.a + b.a, a.b + b.b, a.c + b.c, a.d + b.d}; }
DRAGOMAN_INLINE Vec operator-(Vec a, Vec b) { return {a.a - b.a, a.b - b.b, a.c - b.c, a.d - b.d}; }
DRAGOMAN_INLINE Vec operator*(Vec a, Vec b) { return {a.a * b.a, a.b * b.b, a.c * b.c, a.d * b.d}; }
DRAGOMAN_INLINE Vec operator/(Vec a, Vec b) { return {a.a / b.a, a.b / b.b, a.c / b.c, a.d / b.d}; }
DRAGOMAN_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b), vfmaq_f32(c.c, a.c, b.c), vfmaq_f32(c.d, a.d, b.d)};
}
// (FMAX and FMIN give NaN where either is NaN.)
DRAGOMAN_INLINE Vec max(Vec a, Vec b) {
  return each<Vec>([](auto x, auto y) DRAGOMAN_QUARTER { return vbslq_f32(vcgtq_f32(x, y), x, y); }, a, b);
}
DRAGOMAN_INLINE Vec min(Vec a, Vec b) {
  return each<Vec>([](auto x, auto y) DRAGOMAN_QUARTER { return vbslq_f32(vcltq_f32(x, y), x, y); }, a, b);
}
DRAGOMAN_INLINE Vec abs(Vec a) { return {vabsq_f32(a.a), vabsq_f32(a.b), vabsq_f32(a.c), vabsq_f32(a.d)}; }
DRAGOMAN_INLINE Vec sqrt(Vec a) { return {vsqrtq_f32(a.a), vsqrtq_f32(a.b), vsqrtq_f32(a.c), vsqrtq_f32(a.d)}; }
DRAGOMAN_INLINE Vec round(Vec a) { return {vrndnq_f32(a.a), vrndnq_f32(a.b), vrndnq_f32(a.c), vrndnq_f32(a.d)}; }
DRAGOMAN_INLINE Vec floor(Vec a) { return {vrndmq_f32(a.a), vrndmq_f32(a.b), vrndmq_f32(a.c), vrndmq_f32(a.d)}; }
DRAGOMAN_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return each<Vec>([](auto l, auto r, auto yes, auto no)
                       DRAGOMAN_QUARTER { return vbslq_f32(vcltq_f32(l, r), yes, no); },
                   a, b, x, y);
}
DRAGOMAN_INLINE float32x4_t power_of_two(int32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
DRAGOMAN_INLINE Vec scale_by_power(Vec a, Vec n) {
  // In two steps, since 2ⁿ itself may overflow a float.
  return each<Vec>(
      [](auto x, auto power) DRAGOMAN_QUARTER {
        const int32x4_t whole = vcvtnq_s32_f32(power), first = vshrq_n_s32(whole, 1);
        return vmulq_f32(vmulq_f32(x, power_of_two(first)), power_of_two(vsubq_s32(whole, first)));
      },
      a, n);
}
DRAGOMAN_INLINE Power split_power(Vec x) {
  const Vec bounded = max(broadcast(-200.0f), x), whole = floor(bounded);
  return {whole, bounded - whole};
}
DRAGOMAN_INLINE float32x4_t bf16_quarter(const std::uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
DRAGOMAN_INLINE Vec load_bf16(const std::uint16_t* p) {
  return {bf16_quarter(p), bf16_quarter(p + 4), bf16_quarter(p + 8), bf16_quarter(p + 12)};
}
DRAGOMAN_INLINE uint16x4_t round_bf16_quarter(float32x4_t a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16);
}
DRAGOMAN_INLINE void store_bf16(std::uint16_t* p, Vec a) {
  vst1q_u16(p, vcombine_u16(round_bf16_quarter(a.a), round_bf16_quarter(a.b)));
  vst1q_u16(p + 8, vcombine_u16(round_bf16_quarter(a.c), round_bf16_quarter(a.d)));
}
DRAGOMAN_INLINE float32x4_t fp16_quarter(const std::uint16_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
DRAGOMAN_INLINE Vec load_fp16(const std::uint16_t* p) {
  return {fp16_quarter(p), fp16_quarter(p + 4), fp16_quarter(p + 8), fp16_quarter(p + 12)};
}
DRAGOMAN_INLINE uint16x4_t round_fp16_quarter(float32x4_t a) { return vreinterpret_u16_f16(vcvt_f16_f32(a)); }
DRAGOMAN_INLINE void store_fp16(std::uint16_t* p, Vec a) {
  vst1q_u16(p, vcombine_u16(round_fp16_quarter(a.a), round_fp16_quarter(a.b)));
  vst1q_u16(p + 8, vcombine_u16(round_fp16_quarter(a.c), round_fp16_quarter(a.d)));
}

DRAGOMAN_INLINE Vec add_where_at_most(Vec a, const std::uint32_t* words, std::uint32_t most, Vec b) {
  const uint32x4_t all = vdupq_n_u32(most);
  return {vbslq_f32(vcleq_u32(vld1q_u32(words), all), a.a + b.a, a.a),
          vbslq_f32(vcleq_u32(vld1q_u32(words + 4), all), a.b + b.b, a.b),
          vbslq_f32(vcleq_u32(vld1q_u32(words + 8), all), a.c + b.c, a.c),
          vbslq_f32(vcleq_u32(vld1q_u32(words + 12), all), a.d + b.d, a.d)};
}

// Lane i with i + 8, then + 4, + 2, + 1.
DRAGOMAN_INLINE float32x4_t sum_quarters(Vec a) { return (a.a + a.c) + (a.b + a.d); }
DRAGOMAN_INLINE float hsum(Vec a) {
  const float32x4_t four = sum_quarters(a);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
DRAGOMAN_INLINE float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
DRAGOMAN_INLINE float hmax(Vec a) {
  const float32x4_t four = larger(larger(a.a, a.c), larger(a.b, a.d));
  const float32x4_t two = larger(four, vextq_f32(four, four, 2));
  const float32x4_t one = larger(two, vextq_f32(two, two, 1));
  return vgetq_lane_f32(one, 0);
}
DRAGOMAN_INLINE float32x4_t sum_two(float32x4_t first, float32x4_t second) {
  return vcombine_f32(vget_low_f32(first), vget_low_f32(second)) +
         vcombine_f32(vget_high_f32(first), vget_high_f32(second));
}
DRAGOMAN_INLINE void sum_four(const Vec (&a)[4], float* out) {
  const float32x4_t lower = sum_two(sum_quarters(a[0]), sum_quarters(a[1]));
  const float32x4_t upper = sum_two(sum_quarters(a[2]), sum_quarters(a[3]));
  vst1q_f32(out, vpaddq_f32(lower, upper));
}

DRAGOMAN_INLINE long rows_to_fetch_from(long tuned) { return tuned; }
DRAGOMAN_INLINE void prefetch_here(const std::uint8_t* line) { __builtin_prefetch(line, 0, 2); }
template <class Sum>
DRAGOMAN_INLINE void hold(Sum&) {}

struct Ints {
  int32x4_t a, b, c, d;
};
struct Bytes {
  uint8x16_t a, b, c, d;
};
struct BF16Pairs {
  uint32x4_t a, b, c, d;
};

DRAGOMAN_INLINE Ints broadcast_int(std::int32_t a) {
  const int32x4_t four = vdupq_n_s32(a);
  return {four, four, four, four};
}
DRAGOMAN_INLINE Vec to_float(Ints a) {
  return {vcvtq_f32_s32(a.a), vcvtq_f32_s32(a.b), vcvtq_f32_s32(a.c), vcvtq_f32_s32(a.d)};
}
DRAGOMAN_INLINE Bytes load_bytes(const std::uint8_t* p) {
  return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
}
DRAGOMAN_INLINE Bytes low_nibbles(Bytes a) {
  return each<Bytes>([](auto codes) DRAGOMAN_QUARTER { return vandq_u8(codes, vdupq_n_u8(15)); }, a);
}
DRAGOMAN_INLINE Bytes high_nibbles(Bytes a) {
  return {vshrq_n_u8(a.a, 4), vshrq_n_u8(a.b, 4), vshrq_n_u8(a.c, 4), vshrq_n_u8(a.d, 4)};
}
#if defined(__ARM_FEATURE_DOTPROD)
DRAGOMAN_INLINE int32x4_t dot_quads(int32x4_t sum, int8x16_t w, int8x16_t x) { return vdotq_s32(sum, w, x); }
#else
// The sums of two products, at most 2 · 128 · 127, fit 16 bits.
DRAGOMAN_INLINE int32x4_t dot_quads(int32x4_t sum, int8x16_t w, int8x16_t x) {
  const int16x8_t first = vmull_s8(vget_low_s8(w), vget_low_s8(x)), second = vmull_high_s8(w, x);
  return vpadalq_s16(sum, vpaddq_s16(first, second));
}
#endif
// acc + w · x, four products in each lane, of w ≤ 127.
DRAGOMAN_INLINE Ints dot_codes(Ints acc, Bytes w, std::uint32_t x) {
  const int8x16_t quad = vreinterpretq_s8_u32(vdupq_n_u32(x));
  return each<Ints>([quad](auto sum, auto codes)
                        DRAGOMAN_QUARTER { return dot_quads(sum, vreinterpretq_s8_u8(codes), quad); },
                    acc, w);
}
#if defined(DRAGOMAN_NEON_MATRICES)
constexpr bool kBytesAreSigned = false;
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  const int8x16_t quad = vreinterpretq_s8_u32(vdupq_n_u32(x));
  return each<Ints>([quad](auto sum, auto codes) DRAGOMAN_QUARTER { return vusdotq_s32(sum, codes, quad); }, acc, w);
}
#else
// Both factors of a dot product have the same sign: w − 128.
constexpr bool kBytesAreSigned = true;
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  return dot_codes(acc, each<Bytes>([](auto codes) DRAGOMAN_QUARTER { return veorq_u8(codes, vdupq_n_u8(128)); }, w),
                   x);
}
#endif
DRAGOMAN_INLINE Ints begin_nibbles(std::int32_t start) { return broadcast_int(start); }
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_codes(acc, w, x); }
DRAGOMAN_INLINE Ints end_nibbles(Ints acc, std::int32_t) { return acc; }

DRAGOMAN_INLINE Bytes no_bytes() {
  const uint8x16_t none = vdupq_n_u8(0);
  return {none, none, none, none};
}
DRAGOMAN_INLINE Bytes join_bits(Bytes base, Bytes plane, int from, int count, int to) {
  const int8x16_t left = vdupq_n_s8(static_cast<std::int8_t>(to - from));  // to the right where it is negative
  const uint8x16_t mask = vdupq_n_u8(static_cast<std::uint8_t>(((1 << count) - 1) << to));
  return each<Bytes>([left, mask](auto all, auto bits)
                         DRAGOMAN_QUARTER { return vorrq_u8(all, vandq_u8(vshlq_u8(bits, left), mask)); },
                     base, plane);
}
using Table = uint8x16_t;
DRAGOMAN_INLINE Table load_table(const std::uint8_t* entries) { return vld1q_u8(entries); }
DRAGOMAN_INLINE Bytes look_up(Table table, Bytes places) {
  return each<Bytes>([table](auto place) DRAGOMAN_QUARTER { return vqtbl1q_u8(table, place); }, places);
}
DRAGOMAN_INLINE Bytes look_up_low(Table table, Bytes codes) { return look_up(table, low_nibbles(codes)); }
DRAGOMAN_INLINE Bytes look_up_high(Table table, Bytes codes) { return look_up(table, high_nibbles(codes)); }
DRAGOMAN_INLINE Vec load_int8(const std::uint8_t* p) {
  const int8x16_t all = vreinterpretq_s8_u8(vld1q_u8(p));
  const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_s8(vget_high_s8(all));
  return to_float({vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
                   vmovl_s16(vget_high_s16(high))});
}
DRAGOMAN_INLINE float32x4_t half_powers(uint16x4_t exponents) {
  const int32x4_t exponent = vreinterpretq_s32_u32(vmovl_u16(exponents)), one = vdupq_n_s32(1);
  const int32x4_t normal = vshlq_n_s32(vsubq_s32(exponent, one), 23);
  return vreinterpretq_f32_s32(vmaxq_s32(normal, vshlq_n_s32(vaddq_s32(exponent, one), 21)));
}
DRAGOMAN_INLINE Vec load_half_powers(const std::uint8_t* p) {
  const uint8x16_t all = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_u8(vget_high_u8(all));
  return {half_powers(vget_low_u16(low)), half_powers(vget_high_u16(low)), half_powers(vget_low_u16(high)),
          half_powers(vget_high_u16(high))};
}
DRAGOMAN_INLINE BF16Pairs load_bf16_pairs(const std::uint8_t* p) {
  const Bytes bytes = load_bytes(p);
  return {vreinterpretq_u32_u8(bytes.a), vreinterpretq_u32_u8(bytes.b), vreinterpretq_u32_u8(bytes.c),
          vreinterpretq_u32_u8(bytes.d)};
}
#if defined(DRAGOMAN_NEON_MATRICES)
DRAGOMAN_INLINE Vec dot_bf16(Vec acc, BF16Pairs w, uint32x4_t x) {
  const bfloat16x8_t pair = vreinterpretq_bf16_u32(x);
  return each<Vec>([pair](auto sum, auto numbers)
                       DRAGOMAN_QUARTER { return vbfdotq_f32(sum, vreinterpretq_bf16_u32(numbers), pair); },
                   acc, w);
}
DRAGOMAN_INLINE Vec dot_bf16_pairs(Vec acc, BF16Pairs w, std::uint32_t x) { return dot_bf16(acc, w, vdupq_n_u32(x)); }
#else
DRAGOMAN_INLINE Vec dot_bf16_pairs(Vec acc, BF16Pairs w, std::uint32_t x) {
  const float32x4_t one = vdupq_n_f32(bits_to_float(x << 16)), two = vdupq_n_f32(bits_to_float(x & 0xffff0000u));
  return each<Vec>(
      [one, two](auto sum, auto pairs) DRAGOMAN_QUARTER {
        sum = vfmaq_f32(sum, vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)), one);
        return vfmaq_f32(sum, vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u))), two);
      },
      acc, w);
}
#endif

// The first and the second number of 16 pairs.
struct I16Pairs {
  int16x8_t first_low, first_high, second_low, second_high;
};
using Sums = Ints;

DRAGOMAN_INLINE Sums no_sums() { return broadcast_int(0); }
DRAGOMAN_INLINE I16Pairs widen_pairs(const std::int8_t* p) {
  const int8x16x2_t pairs = vld2q_s8(p);
  return {vmovl_s8(vget_low_s8(pairs.val[0])), vmovl_s8(vget_high_s8(pairs.val[0])),
          vmovl_s8(vget_low_s8(pairs.val[1])), vmovl_s8(vget_high_s8(pairs.val[1]))};
}
struct LevelCodes {
  uint16x8_t a, b, c, d;
};
DRAGOMAN_INLINE LevelCodes load_level_codes(const std::uint8_t* p) {
  const Bytes bytes = load_bytes(p);
  return {vreinterpretq_u16_u8(bytes.a), vreinterpretq_u16_u8(bytes.b), vreinterpretq_u16_u8(bytes.c),
          vreinterpretq_u16_u8(bytes.d)};
}
// A code is brought into the upper byte of its half, the lookup puts its level there, and the shift sign-extends it.
template <int J>
DRAGOMAN_INLINE int16x8_t level_quarter(uint16x8_t a) {
  const int8x16_t table = vld1q_s8(kLevels);
  const uint16x8_t upper = vshlq_u16(a, vdupq_n_s16(8 - 4 * J)), codes = vandq_u16(upper, vdupq_n_u16(0x0f00));
  return vshrq_n_s16(vreinterpretq_s16_s8(vqtbl1q_s8(table, vreinterpretq_u8_u16(codes))), 8);
}
template <int J>
DRAGOMAN_INLINE I16Pairs level_pairs(LevelCodes codes) {
  const int16x8_t a = level_quarter<J>(codes.a), b = level_quarter<J>(codes.b);
  const int16x8_t c = level_quarter<J>(codes.c), d = level_quarter<J>(codes.d);
  return {vuzp1q_s16(a, b), vuzp1q_s16(c, d), vuzp2q_s16(a, b), vuzp2q_s16(c, d)};
}
DRAGOMAN_INLINE Sums add_pair_products(Sums sums, I16Pairs a, std::int32_t pair) {
  const int16x4_t b = vreinterpret_s16_s32(vdup_n_s32(pair));
  sums.a = vmlal_lane_s16(sums.a, vget_low_s16(a.first_low), b, 0);
  sums.b = vmlal_high_lane_s16(sums.b, a.first_low, b, 0);
  sums.c = vmlal_lane_s16(sums.c, vget_low_s16(a.first_high), b, 0);
  sums.d = vmlal_high_lane_s16(sums.d, a.first_high, b, 0);
  sums.a = vmlal_lane_s16(sums.a, vget_low_s16(a.second_low), b, 1);
  sums.b = vmlal_high_lane_s16(sums.b, a.second_low, b, 1);
  sums.c = vmlal_lane_s16(sums.c, vget_low_s16(a.second_high), b, 1);
  sums.d = vmlal_high_lane_s16(sums.d, a.second_high, b, 1);
  return sums;
}
DRAGOMAN_INLINE Vec to_floats(Sums sums) { return to_float(sums); }
DRAGOMAN_INLINE void store_int16(std::int16_t* p, Vec a) {
  vst1q_s16(p, vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.a)), vqmovn_s32(vcvtnq_s32_f32(a.b))));
  vst1q_s16(p + 8, vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a.c)), vqmovn_s32(vcvtnq_s32_f32(a.d))));
}

struct BF16Arithmetic {
#if defined(DRAGOMAN_NEON_MATRICES)
  static constexpr bool kMultipliesPairs = true;
  using Pairs = BF16Pairs;

  DRAGOMAN_INLINE Pairs load(const std::uint16_t* p) {
    return load_bf16_pairs(reinterpret_cast<const std::uint8_t*>(p));
  }
  DRAGOMAN_INLINE Pairs load_masked(const std::uint16_t* p, int mask) {
    const uint32x4_t kept = vdupq_n_u32(static_cast<std::uint32_t>(mask));
    return each<Pairs>([kept](auto pairs) DRAGOMAN_QUARTER { return vandq_u32(pairs, kept); }, load(p));
  }
  DRAGOMAN_INLINE Pairs repeat(const std::uint16_t* p) {
    const uint32x4_t pair = vdupq_n_u32(load_u32(p));
    return {pair, pair, pair, pair};
  }
  DRAGOMAN_INLINE Vec dot(Vec sum, Pairs a, Pairs b) {
    return each<Vec>(
        [](auto acc, auto x, auto y)
            DRAGOMAN_QUARTER { return vbfdotq_f32(acc, vreinterpretq_bf16_u32(x), vreinterpretq_bf16_u32(y)); },
        sum, a, b);
  }
  DRAGOMAN_INLINE void store_both(std::uint16_t* p, Vec first, Vec second) {
    store_bf16(p, first);
    store_bf16(p + kWidth, second);
  }
#else
  static constexpr bool kMultipliesPairs = false;

  DRAGOMAN_INLINE Vec even(const std::uint16_t* p) {
    return each<Vec>([](auto pairs) DRAGOMAN_QUARTER { return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16)); },
                     load_bf16_pairs(reinterpret_cast<const std::uint8_t*>(p)));
  }
  DRAGOMAN_INLINE Vec odd(const std::uint16_t* p) {
    return each<Vec>([](auto pairs)
                         DRAGOMAN_QUARTER { return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u))); },
                     load_bf16_pairs(reinterpret_cast<const std::uint8_t*>(p)));
  }
#endif
};

#undef DRAGOMAN_QUARTER

}  // namespace dragoman::DRAGOMAN_ISA

#include "simd/lanes.h"
#include "simd/quantize_lanes.h"
#include "simd/three_bits.h"
#if defined(DRAGOMAN_NEON_MATRICES)
#include "simd/neon_matrix_tiles.h"
#endif
