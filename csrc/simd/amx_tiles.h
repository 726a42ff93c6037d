// Operations on AMX's tile registers, of 16 rows of 64 bytes each, in two ways: the processor's instructions, and plain
// C++ that does what the manual says of them, for tests on any processor (DRAGOMAN_PLAIN_TILES). Names of tiles are
// literal numbers from 0 to 7.
//
//   C += A · B   C: 16 × 16 numbers of 32 bits; A: up to 16 rows of inputs; B: 16 columns, of which each row holds four
//                (bytes) or two (bfloat16) of the inputs of each column, as a packed block of weights does
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/avx512.h"

namespace dragoman::DRAGOMAN_ISA {

constexpr int kTiles = 8, kTileRows = 16, kTileBytes = 64;

// As LDTILECFG reads it.
struct alignas(64) TileShapes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t bytes[16] = {};  // of a row of each tile
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

// Has what was written there in memory: compilers do not know that tiles are loaded from it.
DRAGOMAN_INLINE void written(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

#if !defined(DRAGOMAN_PLAIN_TILES)

#define DRAGOMAN_TILE_SHAPES(shapes) _tile_loadconfig(&(shapes))
#define DRAGOMAN_TILE_RELEASE() _tile_release()
#define DRAGOMAN_TILE_ZERO(c) _tile_zero(c)
#define DRAGOMAN_TILE_LOAD(t, from, stride) _tile_loadd(t, from, stride)
#define DRAGOMAN_TILE_STORE(t, to, stride) _tile_stored(t, to, stride)
// Signed bytes. Sums are exact.
#define DRAGOMAN_TILE_DOT_BYTES(c, a, b) _tile_dpbssd(c, a, b)
#define DRAGOMAN_TILE_DOT_BF16(c, a, b) _tile_dpbf16ps(c, a, b)

#else

struct PlainTiles {
  TileShapes shapes;
  alignas(64) std::uint8_t data[kTiles][kTileRows][kTileBytes];

  void configure(const TileShapes& wanted) {
    shapes = wanted;
    std::memset(data, 0, sizeof data);
  }
  void zero(int t) { std::memset(data[t], 0, sizeof data[t]); }
  void load(int t, const void* from, long stride) {
    zero(t);
    for (int row = 0; row < shapes.rows[t]; ++row) {
      std::memcpy(data[t][row], static_cast<const std::uint8_t*>(from) + row * stride, shapes.bytes[t]);
    }
  }
  void store(int t, void* to, long stride) const {
    for (int row = 0; row < shapes.rows[t]; ++row) {
      std::memcpy(static_cast<std::uint8_t*>(to) + row * stride, data[t][row], shapes.bytes[t]);
    }
  }
  // TDPBSSD
  void dot_bytes(int c, int a, int b) {
    for (int m = 0; m < shapes.rows[c]; ++m) {
      for (int k = 0; k < shapes.bytes[a] / 4; ++k) {
        for (int n = 0; n < shapes.bytes[c] / 4; ++n) {
          std::int32_t sum;
          std::memcpy(&sum, data[c][m] + 4 * n, 4);
          for (int i = 0; i < 4; ++i)
            sum += static_cast<std::int8_t>(data[a][m][4 * k + i]) * static_cast<std::int8_t>(data[b][k][4 * n + i]);
          std::memcpy(data[c][m] + 4 * n, &sum, 4);
        }
      }
    }
  }
  // TDPBF16PS: of each instruction, the products of the first and of the second numbers of all pairs are added up
  // apart, from 0 and rounded every time, then both sums to each other, and that to C. Denormals are zeros.
  void dot_bf16(int c, int a, int b) {
    for (int m = 0; m < shapes.rows[c]; ++m) {
      for (int n = 0; n < shapes.bytes[c] / 4; ++n) {
        float sums[2] = {0.0f, 0.0f};
        for (int k = 0; k < shapes.bytes[a] / 4; ++k) {
          for (int i = 0; i < 2; ++i) {
            const float left = number(data[a][m] + 4 * k + 2 * i), right = number(data[b][k] + 4 * n + 2 * i);
            sums[i] = flushed(__builtin_fmaf(left, right, sums[i]));
          }
        }
        float total;
        std::memcpy(&total, data[c][m] + 4 * n, 4);
        total = flushed(flushed(total) + flushed(sums[0] + sums[1]));
        std::memcpy(data[c][m] + 4 * n, &total, 4);
      }
    }
  }

 private:
  static float flushed(float value) {
    const std::uint32_t bits = float_to_bits(value);
    return (bits & 0x7f800000u) == 0 ? bits_to_float(bits & 0x80000000u) : value;
  }
  static float number(const std::uint8_t* from) {
    std::uint16_t bits;
    std::memcpy(&bits, from, 2);
    return flushed(bf16_to_float(bits));
  }
};
inline thread_local PlainTiles plain_tiles;

#define DRAGOMAN_TILE_SHAPES(shapes) plain_tiles.configure(shapes)
#define DRAGOMAN_TILE_RELEASE() plain_tiles.configure({})
#define DRAGOMAN_TILE_ZERO(c) plain_tiles.zero(c)
#define DRAGOMAN_TILE_LOAD(t, from, stride) plain_tiles.load(t, from, stride)
#define DRAGOMAN_TILE_STORE(t, to, stride) plain_tiles.store(t, to, stride)
#define DRAGOMAN_TILE_DOT_BYTES(c, a, b) plain_tiles.dot_bytes(c, a, b)
#define DRAGOMAN_TILE_DOT_BF16(c, a, b) plain_tiles.dot_bf16(c, a, b)

#endif

}  // namespace dragoman::DRAGOMAN_ISA
