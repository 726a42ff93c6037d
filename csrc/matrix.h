// A packed weight matrix W[n, k] for y = x · Wᵀ: the layout of its bytes.
//
// Columns of y (rows of W) are padded to blocks of 16 and k to groups of 32 with zeros. Blocks follow each other; each
// starts at a multiple of 64 bytes and holds, with K = padded k, G = K / 32:
//
//   float32    [K][16] float32
//   bfloat16   [K / 2][16][2] bfloat16: pairs along k, as VDPBF16PS wants
//   int8       [G][8][16][4] uint8: the number + 128, quads along k, as VPDPBUSD wants; then [G][16] fp16 scales
//   int4       [G][4][16][4] uint8: the number + 8 of quad 2i in the low and of quad 2i + 1 in the high half of byte row i;
//              then [G][16] fp16 scales; with minimum, the codes are 0 … 15 and [G][16] fp16 minimums follow
//
// (the fp16 parts rounded up to 64 bytes). int8 numbers are those of GGUF's Q8_0: w ≈ scale · q. int4 those of Q4_0,
// w ≈ scale · (code − 8), or with minimum of Q4_1, w ≈ scale · code + minimum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

enum class Precision : std::uint8_t { float32, bfloat16, int8, int4 };

constexpr long kBlock = 16;  // output columns of a block: one vector of float32
constexpr long kGroup = 32;  // inputs that share a scale

struct Matrix {
  std::uint8_t* data = nullptr;
  long n = 0;  // outputs, rows of W
  long k = 0;  // inputs, columns of W
  Precision precision = Precision::float32;
  bool minimum = false;  // int4 only: each group has a minimum beside its scale

  long blocks() const { return (n + kBlock - 1) / kBlock; }
  long groups() const { return (k + kGroup - 1) / kGroup; }
  long k_padded() const { return groups() * kGroup; }
  bool quantized() const { return precision >= Precision::int8; }

  // Bytes of the numbers of one group of one block.
  long group_bytes() const {
    switch (precision) {
      case Precision::float32: return kGroup * kBlock * 4;
      case Precision::bfloat16: return kGroup * kBlock * 2;
      case Precision::int8: return kGroup * kBlock;
      case Precision::int4: return kGroup * kBlock / 2;
    }
    return 0;
  }
  // Where in a block its numbers end and its scales begin, and the length of those.
  long scales_offset() const { return groups() * group_bytes(); }
  long scales_bytes() const { return quantized() ? (groups() * kBlock * 2 + 63) / 64 * 64 : 0; }
  long block_bytes() const { return scales_offset() + scales_bytes() * (minimum ? 2 : 1); }
  std::size_t bytes() const { return static_cast<std::size_t>(blocks()) * static_cast<std::size_t>(block_bytes()); }

  std::uint8_t* block(long b) const { return data + b * block_bytes(); }
  std::uint16_t* scales(long b) const { return reinterpret_cast<std::uint16_t*>(block(b) + scales_offset()); }
  std::uint16_t* minimums(long b) const {
    return reinterpret_cast<std::uint16_t*>(block(b) + scales_offset() + scales_bytes());
  }
};

}  // namespace dragoman
