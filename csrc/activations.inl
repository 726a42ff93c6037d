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

// scale = largest magnitude / 127, q = round(x · (1 / scale)) to nearest even.
DRAGOMAN_INLINE void quantize_span(const float* x, long left, int bias, QuantizedSpan* out) {
  Vec groups[kSpanGroups][2];
  std::int32_t most = 0;
  for (long g = 0; g < kSpanGroups; ++g) {
    load_group(x + g * kGroup, left - g * kGroup, groups[g]);
    most = largest_magnitude(groups[g][0], groups[g][1], most);
  }
  const float scale = bits_to_float(static_cast<std::uint32_t>(most)) / 127.0f;
  const Vec factor = broadcast(scale > 0.0f ? 1.0f / scale : 0.0f);
  std::int32_t total = 0;
  for (long g = 0; g < kSpanGroups; ++g) {
    const std::int32_t sum = store_int8(out->q[g], groups[g][0] * factor, groups[g][1] * factor);
    out->start[g] = -bias * sum;
    out->sum[g] = static_cast<float>(sum);
    total += sum;
  }
  out->wide_start = -bias * total;
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
