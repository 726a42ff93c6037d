// Rows of chunked matrices, outside of products: one definition serves every instruction set.
#pragma once

#include <cstdint>

#include "gemm/matrix.h"

namespace dragoman {

// The numbers of a chunk of one column, as they are stored. Codes have their bias; minimums and factors are those of
// formats that have them.
struct ChunkColumn {
  std::uint8_t codes[8][kGroup];
  std::uint16_t scales[16];  // fp16, exponents, or integers as int8
  std::uint8_t minimums[8];
  std::uint16_t factor, least;  // fp16
};

// Column `column`, 0 … 31, of the chunk of block b that begins with group g.
void store_chunk_column(const Matrix& w, long b, long g, long column, const ChunkColumn& numbers);

// Row `row` of w as k float32: with the operations of ggml's reference, in its order, so the same bits.
void unpack_chunked_row(const Matrix& w, long row, float* out);

// 2 to the power exponent - 128, half of the scale that an E8M0 byte other than 255 stands for.
inline float half_power(int exponent) {
  const std::uint32_t normal = exponent < 2 ? 0 : static_cast<std::uint32_t>(exponent - 1) << 23;
  const std::uint32_t bits = exponent < 2 ? 0x00200000u << exponent : normal;
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

}  // namespace dragoman
