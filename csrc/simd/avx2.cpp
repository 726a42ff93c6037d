#define DRAGOMAN_ISA avx2
#include "simd/avx2.h"

#include "simd/kernels.inl"
