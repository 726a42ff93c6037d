#define DRAGOMAN_ISA avx_vnni
#include "simd/avx2.h"

#include "simd/kernels.inl"
