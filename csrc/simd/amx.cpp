#define DRAGOMAN_ISA amx
#include "simd/avx512.h"

#include "simd/amx.inl"
