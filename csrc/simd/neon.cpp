#define DRAGOMAN_ISA neon
#include "simd/neon.h"

#include "simd/kernels.inl"
