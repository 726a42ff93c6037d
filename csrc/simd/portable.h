// An instruction set in the compiler's own vectors: for any processor.
//
// This file defines the contract of the names that avx2.h, avx512.h and future instruction sets provide. The kernels
// are written on these names once, and compute the same operations in the same order everywhere; AVX-512 and AVX2 agree
// to the bit in everything except bfloat16, portable differs where fma() rounds twice.
#pragma once

#include "gemm/linear.h"
#include "simd/scalar.h"

namespace dragoman::DRAGOMAN_ISA {

constexpr Tuning kTuning{
    .quantized_rows = 1,
    .wide_rows = 1,
    .float_rows = 1,
    .together_rows = 0,
    .assembly_rows = kNever,
    .ahead_rows_bfloat16 = kNever,
    .ahead_rows_int8 = 1,
    .ahead_rows_int4 = 1,
    .ahead_rows_chunked = 1,
    .ahead_bytes = 7168,
    .score_rows = 2,
    .weigh_rows = 1,
    .weigh_vectors = 2,
    .turn_lanes = 4,
    .shrink_rows = 1,
    .expand_rows = 1,
    .peak_chains = 2,  // of four registers each
};

// 16 floats. The compiler splits them into registers of the target's baseline.
typedef float Floats __attribute__((vector_size(64)));

struct Vec {
  Floats v;
};
using ActGroupVecs = Vec[kWeightGroups][2];  // the activations of an ActGroup

// For operations that these vectors lack: one element after the other.
#define DRAGOMAN_EACH(expression)                           \
  do {                                                      \
    Vec r;                                                  \
    for (int i = 0; i < kWidth; ++i) r.v[i] = (expression); \
    return r;                                               \
  } while (0)

DRAGOMAN_INLINE Vec load(const float* p) {
  Vec r;
  std::memcpy(&r.v, p, sizeof r.v);
  return r;
}
DRAGOMAN_INLINE void store(float* p, Vec a) { std::memcpy(p, &a.v, sizeof a.v); }
// The first n < 16 floats; the rest is zero.
DRAGOMAN_INLINE Vec load_partial(const float* p, long n) { DRAGOMAN_EACH(i < n ? p[i] : 0.0f); }
DRAGOMAN_INLINE void store_partial(float* p, Vec a, long n) {
  for (long i = 0; i < n; ++i) p[i] = a.v[i];
}
DRAGOMAN_INLINE Vec broadcast(float a) { return {Floats{a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a}}; }
DRAGOMAN_INLINE Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
DRAGOMAN_INLINE Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
DRAGOMAN_INLINE Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
DRAGOMAN_INLINE Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
DRAGOMAN_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
// If either is NaN the result is b.
DRAGOMAN_INLINE Vec max(Vec a, Vec b) { DRAGOMAN_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
DRAGOMAN_INLINE Vec min(Vec a, Vec b) { DRAGOMAN_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
DRAGOMAN_INLINE Vec abs(Vec a) { DRAGOMAN_EACH(bits_to_float(float_to_bits(a.v[i]) & 0x7fffffffu)); }
DRAGOMAN_INLINE Vec sqrt(Vec a) { DRAGOMAN_EACH(__builtin_sqrtf(a.v[i])); }
// Adding and subtracting 1.5 · 2²³ rounds to nearest even, for |a| < 2²²; larger values are returned unchanged.
DRAGOMAN_INLINE float round_one(float a) {
  const float magic = 12582912.0f;
  return a < 4194304.0f && a > -4194304.0f ? (a + magic) - magic : a;
}
// To the nearest integer, ties to even.
DRAGOMAN_INLINE Vec round(Vec a) { DRAGOMAN_EACH(round_one(a.v[i])); }
DRAGOMAN_INLINE float floor_one(float a) {
  const float near = round_one(a);
  return near > a ? near - 1.0f : near;
}
DRAGOMAN_INLINE Vec floor(Vec a) { DRAGOMAN_EACH(floor_one(a.v[i])); }
// a < b ? x : y
DRAGOMAN_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) { DRAGOMAN_EACH(a.v[i] < b.v[i] ? x.v[i] : y.v[i]); }
DRAGOMAN_INLINE float scale_one(float a, float n) {
  const int whole = static_cast<int>(n), first = whole >> 1, second = whole - first;
  return a * bits_to_float(static_cast<std::uint32_t>(first + 127) << 23) *
         bits_to_float(static_cast<std::uint32_t>(second + 127) << 23);
}
// a · 2ⁿ for integral n in [-300, 300]
DRAGOMAN_INLINE Vec scale_by_power(Vec a, Vec n) { DRAGOMAN_EACH(scale_one(a.v[i], n.v[i])); }
// The two parts of a power of 2, for x below 128: scale_by_power(2 to the fraction, whole) is 2ˣ, 0 for −∞.
struct Power {
  Vec whole, fraction;  // fraction in [0, 1)
};
DRAGOMAN_INLINE Power split_power(Vec x) {
  const Vec bounded = max(broadcast(-200.0f), x), whole = floor(bounded);
  return {whole, bounded - whole};
}
DRAGOMAN_INLINE Vec load_bf16(const std::uint16_t* p) { DRAGOMAN_EACH(bf16_to_float(p[i])); }
DRAGOMAN_INLINE void store_bf16(std::uint16_t* p, Vec a) {
  for (int i = 0; i < kWidth; ++i) p[i] = float_to_bf16(a.v[i]);
}
DRAGOMAN_INLINE Vec load_fp16(const std::uint16_t* p) { DRAGOMAN_EACH(half_to_float(p[i])); }
DRAGOMAN_INLINE void store_fp16(std::uint16_t* p, Vec a) {
  for (int i = 0; i < kWidth; ++i) p[i] = float_to_half(a.v[i]);
}

#undef DRAGOMAN_EACH

// Horizontal sum and maximum in one fixed order: lane i with i + 8, then + 4, + 2, + 1.
DRAGOMAN_INLINE float hsum(Vec a) {
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}
DRAGOMAN_INLINE float hmax(Vec a) {
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  }
  return a.v[0];
}

// The horizontal sums of four vectors, each added up in the order of hsum().
DRAGOMAN_INLINE void sum_four(const Vec (&a)[4], float* out) {
  for (int i = 0; i < 4; ++i) out[i] = hsum(a[i]);
}

// From how many rows on a tile that is alone prefetches its weights, where Tuning says `tuned`.
DRAGOMAN_INLINE long rows_to_fetch_from(long tuned) { return tuned; }
// Prefetches a line into the second-level cache, after the additions to a sum before hold(sum).
DRAGOMAN_INLINE void prefetch_here(const std::uint8_t* line) { __builtin_prefetch(line, 0, 2); }
template <class Sum>
DRAGOMAN_INLINE void hold(Sum&) {}

// The dot products of quantized matrices: 16 sums, each of the products of four bytes; and those of bfloat16 matrices.
//
// Four vectors of 16 bytes, the width that every target's baseline has.
typedef std::int32_t Int32s __attribute__((vector_size(16)));
typedef std::int16_t Int16s __attribute__((vector_size(16)));
typedef std::uint16_t UInt16s __attribute__((vector_size(16)));
typedef std::uint8_t UInt8s __attribute__((vector_size(16)));
typedef std::uint32_t UInt32s __attribute__((vector_size(64)));

struct Ints {  // [16] int32
  Int32s v[4];
};
struct Bytes {  // [16][4] uint8
  UInt8s v[4];
};
struct BF16Pairs {  // [16][2] bfloat16
  UInt32s v;
};

// Adds b to the elements whose word of 16 is at most `most`.
DRAGOMAN_INLINE Vec add_where_at_most(Vec a, const std::uint32_t* words, std::uint32_t most, Vec b) {
  for (int i = 0; i < kWidth; ++i) a.v[i] = words[i] <= most ? a.v[i] + b.v[i] : a.v[i];
  return a;
}

// Whether dot_bytes computes with w − 128, so that its accumulator starts at 0 instead of −128 · Σx.
constexpr bool kBytesAreSigned = false;

DRAGOMAN_INLINE Ints broadcast_int(std::int32_t a) {
  const Int32s four{a, a, a, a};
  return {{four, four, four, four}};
}
DRAGOMAN_INLINE Vec to_float(Ints a) {
  Vec r;
  std::int32_t values[16];
  std::memcpy(values, a.v, sizeof values);
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(values[i]);
  return r;
}
DRAGOMAN_INLINE Bytes load_bytes(const std::uint8_t* p) {
  Bytes r;
  std::memcpy(r.v, p, 64);
  return r;
}
DRAGOMAN_INLINE Bytes low_nibbles(Bytes a) {
  for (auto& four : a.v) four = four & static_cast<std::uint8_t>(15);
  return a;
}
DRAGOMAN_INLINE Bytes high_nibbles(Bytes a) {
  for (auto& four : a.v) four = four >> 4;
  return a;
}
// Adds both 16-bit halves of every lane, sign extended, to acc.
DRAGOMAN_INLINE Int32s add_halves(Int32s acc, Int16s a) {
  const auto lanes = reinterpret_cast<Int32s>(a);
  return acc + ((lanes << 16) >> 16) + (lanes >> 16);
}
DRAGOMAN_INLINE Int16s repeat_pair(std::uint32_t first, std::uint32_t second) {
  const auto pair = static_cast<std::int32_t>((first & 0xffffu) | (second << 16));
  return reinterpret_cast<Int16s>(Int32s{pair, pair, pair, pair});
}
// acc[i] + Σⱼ w[i][j] · x[j], exact for unsigned w and signed x. A product of at most 255 · 127 fits 16 bits, which
// even the oldest vector units multiply.
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  std::int8_t quad[4];
  std::memcpy(quad, &x, 4);
  const Int16s even_x = repeat_pair(static_cast<std::uint32_t>(quad[0]), static_cast<std::uint32_t>(quad[2]));
  const Int16s odd_x = repeat_pair(static_cast<std::uint32_t>(quad[1]), static_cast<std::uint32_t>(quad[3]));
  for (int i = 0; i < 4; ++i) {
    const auto lanes = reinterpret_cast<UInt16s>(w.v[i]);
    const auto even = reinterpret_cast<Int16s>(lanes & static_cast<std::uint16_t>(255));
    const auto odd = reinterpret_cast<Int16s>(lanes >> 8);
    acc.v[i] = add_halves(acc.v[i], even * even_x);
    acc.v[i] = add_halves(acc.v[i], odd * odd_x);
  }
  return acc;
}
// The same for w ≤ 15, over a group: from begin_nibbles to end_nibbles, with the same start.
DRAGOMAN_INLINE Ints begin_nibbles(std::int32_t start) { return broadcast_int(start); }
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Ints end_nibbles(Ints acc, std::int32_t) { return acc; }
// The same for w ≤ 127 in any groups.
DRAGOMAN_INLINE Ints dot_codes(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Bytes no_bytes() { return {}; }
// Bits from … from + count of each byte of a plane, at bits `to` … of a base that has none there.
DRAGOMAN_INLINE Bytes join_bits(Bytes base, Bytes plane, int from, int count, int to) {
  const auto mask = static_cast<std::uint8_t>((1 << count) - 1);
  for (int i = 0; i < 4; ++i) base.v[i] = base.v[i] | (((plane.v[i] >> from) & mask) << to);
  return base;
}
// Sixteen numbers, which the low or the high halves of bytes choose from.
struct Table {
  std::uint8_t entries[16];
};
DRAGOMAN_INLINE Table load_table(const std::uint8_t* entries) {
  Table table;
  std::memcpy(table.entries, entries, 16);
  return table;
}
DRAGOMAN_INLINE Bytes look_up_low(const Table& table, Bytes codes) {
  std::uint8_t bytes[64];
  std::memcpy(bytes, codes.v, sizeof bytes);
  for (auto& byte : bytes) byte = table.entries[byte & 15];
  return load_bytes(bytes);
}
DRAGOMAN_INLINE Bytes look_up_high(const Table& table, Bytes codes) { return look_up_low(table, high_nibbles(codes)); }
// 16 integers of 8 bits as floats.
DRAGOMAN_INLINE Vec load_int8(const std::uint8_t* p) {
  Vec r;
  for (int i = 0; i < kWidth; ++i) r.v[i] = static_cast<float>(static_cast<std::int8_t>(p[i]));
  return r;
}
// 2 to the power p[i] - 128, of 16 exponents other than 255: the larger one of a number and a denormal is meant.
DRAGOMAN_INLINE Vec load_half_powers(const std::uint8_t* p) {
  Vec r;
  for (int i = 0; i < kWidth; ++i) {
    const std::uint32_t normal = p[i] < 2 ? 0u : (p[i] - 1u) << 23, small = (p[i] + 1u) << 21;
    r.v[i] = bits_to_float(normal > small ? normal : small);
  }
  return r;
}
DRAGOMAN_INLINE BF16Pairs load_bf16_pairs(const std::uint8_t* p) {
  BF16Pairs r;
  std::memcpy(&r.v, p, 64);
  return r;
}
// acc[i] + Σⱼ w[i][j] · x[j] for the pair x.
DRAGOMAN_INLINE Vec dot_bf16_pairs(Vec acc, BF16Pairs w, std::uint32_t x) {
  const Vec first{reinterpret_cast<Floats>(w.v << 16)};
  const Vec second{reinterpret_cast<Floats>(w.v & 0xffff0000u)};
  acc = fma(first, broadcast(bits_to_float(x << 16)), acc);
  return fma(second, broadcast(bits_to_float(x & 0xffff0000u)), acc);
}

// The dot products of attention on int8 keys and values: 16 sums of 32 bits, and 16 pairs of 16 bits that are
// multiplied with one pair and added to them.
typedef std::int32_t Integers __attribute__((vector_size(64)));

struct Sums {
  Integers v;
};
struct I16Pairs {
  Integers first, second;
};

DRAGOMAN_INLINE Sums no_sums() { return {Integers{}}; }
DRAGOMAN_INLINE I16Pairs widen_pairs(const std::int8_t* p) {
  I16Pairs pairs;
  for (int i = 0; i < kWidth; ++i) pairs.first[i] = p[2 * i], pairs.second[i] = p[2 * i + 1];
  return pairs;
}
// Words of eight codes of four bits each, of which level_pairs<J> are the pairs of levels at bits 4J of both halves.
struct LevelCodes {
  std::uint32_t v[kWidth];
};
DRAGOMAN_INLINE LevelCodes load_level_codes(const std::uint8_t* p) {
  LevelCodes r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
template <int J>
DRAGOMAN_INLINE I16Pairs level_pairs(LevelCodes a) {
  I16Pairs pairs;
  for (int i = 0; i < kWidth; ++i) {
    pairs.first[i] = kLevels[a.v[i] >> 4 * J & 15], pairs.second[i] = kLevels[a.v[i] >> (4 * J + 16) & 15];
  }
  return pairs;
}
DRAGOMAN_INLINE Sums add_pair_products(Sums sums, I16Pairs a, std::int32_t pair) {
  std::int16_t b[2];
  std::memcpy(b, &pair, 4);
  return {sums.v + a.first * b[0] + a.second * b[1]};
}
DRAGOMAN_INLINE Vec to_floats(Sums sums) { return {__builtin_convertvector(sums.v, Floats)}; }
// Rounded to nearest even. NaN becomes any number.
DRAGOMAN_INLINE void store_int16(std::int16_t* p, Vec a) {
  const Vec whole = round(a);
  for (int i = 0; i < kWidth; ++i) {
    p[i] = whole.v[i] >= -32767.0f && whole.v[i] <= 32767.0f ? static_cast<std::int16_t>(whole.v[i]) : std::int16_t{0};
  }
}

// Multiplication of bfloat16 keys and values in attention. Where the processor multiplies pairs of them, as in
// avx512.h: load(), load_masked(), repeat(), dot() and store_both() of pairs. Otherwise they are widened to float32.
struct BF16Arithmetic {
  static constexpr bool kMultipliesPairs = false;

  // The first and the second number of each of 16 pairs.
  DRAGOMAN_INLINE Vec even(const std::uint16_t* p) {
    Vec a;
    for (int i = 0; i < kWidth; ++i) a.v[i] = bf16_to_float(p[2 * i]);
    return a;
  }
  DRAGOMAN_INLINE Vec odd(const std::uint16_t* p) { return even(p + 1); }
};

}  // namespace dragoman::DRAGOMAN_ISA

#include "simd/lanes.h"
#include "simd/quantize_lanes.h"
#include "simd/three_bits.h"
