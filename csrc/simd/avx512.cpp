#define DRAGOMAN_ISA avx512
#include "simd/avx512.h"

#include "simd/kernels.inl"
