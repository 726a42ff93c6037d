// The quantized blocks of GGUF files: to floats, or to the numbers that packed matrices hold.
#pragma once

#include <cstdint>

#include "gemm/matrix.h"

namespace dragoman {

// The values are those of ggml's types in a file.
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
};

// How many numbers a block holds, and in how many bytes.
struct GgufBlock {
  long values;
  long bytes;
};

// Throws std::invalid_argument on a type that is not one of those above.
GgufBlock gguf_block(int type);

// `count` blocks of a known type to floats: the operations of ggml's reference, in its order, so the same bits.
void dequantize_gguf(GgufType type, const std::uint8_t* blocks, long count, float* out);

// Whether codes of this precision can be made of a type: int8 of all of them, int4 of those that are made of such
// groups.
bool gguf_has_codes(GgufType type, Precision precision, bool minimum);

// Rows of k numbers (whole blocks) as numbers [rows, k] with fp16 scales, and minimums where asked for, of groups of
// 32, [rows, k / 32]. Where the groups of the type are such groups the numbers stay as they are; else they are
// dequantized and quantized to int8 as pack() does. False where a scale or a number is not finite; then what was
// written is of no use.
bool gguf_codes(GgufType type, const std::uint8_t* blocks, long rows, long k, Precision precision, bool minimum,
                std::int8_t* values, std::uint16_t* scales, std::uint16_t* minimums);

}  // namespace dragoman
