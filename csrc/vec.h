// A vector of 16 floats in the registers of each instruction set: __m512, two __m256, or an array.
//
// Kernels written on it once compute the same operations in the same order everywhere; AVX-512 and AVX2 agree to the bit,
// portable differs where fma() rounds twice. Included once per instruction set, inside isa.inl.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
DRAGOMAN_INLINE float bf16_to_float(std::uint16_t value) { return bits_to_float(static_cast<std::uint32_t>(value) << 16); }
DRAGOMAN_INLINE std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

#if defined(DRAGOMAN_AVX512)

struct Vec {
  __m512 v;
};

DRAGOMAN_INLINE Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
DRAGOMAN_INLINE void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
// The first n < 16 floats; the rest is zero.
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
// Where either is NaN the result is b.
DRAGOMAN_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
DRAGOMAN_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
DRAGOMAN_INLINE Vec sqrt(Vec a) { return {_mm512_sqrt_ps(a.v)}; }
// To the nearest integer, ties to even.
DRAGOMAN_INLINE Vec round(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a < b ? x : y
DRAGOMAN_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// a · 2ⁿ for integral n in [-300, 300]
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
// Both halves as 8 floats: the first step of every horizontal reduction.
DRAGOMAN_INLINE __m256 low_half(Vec a) { return _mm512_castps512_ps256(a.v); }
DRAGOMAN_INLINE __m256 high_half(Vec a) { return _mm512_extractf32x8_ps(a.v, 1); }

#elif defined(DRAGOMAN_AVX2)

struct Vec {
  __m256 lo, hi;
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
  // In two steps, since 2ⁿ itself may be beyond the range of a float.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  return _mm256_mul_ps(_mm256_mul_ps(a, power_of_two(first)), power_of_two(second));
}
DRAGOMAN_INLINE Vec scale_by_power(Vec a, Vec n) { return {scale_half(a.lo, n.lo), scale_half(a.hi, n.hi)}; }
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

#else

// The compiler's own vectors: it splits them into whatever registers the target's baseline has.
typedef float Floats __attribute__((vector_size(64)));

struct Vec {
  Floats v;
};

// For operations that those vectors do not have: one element after the other.
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
DRAGOMAN_INLINE Vec max(Vec a, Vec b) { DRAGOMAN_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
DRAGOMAN_INLINE Vec min(Vec a, Vec b) { DRAGOMAN_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
DRAGOMAN_INLINE Vec abs(Vec a) { DRAGOMAN_EACH(bits_to_float(float_to_bits(a.v[i]) & 0x7fffffffu)); }
DRAGOMAN_INLINE Vec sqrt(Vec a) { DRAGOMAN_EACH(__builtin_sqrtf(a.v[i])); }
// Adding and taking away 1.5 · 2²³ rounds to nearest even, for |a| < 2²²; larger values are returned as they are.
DRAGOMAN_INLINE float round_one(float a) {
  const float magic = 12582912.0f;
  return a < 4194304.0f && a > -4194304.0f ? (a + magic) - magic : a;
}
DRAGOMAN_INLINE Vec round(Vec a) { DRAGOMAN_EACH(round_one(a.v[i])); }
DRAGOMAN_INLINE float floor_one(float a) {
  const float near = round_one(a);
  return near > a ? near - 1.0f : near;
}
DRAGOMAN_INLINE Vec floor(Vec a) { DRAGOMAN_EACH(floor_one(a.v[i])); }
DRAGOMAN_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) { DRAGOMAN_EACH(a.v[i] < b.v[i] ? x.v[i] : y.v[i]); }
DRAGOMAN_INLINE float scale_one(float a, float n) {
  const int whole = static_cast<int>(n), first = whole >> 1, second = whole - first;
  return a * bits_to_float(static_cast<std::uint32_t>(first + 127) << 23) *
         bits_to_float(static_cast<std::uint32_t>(second + 127) << 23);
}
DRAGOMAN_INLINE Vec scale_by_power(Vec a, Vec n) { DRAGOMAN_EACH(scale_one(a.v[i], n.v[i])); }
DRAGOMAN_INLINE Vec load_bf16(const std::uint16_t* p) { DRAGOMAN_EACH(bf16_to_float(p[i])); }
DRAGOMAN_INLINE void store_bf16(std::uint16_t* p, Vec a) {
  for (int i = 0; i < kWidth; ++i) p[i] = float_to_bf16(a.v[i]);
}
DRAGOMAN_INLINE Vec load_fp16(const std::uint16_t* p) { DRAGOMAN_EACH(half_to_float(p[i])); }
DRAGOMAN_INLINE void store_fp16(std::uint16_t* p, Vec a) {
  for (int i = 0; i < kWidth; ++i) p[i] = float_to_half(a.v[i]);
}

#undef DRAGOMAN_EACH
#endif

DRAGOMAN_INLINE Vec zero() { return broadcast(0.0f); }

// Horizontal sum and maximum in one fixed order: lane i with i + 8, then + 4, + 2, + 1.
#if defined(DRAGOMAN_AVX512) || defined(DRAGOMAN_AVX2)
DRAGOMAN_INLINE float hsum(Vec a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
DRAGOMAN_INLINE float hmax(Vec a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
#else
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
#endif

// eˣ within 2 units in the last place; 0 below -87.3, infinity above 88.7, NaN stays NaN.
// Range reduction by n·ln 2 in two parts, then the polynomial of the Cephes library's expf (S. Moshier).
DRAGOMAN_INLINE Vec exp(Vec x) {
  const Vec low = broadcast(-87.33654f);
  const Vec bounded = min(broadcast(89.0f), max(low, x));
  const Vec n = round(bounded * broadcast(1.44269504f));
  Vec r = fma(n, broadcast(-0.693359375f), bounded);
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.9875691500e-4f);
  p = fma(p, r, broadcast(1.3981999507e-3f));
  p = fma(p, r, broadcast(8.3334519073e-3f));
  p = fma(p, r, broadcast(4.1665795894e-2f));
  p = fma(p, r, broadcast(1.6666665459e-1f));
  p = fma(p, r, broadcast(5.0000001201e-1f));
  p = fma(p, r * r, r) + broadcast(1.0f);
  return select_less(x, low, zero(), scale_by_power(p, n));
}

// 2ˣ within 2 units in the last place for x below 128; 1 at 0 exactly, 0 at −∞, NaN stays NaN. The polynomial is a
// least-maximum fit of our own on [0, 1].
DRAGOMAN_INLINE Vec exp2_of_fraction(Vec x) {
  constexpr float rest[] = {1.246784581e-03f, 9.675451554e-03f, 5.548528209e-02f,
                            2.402293086e-01f, 6.931470633e-01f, 1.0f};
  Vec sum = broadcast(2.161291632e-04f);
  for (const float factor : rest) sum = fma(sum, x, broadcast(factor));
  return sum;
}
DRAGOMAN_INLINE Vec exp2(Vec x) {
#if defined(DRAGOMAN_AVX512)
  // Scaling takes the floor of its power by itself; the fraction of an infinity is 0.
  constexpr int mode = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  return {_mm512_scalef_ps(exp2_of_fraction({_mm512_reduce_ps(x.v, mode)}).v, x.v)};
#else
  const Vec bounded = max(broadcast(-200.0f), x), whole = floor(bounded);
  return scale_by_power(exp2_of_fraction(bounded - whole), whole);
#endif
}

// tanh x within 2 units in the last place; NaN stays NaN. Near 0 an odd polynomial, our own least-maximum fit on
// [0, 0.6] (relative error 3e-9 before rounding), as 1 − 2 / (exp(2x) + 1) would cancel there.
DRAGOMAN_INLINE Vec tanh(Vec x) {
  const Vec a = abs(x), square = a * a, one = broadcast(1.0f), two = broadcast(2.0f);
  Vec p = broadcast(-5.895150360e-03f);
  p = fma(p, square, broadcast(2.079596370e-02f));
  p = fma(p, square, broadcast(-5.378382653e-02f));
  p = fma(p, square, broadcast(1.333192438e-01f));
  p = fma(p, square, broadcast(-3.333329856e-01f));
  const Vec near = fma(p * square, a, a), far = one - two / (exp(a + a) + one);
  const Vec size = select_less(a, broadcast(0.6f), near, far);
  return select_less(x, zero(), zero() - size, size);
}

}  // namespace dragoman::DRAGOMAN_ISA
