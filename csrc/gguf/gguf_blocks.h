// The quantized blocks of GGUF files: to floats, or to the integers of packed matrices.
#pragma once

#include <cstdint>

#include "gemm/matrix.h"

namespace dragoman {

// The values are the numbers of ggml's types in a file.
enum class GgufType : int {
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq4_nl = 20,
  iq4_xs = 23,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
};

// Numbers in a block, and its size in bytes.
struct GgufBlock {
  long values;
  long bytes;
};

// Throws std::invalid_argument on a type that is not one of those above.
GgufBlock gguf_block(int type);

// `count` blocks of a known type to floats: the operations of ggml's reference, in its order, so the same bits.
void dequantize_gguf(GgufType type, const std::uint8_t* blocks, long count, float* out);

// Whether a type can be converted to codes of this precision: every type to int8, those made of such groups to int4.
bool gguf_has_codes(GgufType type, Precision precision, bool minimum);

// Rows of k numbers (whole blocks) as integers [rows, k] with fp16 scales, and minimums if requested, of groups of 32,
// [rows, k / 32]. Types with such groups keep their integers; others are dequantized and quantized to int8 as pack()
// does. Returns false where a scale or a number is not finite; the output is then invalid.
bool gguf_codes(GgufType type, const std::uint8_t* blocks, long rows, long k, Precision precision, bool minimum,
                std::int8_t* values, std::uint16_t* scales, std::uint16_t* minimums);

}  // namespace dragoman
