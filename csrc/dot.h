// The dot-product primitives of each instruction set: 16 accumulators times quads of bytes or pairs of bfloat16.
//
// Included once per instruction set, after vec.h.
namespace dragoman::DRAGOMAN_ISA {

DRAGOMAN_INLINE std::uint32_t load_u32(const void* p) {
  std::uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

#if defined(DRAGOMAN_AVX512)

using Ints = __m512i;   // 16 int32
using Bytes = __m512i;  // [16][4] uint8
using Pairs = __m512i;  // [16][2] bfloat16

DRAGOMAN_INLINE Ints broadcast_int(std::int32_t a) { return _mm512_set1_epi32(a); }
DRAGOMAN_INLINE Vec to_float(Ints a) { return {_mm512_cvtepi32_ps(a)}; }
DRAGOMAN_INLINE Bytes load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
DRAGOMAN_INLINE Bytes low_nibbles(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
DRAGOMAN_INLINE Bytes high_nibbles(Bytes a) {
  return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15));
}
// acc[i] + Σⱼ w[i][j] · x[j], exact for unsigned w and signed x.
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(static_cast<int>(x)));
}
// The same for w ≤ 15.
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Pairs load_pairs(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
DRAGOMAN_INLINE Vec dot_pairs(Vec acc, Pairs w, std::uint32_t x) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(w),
                           reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x))))};
}

#elif defined(DRAGOMAN_AVX2)

struct Ints {
  __m256i lo, hi;
};
using Bytes = Ints;
using Pairs = Ints;

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
// VPMADDUBSW saturates at 16 bits, which w up to 255 would reach: widen both sides instead.
DRAGOMAN_INLINE __m256i dot_bytes_half(__m256i acc, __m256i w, __m256i x) {
  const __m256i even_w = _mm256_and_si256(w, _mm256_set1_epi16(255)), odd_w = _mm256_srli_epi16(w, 8);
  const __m256i even_x = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), odd_x = _mm256_srai_epi16(x, 8);
  return _mm256_add_epi32(acc,
                          _mm256_add_epi32(_mm256_madd_epi16(even_w, even_x), _mm256_madd_epi16(odd_w, odd_x)));
}
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  const __m256i quad = _mm256_set1_epi32(static_cast<int>(x));
  return {dot_bytes_half(acc.lo, w.lo, quad), dot_bytes_half(acc.hi, w.hi, quad)};
}
// Two products of at most 15 · 127 cannot saturate.
DRAGOMAN_INLINE __m256i dot_nibbles_half(__m256i acc, __m256i w, __m256i x) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) {
  const __m256i quad = _mm256_set1_epi32(static_cast<int>(x));
  return {dot_nibbles_half(acc.lo, w.lo, quad), dot_nibbles_half(acc.hi, w.hi, quad)};
}
DRAGOMAN_INLINE Pairs load_pairs(const std::uint8_t* p) { return load_bytes(p); }
DRAGOMAN_INLINE Vec dot_pairs(Vec acc, Pairs w, std::uint32_t x) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const Vec first{_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
  const Vec second{_mm256_castsi256_ps(_mm256_and_si256(w.lo, upper)),
                   _mm256_castsi256_ps(_mm256_and_si256(w.hi, upper))};
  acc = fma(first, broadcast(bits_to_float(x << 16)), acc);
  return fma(second, broadcast(bits_to_float(x & 0xffff0000u)), acc);
}

#else

struct Ints {
  std::int32_t v[16];
};
struct Bytes {
  std::uint8_t v[64];
};
struct Pairs {
  std::uint32_t v[16];
};

DRAGOMAN_INLINE Ints broadcast_int(std::int32_t a) {
  Ints r;
  for (int i = 0; i < 16; ++i) r.v[i] = a;
  return r;
}
DRAGOMAN_INLINE Vec to_float(Ints a) {
  Vec r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
DRAGOMAN_INLINE Bytes load_bytes(const std::uint8_t* p) {
  Bytes r;
  std::memcpy(r.v, p, 64);
  return r;
}
DRAGOMAN_INLINE Bytes low_nibbles(Bytes a) {
  for (int i = 0; i < 64; ++i) a.v[i] &= 15;
  return a;
}
DRAGOMAN_INLINE Bytes high_nibbles(Bytes a) {
  for (int i = 0; i < 64; ++i) a.v[i] >>= 4;
  return a;
}
DRAGOMAN_INLINE Ints dot_bytes(Ints acc, Bytes w, std::uint32_t x) {
  std::int8_t quad[4];
  std::memcpy(quad, &x, 4);
  for (int i = 0; i < 16; ++i) {
    acc.v[i] += w.v[4 * i] * quad[0] + w.v[4 * i + 1] * quad[1] + w.v[4 * i + 2] * quad[2] + w.v[4 * i + 3] * quad[3];
  }
  return acc;
}
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Pairs load_pairs(const std::uint8_t* p) {
  Pairs r;
  std::memcpy(r.v, p, 64);
  return r;
}
DRAGOMAN_INLINE Vec dot_pairs(Vec acc, Pairs w, std::uint32_t x) {
  Vec first, second;
  for (int i = 0; i < 16; ++i) {
    first.v[i] = bits_to_float(w.v[i] << 16);
    second.v[i] = bits_to_float(w.v[i] & 0xffff0000u);
  }
  acc = fma(first, broadcast(bits_to_float(x << 16)), acc);
  return fma(second, broadcast(bits_to_float(x & 0xffff0000u)), acc);
}

#endif

}  // namespace dragoman::DRAGOMAN_ISA
