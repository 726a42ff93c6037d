// Quantization of weights to ggml's blocks of IQ4_NL: 32 numbers of a table of sixteen, with a scale in fp16.
#pragma once

#include <cstdint>

#include "gemm/linear.h"

namespace dragoman {

// Fills blocks, [n, k / 32 * 18], from a row-major [n, k] matrix of finite numbers; k is a multiple of 32. The bytes do
// not depend on the number of threads, nor on the instruction set.
void quantize_iq4_nl(const void* source, SourceType type, long n, long k, std::uint8_t* blocks);

// Rounds 32 inputs of n outputs one after the other, values[32, n], to a block of each output, blocks[n, 18]. What an
// input errs by, divided by factor[i, i] of an upper triangular [32, 32], is errors[i, n]; the inputs after it make up
// for it: they lose factor[i, j] times as much. Of eighteen scales the one with the least sum of squared errors is
// taken. The bytes do not depend on the number of threads, nor on the instruction set.
void round_iq4_nl_with_feedback(const float* values, long n, const float* factor, std::uint8_t* blocks, float* errors);

}  // namespace dragoman
