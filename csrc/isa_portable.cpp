#define DRAGOMAN_ISA portable
#define DRAGOMAN_PORTABLE 1
#include "isa.inl"
