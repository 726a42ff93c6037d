#define DRAGOMAN_ISA neon_i8mm
#include "simd/neon.h"

#include "simd/kernels.inl"
