// The dot-product primitives of each instruction set: 16 accumulators times quads of bytes or pairs of bfloat16.
//
// Included once per instruction set, after vec.h.
namespace dragoman::DRAGOMAN_ISA {

DRAGOMAN_INLINE std::uint32_t load_u32(const void* p) {
  std::uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

// Whether dot_bytes takes w for w − 128, so that its accumulator starts at 0 instead of −128 · Σx.
#if defined(DRAGOMAN_AVX2)
constexpr bool kBytesAreSigned = true;
#else
constexpr bool kBytesAreSigned = false;
#endif

// Asks for a line in the second-level cache, behind what was added to a sum before hold(sum). Where both are left to the
// compiler, it puts all prefetches of a loop's body side by side: products of 8 rows took 3 to 9 % longer.
#if defined(DRAGOMAN_AVX512)
DRAGOMAN_INLINE void prefetch_here(const std::uint8_t* line) { asm volatile("prefetcht1 %0" : : "m"(*line)); }
template <class Sum>
DRAGOMAN_INLINE void hold(Sum& sum) {
  asm volatile("" : "+v"(sum));
}
#else
DRAGOMAN_INLINE void prefetch_here(const std::uint8_t* line) { __builtin_prefetch(line, 0, 2); }
template <class Sum>
DRAGOMAN_INLINE void hold(Sum&) {}
#endif

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
// The same for w ≤ 15, over a group: from begin_nibbles to end_nibbles, with the same start.
DRAGOMAN_INLINE Ints begin_nibbles(std::int32_t start) { return broadcast_int(start); }
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Ints end_nibbles(Ints acc, std::int32_t) { return acc; }
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
// Keeps the compiler from adding products up apart from their accumulator: it then runs out of registers for them, and a
// tile took twice as long.
DRAGOMAN_INLINE __m256i add_in_order(__m256i acc, __m256i products) {
  acc = _mm256_add_epi32(acc, products);
  asm("" : "+x"(acc));
  return acc;
}
// VPMADDUBSW adds two products in 16 bits, which w up to 255 would overflow; with |w − 128| and x of the sign of that, two
// products are at most 2 · 128 · 127. The sum is that of w − 128: kBytesAreSigned.
DRAGOMAN_INLINE __m256i dot_bytes_half(__m256i acc, __m256i w, __m256i x) {
  const __m256i value = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  __m256i signed_x = _mm256_sign_epi8(x, value);
  asm volatile("" : "+x"(signed_x));  // or multiply_peak() would multiply once and only add
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

// Four vectors of 16 bytes, the width that every target's baseline has.
typedef std::int32_t Int32s __attribute__((vector_size(16)));
typedef std::int16_t Int16s __attribute__((vector_size(16)));
typedef std::uint16_t UInt16s __attribute__((vector_size(16)));
typedef std::uint8_t UInt8s __attribute__((vector_size(16)));
typedef std::uint32_t UInt32s __attribute__((vector_size(64)));

struct Ints {
  Int32s v[4];
};
struct Bytes {
  UInt8s v[4];
};
struct Pairs {
  UInt32s v;
};

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
// Both 16-bit halves of every lane, sign extended, added to acc.
DRAGOMAN_INLINE Int32s add_halves(Int32s acc, Int16s a) {
  const auto lanes = reinterpret_cast<Int32s>(a);
  return acc + ((lanes << 16) >> 16) + (lanes >> 16);
}
DRAGOMAN_INLINE Int16s repeat_pair(std::uint32_t first, std::uint32_t second) {
  const auto pair = static_cast<std::int32_t>((first & 0xffffu) | (second << 16));
  return reinterpret_cast<Int16s>(Int32s{pair, pair, pair, pair});
}
// A product of at most 255 · 127 fits 16 bits, which even the oldest vector units multiply.
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
DRAGOMAN_INLINE Ints begin_nibbles(std::int32_t start) { return broadcast_int(start); }
DRAGOMAN_INLINE Ints dot_nibbles(Ints acc, Bytes w, std::uint32_t x) { return dot_bytes(acc, w, x); }
DRAGOMAN_INLINE Ints end_nibbles(Ints acc, std::int32_t) { return acc; }
DRAGOMAN_INLINE Pairs load_pairs(const std::uint8_t* p) {
  Pairs r;
  std::memcpy(&r.v, p, 64);
  return r;
}
DRAGOMAN_INLINE Vec dot_pairs(Vec acc, Pairs w, std::uint32_t x) {
  const Vec first{reinterpret_cast<Floats>(w.v << 16)};
  const Vec second{reinterpret_cast<Floats>(w.v & 0xffff0000u)};
  acc = fma(first, broadcast(bits_to_float(x << 16)), acc);
  return fma(second, broadcast(bits_to_float(x & 0xffff0000u)), acc);
}

#endif

}  // namespace dragoman::DRAGOMAN_ISA
