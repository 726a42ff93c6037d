// Activations in the form that a matrix multiplies with: rounded to bfloat16, or quantized by spans of 128.
namespace dragoman::DRAGOMAN_ISA {

// Bits of the largest magnitude among 32 and `most`; infinity and NaN win over every number, so that they reach the output.
DRAGOMAN_INLINE std::int32_t largest_magnitude(Vec a, Vec b, std::int32_t most) {
#if defined(DRAGOMAN_AVX512)
  const __m512i first = _mm512_castps_si512(abs(a).v), second = _mm512_castps_si512(abs(b).v);
  const std::int32_t here = _mm512_reduce_max_epi32(_mm512_max_epi32(first, second));
  return most > here ? most : here;
#else
  float values[32];
  store(values, a);
  store(values + 16, b);
  for (int i = 0; i < 32; ++i) {  // magnitudes order like their bits
    const auto bits = static_cast<std::int32_t>(float_to_bits(values[i]) & 0x7fffffffu);
    most = most > bits ? most : bits;
  }
  return most;
#endif
}

// Stores round(a), round(b) as 32 int8 and returns their sum. What is not a number becomes any number.
DRAGOMAN_INLINE std::int32_t store_int8(std::int8_t* q, Vec a, Vec b) {
#if defined(DRAGOMAN_AVX512)
  const __m512i first = _mm512_cvtps_epi32(a.v), second = _mm512_cvtps_epi32(b.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(first));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtsepi32_epi8(second));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
#else
  float values[32];
  store(values, round(a));
  store(values + 16, round(b));
  std::int32_t sum = 0;
  for (int i = 0; i < 32; ++i) {
    const float value = values[i] >= -127.0f && values[i] <= 127.0f ? values[i] : 0.0f;
    q[i] = static_cast<std::int8_t>(value);
    sum += q[i];
  }
  return sum;
#endif
}

// 32 activations of a row that ends after `left` ones, the rest zero.
DRAGOMAN_INLINE void load_group(const float* x, long left, Vec (&out)[2]) {
  out[0] = left >= 16 ? load(x) : load_partial(x, left > 0 ? left : 0);
  out[1] = left >= 32 ? load(x + 16) : left > 16 ? load_partial(x + 16, left - 16) : zero();
}

// The four groups of a span.
using SpanVecs = Vec[kSpanGroups][2];

DRAGOMAN_INLINE std::int32_t largest_of_span(const SpanVecs& groups) {
#if defined(DRAGOMAN_AVX512)
  __m512i most = _mm512_setzero_si512();  // magnitudes order like their bits
  for (long g = 0; g < kSpanGroups; ++g) {
    for (int half = 0; half < 2; ++half) most = _mm512_max_epi32(most, _mm512_castps_si512(abs(groups[g][half]).v));
  }
  return _mm512_reduce_max_epi32(most);
#else
  std::int32_t most = 0;
  for (long g = 0; g < kSpanGroups; ++g) most = largest_magnitude(groups[g][0], groups[g][1], most);
  return most;
#endif
}

// Stores round(groups · factor), and what follows from the sums of the groups.
DRAGOMAN_INLINE void store_span(const SpanVecs& groups, Vec factor, int bias, QuantizedSpan* out) {
#if defined(DRAGOMAN_AVX512)
  __m256i eights[kSpanGroups];  // the four sums side by side: each by itself, quantizing took a third longer
  for (long g = 0; g < kSpanGroups; ++g) {
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
#else
  std::int32_t total = 0;
  for (long g = 0; g < kSpanGroups; ++g) {
    const std::int32_t sum = store_int8(out->q[g], groups[g][0] * factor, groups[g][1] * factor);
    out->start[g] = -bias * sum;
    out->sum[g] = static_cast<float>(sum);
    total += sum;
  }
  out->wide_start = -bias * total;
#endif
}

// scale = largest magnitude / 127, q = round(x · (1 / scale)) to nearest even.
DRAGOMAN_INLINE void quantize_span(const float* x, long left, int bias, QuantizedSpan* out) {
  SpanVecs groups;
  for (long g = 0; g < kSpanGroups; ++g) load_group(x + g * kGroup, left - g * kGroup, groups[g]);
  const float scale = bits_to_float(static_cast<std::uint32_t>(largest_of_span(groups))) / 127.0f;
  store_span(groups, broadcast(scale > 0.0f ? 1.0f / scale : 0.0f), bias, out);
  out->scale = scale;
}

inline void prepare_rows(const Activations& a, const float* x, long ldx, long begin, long end) {
  for (long row = begin; row < end; ++row) {
    const float* const source = x + row * ldx;
    std::uint8_t* const target = a.values + row * a.stride;
    if (a.precision >= Precision::int8) {
      auto* span = reinterpret_cast<QuantizedSpan*>(target);
      for (long k = 0; k < a.k; k += kSpan) quantize_span(source + k, a.k - k, a.bias, span++);
      continue;
    }
    for (long k = 0; k < a.k; k += kGroup) {
      Vec group[2];
      load_group(source + k, a.k - k, group);
      for (int half = 0; half < 2; ++half) {
        if (a.precision == Precision::float32) {
          store(reinterpret_cast<float*>(target) + k + half * kWidth, group[half]);
        } else {
          store_bf16(reinterpret_cast<std::uint16_t*>(target) + k + half * kWidth, group[half]);
        }
      }
    }
  }
}

}  // namespace dragoman::DRAGOMAN_ISA
