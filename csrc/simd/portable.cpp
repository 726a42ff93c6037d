#define DRAGOMAN_ISA portable
#include "simd/portable.h"

#include "simd/kernels.inl"
