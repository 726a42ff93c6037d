#define DRAGOMAN_ISA avx512_vnni
#include "simd/avx512.h"

#include "simd/kernels.inl"
