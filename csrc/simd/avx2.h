// AVX2 with FMA and F16C, and with AVX-VNNI's products of bytes where the compiler may use them. The contract of each
// name is in portable.h.
#pragma once

#include <immintrin.h>

#include "gemm/linear.h"
#include "simd/scalar.h"

namespace dragoman::DRAGOMAN_ISA {

// AVX-VNNI needs no registers for what is between a product and its sum, so there is room for more chains.
#if defined(__AVXVNNI__)
constexpr int kWideRows = 6;
#else
constexpr int kWideRows = 4;
#endif

constexpr Tuning kTuning{
    .quantized_rows = 4,
    .wide_rows = kWideRows,
    .float_rows = 4,
    .together_rows = 1,
    .assembly_rows = kNever,
    .ahead_rows_bfloat16 = kNever,
    .ahead_rows_int8 = 1,  // its arithmetic with one row costs as much as that of several rows with AVX-512
    .ahead_rows_int4 = 1,
    .ahead_rows_chunked = 1,
    .ahead_bytes = 7168,
    .score_rows = 2,
    .weigh_rows = 1,
    .weigh_vectors = 2,
    .turn_lanes = 8,
    .shrink_rows = 1,
    .expand_rows = 2,
    .peak_chains = 4,  // of two registers each
};

struct Vec {
  __m256 lo, hi;
};
using ActGroupVecs = Vec[kWeightGroups][2];
struct Power {
  Vec whole, fraction;
};

DRAGOMAN_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
DRAGOMAN_INLINE void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
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
DRAGOMAN_INLINE Vec broadcast(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
DRAGOMAN_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
DRAGOMAN_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
DRAGOMAN_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
DRAGOMAN_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
DRAGOMAN_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
DRAGOMAN_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
DRAGOMAN_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
DRAGOMAN_INLINE Vec abs(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
DRAGOMAN_INLINE Vec sqrt(Vec a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
DRAGOMAN_INLINE Vec round(Vec a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
DRAGOMAN_INLINE Vec floor(Vec a) { return {_mm256_floor_ps(a.lo), _mm256_floor_ps(a.hi)}; }
DRAGOMAN_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
DRAGOMAN_INLINE __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
DRAGOMAN_INLINE __m256 scale_half(__m256 a, __m256 n) {
  // In two steps, since 2ⁿ itself may overflow a float.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  return _mm256_mul_ps(_mm256_mul_ps(a, power_of_two(first)), power_of_two(second));
}
DRAGOMAN_INLINE Vec scale_by_power(Vec a, Vec n) { return {scale_half(a.lo, n.lo), scale_half(a.hi, n.hi)}; }
DRAGOMAN_INLINE Power split_power(Vec x) {
  const Vec bounded = max(broadcast(-200.0f), x), whole = floor(bounded);
  return {whole, bounded - whole};
}
DRAGOMAN_INLINE __m256 bf16_half(const std::uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
DRAGOMAN_INLINE Vec load_bf16(const std::uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }
DRAGOMAN_INLINE __m256i round_bf16_half(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
DRAGOMAN_INLINE void store_bf16(std::uint16_t* p, Vec a) {
  const __m256i packed = _mm256_packus_epi32(round_bf16_half(a.lo), round_bf16_half(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
DRAGOMAN_INLINE Vec load_fp16(const std::uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
DRAGOMAN_INLINE void store_fp16(std::uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
DRAGOMAN_INLINE __m256 low_half(Vec a) { return a.lo; }
DRAGOMAN_INLINE __m256 high_half(Vec a) { return a.hi; }

struct LanesOfMask {
  std::uint8_t places[256][8];  // of the set bits, then any
};
constexpr LanesOfMask lanes_of_mask() {
  LanesOfMask lanes{};
  for (int mask = 0; mask < 256; ++mask) {
    for (int i = 0, count = 0; i < 8; ++i) {
      if ((mask >> i & 1) != 0) lanes.places[mask][count++] = static_cast<std::uint8_t>(i);
    }
  }
  return lanes;
}
constexpr LanesOfMask kLanesOfMask = lanes_of_mask();
DRAGOMAN_INLINE long append_reaching_half(__m256 a, __m256 floor, std::int32_t first, std::int32_t* ids,
                                          float* values) {
  const auto mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, floor, _CMP_GE_OQ)));
  const __m256i lanes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLanesOfMask.places[mask])));
  _mm256_storeu_ps(values, _mm256_permutevar8x32_ps(a, lanes));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(ids), _mm256_add_epi32(lanes, _mm256_set1_epi32(first)));
  return __builtin_popcount(mask);
}
DRAGOMAN_INLINE long append_reaching(Vec a, float floor, long first, std::int32_t* ids, float* values) {
  const __m256 least = _mm256_set1_ps(floor);
  const auto id = static_cast<std::int32_t>(first);
  const long count = append_reaching_half(a.lo, least, id, ids, values);
  return count + append_reaching_half(a.hi, least, id + 8, ids + count, values + count);
}

DRAGOMAN_INLINE long move_between_half(__m256 x, __m256 low, __m256 high, long from, long to, std::int32_t* ids,
                                       float* a, float* b) {
  const __m256 between = _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_GE_OQ), _mm256_cmp_ps(x, high, _CMP_LE_OQ));
  const auto mask = static_cast<unsigned>(_mm256_movemask_ps(between));
  const __m256i lanes =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(kLanesOfMask.places[mask])));
  const __m256i id = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + from));
  const __m256 first = _mm256_loadu_ps(a + from), second = _mm256_loadu_ps(b + from);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(ids + to), _mm256_permutevar8x32_epi32(id, lanes));
  _mm256_storeu_ps(a + to, _mm256_permutevar8x32_ps(first, lanes));
  _mm256_storeu_ps(b + to, _mm256_permutevar8x32_ps(second, lanes));
  return __builtin_popcount(mask);
}
DRAGOMAN_INLINE long move_between(Vec x, Vec low, Vec high, long from, long to, std::int32_t* ids, float* a, float* b) {
  const long count = move_between_half(x.lo, low.lo, high.lo, from, to, ids, a, b);
  return count + move_between_half(x.hi, low.hi, high.hi, from + 8, to + count, ids, a, b);
}

struct WideSums {
  __m256d v[4];
};
DRAGOMAN_INLINE WideSums no_wide_sums() { return {}; }
DRAGOMAN_INLINE void add_widened(WideSums& sums, Vec a) {
  sums.v[0] = _mm256_add_pd(sums.v[0], _mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)));
  sums.v[1] = _mm256_add_pd(sums.v[1], _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)));
  sums.v[2] = _mm256_add_pd(sums.v[2], _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)));
  sums.v[3] = _mm256_add_pd(sums.v[3], _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1)));
}
DRAGOMAN_INLINE void store_wide(double* p, const WideSums& a) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}

struct Longs {
  __m256i lo, hi;
};
DRAGOMAN_INLINE Longs broadcast_long(std::uint64_t a) {
  const __m256i all = _mm256_set1_epi64x(static_cast<long long>(a));
  return {all, all};
}
DRAGOMAN_INLINE Longs count_from(std::uint64_t a) {
  const __m256i first = _mm256_set1_epi64x(static_cast<long long>(a));
  return {_mm256_add_epi64(first, _mm256_setr_epi64x(0, 1, 2, 3)),
          _mm256_add_epi64(first, _mm256_setr_epi64x(4, 5, 6, 7))};
}
DRAGOMAN_INLINE void store_interleaved_half(std::uint64_t* p, __m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab_even = _mm256_unpacklo_epi64(a, b), ab_odd = _mm256_unpackhi_epi64(a, b);
  const __m256i cd_even = _mm256_unpacklo_epi64(c, d), cd_odd = _mm256_unpackhi_epi64(c, d);
  __m256i* const to = reinterpret_cast<__m256i*>(p);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(ab_even, cd_even, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(ab_odd, cd_odd, 0x20));
  _mm256_storeu_si256(to + 2, _mm256_permute2x128_si256(ab_even, cd_even, 0x31));
  _mm256_storeu_si256(to + 3, _mm256_permute2x128_si256(ab_odd, cd_odd, 0x31));
}
DRAGOMAN_INLINE void store_interleaved(std::uint64_t* p, const Longs (&a)[4]) {
  store_interleaved_half(p, a[0].lo, a[1].lo, a[2].lo, a[3].lo);
  store_interleaved_half(p + 16, a[0].hi, a[1].hi, a[2].hi, a[3].hi);
}
DRAGOMAN_INLINE Longs operator^(Longs a, Longs b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
// As on paper, with digits of 32 bits.
DRAGOMAN_INLINE __m256i multiply_wide_half(__m256i a, std::uint64_t factor, __m256i& high) {
  const __m256i digit = _mm256_set1_epi64x(0xffffffff), upper = _mm256_srli_epi64(a, 32);
  const __m256i f0 = _mm256_set1_epi64x(static_cast<long long>(factor & 0xffffffff));
  const __m256i f1 = _mm256_set1_epi64x(static_cast<long long>(factor >> 32));
  const __m256i low = _mm256_mul_epu32(a, f0);
  const __m256i middle = _mm256_add_epi64(_mm256_mul_epu32(upper, f0), _mm256_srli_epi64(low, 32));
  const __m256i other = _mm256_add_epi64(_mm256_mul_epu32(a, f1), _mm256_and_si256(middle, digit));
  high = _mm256_add_epi64(_mm256_add_epi64(_mm256_mul_epu32(upper, f1), _mm256_srli_epi64(middle, 32)),
                          _mm256_srli_epi64(other, 32));
  return _mm256_blend_epi32(low, _mm256_slli_epi64(other, 32), 0xaa);
}
DRAGOMAN_INLINE Longs multiply_wide(Longs a, std::uint64_t factor, Longs& high) {
  return {multiply_wide_half(a.lo, factor, high.lo), multiply_wide_half(a.hi, factor, high.hi)};
}

DRAGOMAN_INLINE __m256 add_where_at_most_half(__m256 a, const std::uint32_t* words, __m256i most, __m256 b) {
  const __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
  const __m256i adds = _mm256_cmpeq_epi32(_mm256_min_epu32(word, most), word);
  return _mm256_blendv_ps(a, _mm256_add_ps(a, b), _mm256_castsi256_ps(adds));
}
DRAGOMAN_INLINE Vec add_where_at_most(Vec a, const std::uint32_t* words, std::uint32_t most, Vec b) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(most));
  return {add_where_at_most_half(a.lo, words, all, b.lo), add_where_at_most_half(a.hi, words + 8, all, b.hi)};
}

DRAGOMAN_INLINE long rows_to_fetch_from(long tuned) { return tuned; }
DRAGOMAN_INLINE void prefetch_here(const std::uint8_t* line) { __builtin_prefetch(line, 0, 2); }
template <class Sum>
DRAGOMAN_INLINE void hold(Sum&) {}

struct Ints {
  __m256i lo, hi;
};
using Bytes = Ints;
using BF16Pairs = Ints;

DRAGOMAN_INLINE Ints broadcast_int(std::int32_t a) { return {_mm256_set1_epi32(a), _mm256_set1_epi32(a)}; }
DRAGOMAN_INLINE Vec to_float(Ints a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
DRAGOMAN_INLINE Bytes load_bytes(const std::uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
DRAGOMAN_INLINE Bytes low_nibbles(Bytes a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
DRAGOMAN_INLINE Bytes high_nibbles(Bytes a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(a.lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(a.hi, 4), mask)};
}
#if defined(__AVXVNNI__)
constexpr bool kBytesAreSigned = false;

DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  const __m256i quad = _mm256_set1_epi32(static_cast<int>(x));
  return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, quad), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, quad)};
}
DRAGOMAN_INLINE Ints begin_nibbles(std::int32_t start) { return broadcast_int(start); }
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Ints end_nibbles(Ints acc, std::int32_t) { return acc; }
DRAGOMAN_INLINE Ints dot_codes(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
#else
constexpr bool kBytesAreSigned = true;

// Keeps the compiler from summing products separately from their accumulator: it then runs out of registers, and a tile
// took twice as long.
DRAGOMAN_INLINE __m256i add_in_order(__m256i acc, __m256i products) {
  acc = _mm256_add_epi32(acc, products);
  asm("" : "+x"(acc));
  return acc;
}
// VPMADDUBSW adds two products in 16 bits, which w up to 255 would overflow; with |w − 128| and x of the sign of that,
// two products are at most 2 · 128 · 127. The sum is that of w − 128: kBytesAreSigned.
DRAGOMAN_INLINE __m256i dot_bytes_half(__m256i acc, __m256i w, __m256i x) {
  const __m256i value = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  __m256i signed_x = _mm256_sign_epi8(x, value);
  asm volatile("" : "+x"(signed_x));  // otherwise multiply_peak() would multiply once and only add
  const __m256i products = _mm256_maddubs_epi16(_mm256_abs_epi8(value), signed_x);
  return add_in_order(acc, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
}
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  const __m256i quad = _mm256_set1_epi32(static_cast<int>(x));
  return {dot_bytes_half(acc.lo, w.lo, quad), dot_bytes_half(acc.hi, w.hi, quad)};
}
// The sixteen products of a group that fall to one half of a lane, at most 15 · 127 each, fit its 16 bits.
DRAGOMAN_INLINE Ints begin_nibbles(std::int32_t) { return broadcast_int(0); }
DRAGOMAN_INLINE __m256i dot_nibbles_half(__m256i acc, __m256i w, __m256i x) {
  acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
  asm("" : "+x"(acc));
  return acc;
}
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) {
  const __m256i quad = _mm256_set1_epi32(static_cast<int>(x));
  return {dot_nibbles_half(acc.lo, w.lo, quad), dot_nibbles_half(acc.hi, w.hi, quad)};
}
DRAGOMAN_INLINE Ints end_nibbles(Ints acc, std::int32_t start) {
  const __m256i ones = _mm256_set1_epi16(1), first = _mm256_set1_epi32(start);
  return {_mm256_add_epi32(first, _mm256_madd_epi16(acc.lo, ones)),
          _mm256_add_epi32(first, _mm256_madd_epi16(acc.hi, ones))};
}
DRAGOMAN_INLINE __m256i dot_codes_half(__m256i acc, __m256i w, __m256i x) {
  return add_in_order(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
DRAGOMAN_INLINE Ints dot_codes(Ints acc, Bytes w, std::uint32_t x) {
  const __m256i quad = _mm256_set1_epi32(static_cast<int>(x));
  return {dot_codes_half(acc.lo, w.lo, quad), dot_codes_half(acc.hi, w.hi, quad)};
}
#endif
DRAGOMAN_INLINE Bytes no_bytes() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
DRAGOMAN_INLINE __m256i join_half(__m256i base, __m256i plane, int from, int count, int to) {
  const __m256i moved = from > to ? _mm256_srli_epi16(plane, from - to) : _mm256_slli_epi16(plane, to - from);
  return _mm256_or_si256(base, _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(((1 << count) - 1) << to))));
}
DRAGOMAN_INLINE Bytes join_bits(Bytes base, Bytes plane, int from, int count, int to) {
  return {join_half(base.lo, plane.lo, from, count, to), join_half(base.hi, plane.hi, from, count, to)};
}
using Table = __m256i;
DRAGOMAN_INLINE Table load_table(const std::uint8_t* entries) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
}
DRAGOMAN_INLINE Bytes look_up_low(Table table, Bytes codes) {
  const Bytes places = low_nibbles(codes);
  return {_mm256_shuffle_epi8(table, places.lo), _mm256_shuffle_epi8(table, places.hi)};
}
DRAGOMAN_INLINE Bytes look_up_high(Table table, Bytes codes) {
  const Bytes places = high_nibbles(codes);
  return {_mm256_shuffle_epi8(table, places.lo), _mm256_shuffle_epi8(table, places.hi)};
}
DRAGOMAN_INLINE __m128i load_eight(const std::uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
DRAGOMAN_INLINE Vec load_int8(const std::uint8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_eight(p))),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_eight(p + 8)))};
}
DRAGOMAN_INLINE __m256 half_powers(__m256i exponents) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(exponents, one), 23);
  return _mm256_castsi256_ps(_mm256_max_epi32(normal, _mm256_slli_epi32(_mm256_add_epi32(exponents, one), 21)));
}
DRAGOMAN_INLINE Vec load_half_powers(const std::uint8_t* p) {
  return {half_powers(_mm256_cvtepu8_epi32(load_eight(p))), half_powers(_mm256_cvtepu8_epi32(load_eight(p + 8)))};
}
DRAGOMAN_INLINE BF16Pairs load_bf16_pairs(const std::uint8_t* p) { return load_bytes(p); }
DRAGOMAN_INLINE Vec dot_bf16_pairs(Vec acc, BF16Pairs w, std::uint32_t x) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const Vec first{_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
  const Vec second{_mm256_castsi256_ps(_mm256_and_si256(w.lo, upper)),
                   _mm256_castsi256_ps(_mm256_and_si256(w.hi, upper))};
  acc = fma(first, broadcast(bits_to_float(x << 16)), acc);
  return fma(second, broadcast(bits_to_float(x & 0xffff0000u)), acc);
}

struct Sums {
  __m256i lo, hi;
};
struct I16Pairs {
  __m256i lo, hi;
};

DRAGOMAN_INLINE Sums no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
DRAGOMAN_INLINE I16Pairs widen_pairs(const std::int8_t* p) {
  const __m128i* const halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(halves)), _mm256_cvtepi8_epi16(_mm_loadu_si128(halves + 1))};
}
using LevelCodes = Ints;
DRAGOMAN_INLINE LevelCodes load_level_codes(const std::uint8_t* p) { return load_bytes(p); }
// A code is brought into the upper byte of its half, the lookup puts its level there, and the shift sign-extends it.
template <int J>
DRAGOMAN_INLINE __m256i level_pairs_half(__m256i a) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kLevels)));
  const __m256i upper =
      J < 2 ? _mm256_slli_epi16(a, J < 2 ? 8 - 4 * J : 0) : _mm256_srli_epi16(a, J < 2 ? 0 : 4 * J - 8);
  const __m256i codes = _mm256_and_si256(upper, _mm256_set1_epi16(0x0f00));
  return _mm256_srai_epi16(_mm256_shuffle_epi8(table, codes), 8);
}
template <int J>
DRAGOMAN_INLINE I16Pairs level_pairs(LevelCodes a) {
  return {level_pairs_half<J>(a.lo), level_pairs_half<J>(a.hi)};
}
DRAGOMAN_INLINE Sums add_pair_products(Sums sums, I16Pairs a, std::int32_t pair) {
  const __m256i b = _mm256_set1_epi32(pair);
#if defined(__AVXVNNI__)
  return {_mm256_dpwssd_avx_epi32(sums.lo, a.lo, b), _mm256_dpwssd_avx_epi32(sums.hi, a.hi, b)};
#else
  return {_mm256_add_epi32(sums.lo, _mm256_madd_epi16(a.lo, b)), _mm256_add_epi32(sums.hi, _mm256_madd_epi16(a.hi, b))};
#endif
}
DRAGOMAN_INLINE Vec to_floats(Sums sums) { return {_mm256_cvtepi32_ps(sums.lo), _mm256_cvtepi32_ps(sums.hi)}; }
DRAGOMAN_INLINE void store_int16(std::int16_t* p, Vec a) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

struct BF16Arithmetic {
  static constexpr bool kMultipliesPairs = false;

  DRAGOMAN_INLINE Vec even(const std::uint16_t* p) {
    const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kWidth));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
  }
  DRAGOMAN_INLINE Vec odd(const std::uint16_t* p) {
    const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kWidth));
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(hi, mask))};
  }
};

}  // namespace dragoman::DRAGOMAN_ISA

#include "simd/quantize_lanes.h"
#include "simd/three_bits.h"
#include "simd/x86.h"
