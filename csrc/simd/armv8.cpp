#define DRAGOMAN_ISA armv8
#include "simd/neon.h"

#include "simd/kernels.inl"
