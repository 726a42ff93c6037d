#define DRAGOMAN_ISA avx2
#define DRAGOMAN_AVX2 1
#include "isa.inl"
