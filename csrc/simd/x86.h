// Horizontal reductions of AVX2 and AVX-512, from the halves of a vector: low_half() and high_half(). Included by both.
#pragma once

#include <immintrin.h>

namespace dragoman::DRAGOMAN_ISA {

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
DRAGOMAN_INLINE void sum_four(const Vec (&a)[4], float* out) {
  __m128 four[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 eight = _mm256_add_ps(low_half(a[i]), high_half(a[i]));
    four[i] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  }
  _MM_TRANSPOSE4_PS(four[0], four[1], four[2], four[3]);
  _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(four[0], four[2]), _mm_add_ps(four[1], four[3])));
}

}  // namespace dragoman::DRAGOMAN_ISA
