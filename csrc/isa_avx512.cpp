#define DRAGOMAN_ISA avx512
#define DRAGOMAN_AVX512 1
#include "isa.inl"
