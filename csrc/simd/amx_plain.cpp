#define DRAGOMAN_ISA amx_plain
#define DRAGOMAN_PLAIN_TILES
#include "simd/avx512.h"

#include "simd/amx.inl"
