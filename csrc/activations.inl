// Activations in the form that a matrix multiplies with: rounded to bfloat16, or quantized by groups of 32.
namespace dragoman::DRAGOMAN_ISA {

// The largest magnitude; infinity and NaN win over every number, so that they reach the output.
DRAGOMAN_INLINE float largest_magnitude(Vec a, Vec b) {
#if defined(DRAGOMAN_AVX512)
  const __m512i first = _mm512_castps_si512(abs(a).v), second = _mm512_castps_si512(abs(b).v);
  return bits_to_float(static_cast<std::uint32_t>(_mm512_reduce_max_epi32(_mm512_max_epi32(first, second))));
#else
  float values[32];
  store(values, a);
  store(values + 16, b);
  std::int32_t most = 0;  // magnitudes order like their bits
  for (int i = 0; i < 32; ++i) {
    const auto bits = static_cast<std::int32_t>(float_to_bits(values[i]) & 0x7fffffffu);
    most = most > bits ? most : bits;
  }
  return bits_to_float(static_cast<std::uint32_t>(most));
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

// scale = largest magnitude / 127, q = round(x · (1 / scale)) to nearest even, as GGUF's Q8_0 quantizes.
DRAGOMAN_INLINE void quantize_group(Vec a, Vec b, int bias, QuantizedGroup* out) {
  const float scale = largest_magnitude(a, b) / 127.0f;
  const Vec factor = broadcast(scale > 0.0f ? 1.0f / scale : 0.0f);
  const std::int32_t sum = store_int8(out->q, a * factor, b * factor);
  out->scale = scale;
  out->start = -bias * sum;
  out->sum = scale * static_cast<float>(sum);
}

inline void prepare_rows(const Activations& a, const float* x, long ldx, long begin, long end) {
  const long groups = (a.k + kGroup - 1) / kGroup;
  for (long row = begin; row < end; ++row) {
    const float* source = x + row * ldx;
    std::uint8_t* const target = a.values + row * a.stride;
    for (long g = 0; g < groups; ++g, source += kGroup) {
      const long left = a.k - g * kGroup;
      const Vec first = left >= 16 ? load(source) : load_partial(source, left);
      const Vec second = left >= 32 ? load(source + 16) : left > 16 ? load_partial(source + 16, left - 16) : zero();
      if (a.precision == Precision::float32) {
        store(reinterpret_cast<float*>(target) + g * kGroup, first);
        store(reinterpret_cast<float*>(target) + g * kGroup + 16, second);
      } else if (a.precision == Precision::bfloat16) {
        store_bf16(reinterpret_cast<std::uint16_t*>(target) + g * kGroup, first);
        store_bf16(reinterpret_cast<std::uint16_t*>(target) + g * kGroup + 16, second);
      } else {
        quantize_group(first, second, a.bias, reinterpret_cast<QuantizedGroup*>(target) + g);
      }
    }
  }
}

}  // namespace dragoman::DRAGOMAN_ISA
