// AVX-512 with VNNI, and with products of bfloat16 and permutations of bytes (BF16, VBMI) where the compiler may use
// them. The contract of each name is in portable.h.
#pragma once

#include <immintrin.h>

#include "gemm/linear.h"
#include "simd/scalar.h"

namespace dragoman {
bool is_intel();
}

namespace dragoman::DRAGOMAN_ISA {

constexpr Tuning kTuning{
    .quantized_rows = 6,
    .wide_rows = 8,
    .float_rows = 8,
    .together_rows = 8,
    .assembly_rows = 5,  // with fewer, reading the weights takes longer than multiplying
    .ahead_rows_bfloat16 = 5,
    .ahead_rows_int8 = 5,
    .ahead_rows_int4 = 3,
    .ahead_rows_chunked = 2,
    .ahead_bytes = 7168,  // more than 8 KiB costs 5 % where both cores share a memory link
    .score_rows = 8,      // 16 accumulators of 32 registers
    .weigh_rows = 4,
    .weigh_vectors = 4,
    .turn_lanes = 16,
    .shrink_rows = 4,
    .expand_rows = 4,
    .peak_chains = 12,
};

struct Vec {
  __m512 v;
};
using ActGroupVecs = Vec[kWeightGroups][2];
struct Power {
  Vec whole, fraction;
};

DRAGOMAN_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
DRAGOMAN_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
DRAGOMAN_INLINE Vec load_partial(const float* p, long n) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p)};
}
DRAGOMAN_INLINE void store_partial(float* p, Vec a, long n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), a.v);
}
DRAGOMAN_INLINE Vec broadcast(float a) { return {_mm512_set1_ps(a)}; }
DRAGOMAN_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
DRAGOMAN_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
DRAGOMAN_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
DRAGOMAN_INLINE Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
DRAGOMAN_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
DRAGOMAN_INLINE Vec scale_by_power(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }
DRAGOMAN_INLINE Vec load_bf16(const std::uint16_t* p) {
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
}
DRAGOMAN_INLINE void store_bf16(std::uint16_t* p, Vec a) {
  // Not VCVTNEPS2BF16: it flushes denormals, and the other instruction sets must agree.
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i all = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16)));
}
DRAGOMAN_INLINE Vec load_fp16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
DRAGOMAN_INLINE void store_fp16(std::uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
// The scaling instruction takes the floor of its power; the fraction of an infinity is 0.
DRAGOMAN_INLINE Power split_power(Vec x) {
  return {x, {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}};
}

DRAGOMAN_INLINE __m256 low_half(Vec a) { return _mm512_castps512_ps256(a.v); }
DRAGOMAN_INLINE __m256 high_half(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }

// The compiler would place all prefetches of a loop's body together: products of 8 rows took 3 to 9 % longer.
DRAGOMAN_INLINE void prefetch_here(const std::uint8_t* line) { asm volatile("prefetcht1 %0" : : "m"(*line)); }
// Without it, steps of one to four sequences took 6 to 9 % longer on a Xeon; a Zen 4 reads at full speed.
DRAGOMAN_INLINE long rows_to_fetch_from(long tuned) { return is_intel() ? 1 : tuned; }
DRAGOMAN_INLINE void hold(Vec& sum) { asm volatile("" : "+v"(sum.v)); }
DRAGOMAN_INLINE void hold(__m512i& sum) { asm volatile("" : "+v"(sum)); }

using Ints = __m512i;
using Bytes = __m512i;
using BF16Pairs = __m512i;

DRAGOMAN_INLINE long append_reaching(Vec a, float floor, long first, std::int32_t* ids, float* values) {
  const __mmask16 mask = _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(floor), _CMP_GE_OQ);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i places = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<std::int32_t>(first)));
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(mask, a.v));
  _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32(mask, places));
  return __builtin_popcount(mask);
}

DRAGOMAN_INLINE long move_between(Vec x, Vec low, Vec high, long from, long to, std::int32_t* ids, float* a, float* b) {
  const __mmask16 above = _mm512_cmp_ps_mask(x.v, low.v, _CMP_GE_OQ);
  const __mmask16 mask = _mm512_mask_cmp_ps_mask(above, x.v, high.v, _CMP_LE_OQ);
  const __m512i id = _mm512_loadu_si512(ids + from);
  const Vec first = load(a + from), second = load(b + from);
  _mm512_storeu_si512(ids + to, _mm512_maskz_compress_epi32(mask, id));
  _mm512_storeu_ps(a + to, _mm512_maskz_compress_ps(mask, first.v));
  _mm512_storeu_ps(b + to, _mm512_maskz_compress_ps(mask, second.v));
  return __builtin_popcount(mask);
}

// Sums of each element, in float64.
struct WideSums {
  __m512d lo, hi;
};
DRAGOMAN_INLINE WideSums no_wide_sums() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
DRAGOMAN_INLINE void add_widened(WideSums& sums, Vec a) {
  sums.lo = _mm512_add_pd(sums.lo, _mm512_cvtps_pd(low_half(a)));
  sums.hi = _mm512_add_pd(sums.hi, _mm512_cvtps_pd(high_half(a)));
}
DRAGOMAN_INLINE void store_wide(double* p, WideSums a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}

struct Longs {
  __m512i v;
};
DRAGOMAN_INLINE Longs broadcast_long(std::uint64_t a) { return {_mm512_set1_epi64(static_cast<long long>(a))}; }
DRAGOMAN_INLINE Longs count_from(std::uint64_t a) {
  return {_mm512_add_epi64(broadcast_long(a).v, _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7))};
}
DRAGOMAN_INLINE void store_interleaved(std::uint64_t* p, const Longs (&a)[4]) {
  const __m512i rows[] = {_mm512_unpacklo_epi64(a[0].v, a[1].v), _mm512_unpacklo_epi64(a[2].v, a[3].v),
                          _mm512_unpackhi_epi64(a[0].v, a[1].v), _mm512_unpackhi_epi64(a[2].v, a[3].v)};
  // Pairs of numbers: the transpose of 4 × 4 of them.
  const __m512i lower[] = {_mm512_shuffle_i64x2(rows[0], rows[1], 0x44), _mm512_shuffle_i64x2(rows[2], rows[3], 0x44)};
  const __m512i upper[] = {_mm512_shuffle_i64x2(rows[0], rows[1], 0xee), _mm512_shuffle_i64x2(rows[2], rows[3], 0xee)};
  _mm512_storeu_si512(p, _mm512_shuffle_i64x2(lower[0], lower[1], 0x88));
  _mm512_storeu_si512(p + 8, _mm512_shuffle_i64x2(lower[0], lower[1], 0xdd));
  _mm512_storeu_si512(p + 16, _mm512_shuffle_i64x2(upper[0], upper[1], 0x88));
  _mm512_storeu_si512(p + 24, _mm512_shuffle_i64x2(upper[0], upper[1], 0xdd));
}
DRAGOMAN_INLINE Longs operator^(Longs a, Longs b) { return {_mm512_xor_si512(a.v, b.v)}; }
// As on paper, with digits of 32 bits.
DRAGOMAN_INLINE Longs multiply_wide(Longs a, std::uint64_t factor, Longs& high) {
  const __m512i digit = _mm512_set1_epi64(0xffffffff), upper = _mm512_srli_epi64(a.v, 32);
  const __m512i f0 = _mm512_set1_epi64(static_cast<long long>(factor & 0xffffffff));
  const __m512i f1 = _mm512_set1_epi64(static_cast<long long>(factor >> 32));
  const __m512i low = _mm512_mul_epu32(a.v, f0);
  const __m512i middle = _mm512_add_epi64(_mm512_mul_epu32(upper, f0), _mm512_srli_epi64(low, 32));
  const __m512i other = _mm512_add_epi64(_mm512_mul_epu32(a.v, f1), _mm512_and_si512(middle, digit));
  high.v = _mm512_add_epi64(_mm512_add_epi64(_mm512_mul_epu32(upper, f1), _mm512_srli_epi64(middle, 32)),
                            _mm512_srli_epi64(other, 32));
  return {_mm512_mask_blend_epi32(0xaaaa, low, _mm512_slli_epi64(other, 32))};
}

DRAGOMAN_INLINE Vec add_where_at_most(Vec a, const std::uint32_t* words, std::uint32_t most, Vec b) {
  const __mmask16 adds = _mm512_cmple_epu32_mask(_mm512_loadu_si512(words), _mm512_set1_epi32(static_cast<int>(most)));
  return {_mm512_mask_add_ps(a.v, adds, a.v, b.v)};
}

constexpr bool kBytesAreSigned = false;

DRAGOMAN_INLINE Ints broadcast_int(std::int32_t a) { return _mm512_set1_epi32(a); }
DRAGOMAN_INLINE Vec to_float(Ints a) { return {_mm512_cvtepi32_ps(a)}; }
DRAGOMAN_INLINE Bytes load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
DRAGOMAN_INLINE Bytes low_nibbles(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
DRAGOMAN_INLINE Bytes high_nibbles(Bytes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(static_cast<int>(x)));
}
DRAGOMAN_INLINE Ints begin_nibbles(std::int32_t start) { return broadcast_int(start); }
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Ints end_nibbles(Ints acc, std::int32_t) { return acc; }
DRAGOMAN_INLINE Ints dot_codes(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Bytes no_bytes() { return _mm512_setzero_si512(); }
DRAGOMAN_INLINE Bytes join_bits(Bytes base, Bytes plane, int from, int count, int to) {
  const __m512i moved = from > to ? _mm512_srli_epi16(plane, static_cast<unsigned>(from - to))
                                  : _mm512_slli_epi16(plane, static_cast<unsigned>(to - from));
  return _mm512_ternarylogic_epi32(base, moved, _mm512_set1_epi8(static_cast<char>(((1 << count) - 1) << to)), 0xf8);
}
#if defined(__AVX512VBMI__)
// The lower bits of two codes and their upper ones are brought together, and two lookups take a code each. With a shift
// and a mask for each part of a code, one row of Q3_K took 1.3 times as long in the caches.
struct ThreeBits {
  __m512i first, second;
};
struct ThreeBitTables {
  std::uint8_t first[64], second[64];
};
constexpr ThreeBitTables three_bit_tables() {
  ThreeBitTables tables{};
  for (int i = 0; i < 64; ++i) {
    tables.first[i] = static_cast<std::uint8_t>((i & 3) | (i >> 4 & 1) << 2);
    tables.second[i] = static_cast<std::uint8_t>((i >> 2 & 3) | (i >> 5 & 1) << 2);
  }
  return tables;
}
alignas(64) constexpr ThreeBitTables kThreeBitTables = three_bit_tables();
DRAGOMAN_INLINE ThreeBits load_three_bits() {
  return {_mm512_loadu_si512(kThreeBitTables.first), _mm512_loadu_si512(kThreeBitTables.second)};
}
DRAGOMAN_INLINE void open_three_bits(const ThreeBits& tables, Bytes low, Bytes high, int p, Bytes& first,
                                     Bytes& second) {
  const __m512i four = p % 2 == 0 ? low : _mm512_srli_epi16(low, 4);
  const __m512i third = p < 2 ? _mm512_slli_epi16(high, static_cast<unsigned>(4 - 2 * p))
                              : _mm512_srli_epi16(high, static_cast<unsigned>(2 * p - 4));
  const __m512i both = _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), four, third, 0xca);  // the mask chooses
  first = _mm512_permutexvar_epi8(both, tables.first);
  second = _mm512_permutexvar_epi8(both, tables.second);
}
#endif
using Table = __m512i;
DRAGOMAN_INLINE Table load_table(const std::uint8_t* entries) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
}
#if defined(__AVX512VBMI__)
// The permutation looks at six bits of an index: what stands above the four of a code need not be cleared.
DRAGOMAN_INLINE Bytes look_up_low(Table table, Bytes codes) { return _mm512_permutexvar_epi8(codes, table); }
DRAGOMAN_INLINE Bytes look_up_high(Table table, Bytes codes) {
  return _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table);
}
#else
DRAGOMAN_INLINE Bytes look_up_low(Table table, Bytes codes) { return _mm512_shuffle_epi8(table, low_nibbles(codes)); }
DRAGOMAN_INLINE Bytes look_up_high(Table table, Bytes codes) { return _mm512_shuffle_epi8(table, high_nibbles(codes)); }
#endif
DRAGOMAN_INLINE Vec load_int8(const std::uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
DRAGOMAN_INLINE Vec load_half_powers(const std::uint8_t* p) {
  const __m512i exponents = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(exponents, _mm512_set1_epi32(1)), 23);
  const __m512i small = _mm512_slli_epi32(_mm512_add_epi32(exponents, _mm512_set1_epi32(1)), 21);
  return {_mm512_castsi512_ps(_mm512_max_epi32(normal, small))};
}
DRAGOMAN_INLINE BF16Pairs load_bf16_pairs(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
#if defined(__AVX512BF16__)
DRAGOMAN_INLINE Vec dot_bf16_pairs(Vec acc, BF16Pairs w, std::uint32_t x) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(w),
                           reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x))))};
}
#else
DRAGOMAN_INLINE Vec first_of_pairs(BF16Pairs a) { return {_mm512_castsi512_ps(_mm512_slli_epi32(a, 16))}; }
DRAGOMAN_INLINE Vec second_of_pairs(BF16Pairs a) {
  return {_mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
DRAGOMAN_INLINE Vec dot_bf16_pairs(Vec acc, BF16Pairs w, std::uint32_t x) {
  acc = fma(first_of_pairs(w), broadcast(bits_to_float(x << 16)), acc);
  return fma(second_of_pairs(w), broadcast(bits_to_float(x & 0xffff0000u)), acc);
}
#endif

struct Sums {
  __m512i v;
};
struct I16Pairs {
  __m512i v;
};

DRAGOMAN_INLINE Sums no_sums() { return {_mm512_setzero_si512()}; }
DRAGOMAN_INLINE I16Pairs widen_pairs(const std::int8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
using LevelCodes = __m512i;
DRAGOMAN_INLINE LevelCodes load_level_codes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
// The lookup uses five bits of each half, so the table is there twice.
template <int J>
DRAGOMAN_INLINE I16Pairs level_pairs(LevelCodes a) {
  const __m512i table =
      _mm512_broadcast_i64x4(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kLevels))));
  return {_mm512_permutexvar_epi16(_mm512_srli_epi32(a, 4 * J), table)};
}
DRAGOMAN_INLINE Sums add_pair_products(Sums sums, I16Pairs a, std::int32_t pair) {
  return {_mm512_dpwssd_epi32(sums.v, a.v, _mm512_set1_epi32(pair))};
}
DRAGOMAN_INLINE Vec to_floats(Sums sums) { return {_mm512_cvtepi32_ps(sums.v)}; }
DRAGOMAN_INLINE void store_int16(std::int16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}

struct BF16Arithmetic {
#if defined(__AVX512BF16__)
  static constexpr bool kMultipliesPairs = true;
  using Pairs = __m512bh;

  DRAGOMAN_INLINE Pairs load(const std::uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
  DRAGOMAN_INLINE Pairs load_masked(const std::uint16_t* p, int mask) {
    return (__m512bh)_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(mask));
  }
  DRAGOMAN_INLINE Pairs repeat(const std::uint16_t* p) {
    int both;
    std::memcpy(&both, p, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
  }
  DRAGOMAN_INLINE Vec dot(Vec sum, Pairs a, Pairs b) { return {_mm512_dpbf16_ps(sum.v, a, b)}; }
  DRAGOMAN_INLINE void store_both(std::uint16_t* p, Vec first, Vec second) {
    const __m512bh both = _mm512_cvtne2ps_pbh(second.v, first.v);
    std::memcpy(p, &both, sizeof both);
  }
#else
  static constexpr bool kMultipliesPairs = false;

  DRAGOMAN_INLINE Vec even(const std::uint16_t* p) { return first_of_pairs(_mm512_loadu_si512(p)); }
  DRAGOMAN_INLINE Vec odd(const std::uint16_t* p) { return second_of_pairs(_mm512_loadu_si512(p)); }
#endif
};

DRAGOMAN_INLINE std::int32_t largest_magnitude(Vec a, Vec b, std::int32_t most) {
  const __m512i first = _mm512_castps_si512(abs(a).v), second = _mm512_castps_si512(abs(b).v);
  const std::int32_t here = _mm512_reduce_max_epi32(_mm512_max_epi32(first, second));
  return most > here ? most : here;
}
DRAGOMAN_INLINE std::int32_t store_int8(std::int8_t* q, Vec a, Vec b) {
  const __m512i first = _mm512_cvtps_epi32(a.v), second = _mm512_cvtps_epi32(b.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(first));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtsepi32_epi8(second));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
}
DRAGOMAN_INLINE std::int32_t largest_of_act_group(const ActGroupVecs& groups) {
  __m512i most = _mm512_setzero_si512();  // magnitudes are ordered like their bits
  for (long g = 0; g < kWeightGroups; ++g) {
    for (int half = 0; half < 2; ++half) most = _mm512_max_epi32(most, _mm512_castps_si512(abs(groups[g][half]).v));
  }
  return _mm512_reduce_max_epi32(most);
}
DRAGOMAN_INLINE void store_act_group(const ActGroupVecs& groups, Vec factor, int bias, ActGroup* out) {
  __m256i eights[kWeightGroups];  // the four sums in one vector: summed separately, quantizing took a third longer
  for (long g = 0; g < kWeightGroups; ++g) {
    const __m512i first = _mm512_cvtps_epi32((groups[g][0] * factor).v);
    const __m512i second = _mm512_cvtps_epi32((groups[g][1] * factor).v), both = _mm512_add_epi32(first, second);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q[g]), _mm512_cvtsepi32_epi8(first));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q[g] + 16), _mm512_cvtsepi32_epi8(second));
    eights[g] = _mm256_add_epi32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
  }
  const __m256i halves =
      _mm256_hadd_epi32(_mm256_hadd_epi32(eights[0], eights[1]), _mm256_hadd_epi32(eights[2], eights[3]));
  const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  const __m128i starts = _mm_mullo_epi32(sums, _mm_set1_epi32(-bias)), pairs = _mm_hadd_epi32(starts, starts);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->start), starts);
  _mm_storeu_ps(out->sum, _mm_cvtepi32_ps(sums));
  out->wide_start = _mm_cvtsi128_si32(_mm_hadd_epi32(pairs, pairs));
}

}  // namespace dragoman::DRAGOMAN_ISA

#include "simd/avx512_wide_tile.h"
#if !defined(__AVX512VBMI__)
#include "simd/three_bits.h"
#endif
#include "simd/x86.h"
