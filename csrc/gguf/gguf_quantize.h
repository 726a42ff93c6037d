// Quantization of weights to ggml's blocks of IQ4_NL: 32 numbers of a table of sixteen, with a scale in fp16.
#pragma once

#include <cstdint>

#include "gemm/linear.h"

namespace dragoman {

// Fills blocks, [n, k / 32 * 18], from a row-major [n, k] matrix of finite numbers; k is a multiple of 32. The bytes do
// not depend on the number of threads, nor on the instruction set.
void quantize_iq4_nl(const void* source, SourceType type, long n, long k, std::uint8_t* blocks);

}  // namespace dragoman
