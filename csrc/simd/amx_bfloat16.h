// Products with bfloat16 in AMX's tiles, whose order of additions (amx_tiles.h) one row takes too.
#pragma once

namespace dragoman::DRAGOMAN_ISA {

constexpr long kPassRows = 2 * kTileRows;

// The shapes of a pass of so many rows.
inline void shape_pass(long rows) {
  TileShapes shapes;
  const long first = rows < kTileRows ? rows : kTileRows, second = rows - first;
  const long of_tile[kTiles] = {first, first, second, second, first, second, kTileRows, kTileRows};
  for (int i = 0; i < kTiles; ++i) {
    shapes.rows[i] = static_cast<std::uint8_t>(of_tile[i]);
    shapes.bytes[i] = of_tile[i] > 0 ? kTileBytes : 0;
  }
  written(&shapes);
  DRAGOMAN_TILE_SHAPES(shapes);
}

// Tiles 0 and 1 are the sums of the first 16 rows, 2 and 3 those of the others; 4 and 5 inputs, 6 and 7 weights.
inline void start_sums(bool both) {
  DRAGOMAN_TILE_ZERO(0);
  DRAGOMAN_TILE_ZERO(1);
  if (both) {
    DRAGOMAN_TILE_ZERO(2);
    DRAGOMAN_TILE_ZERO(3);
  }
}

template <class Number>
inline void store_sums(bool both, Number (&sums)[kPassRows][kBlock]) {
  constexpr long kStride = kBlock * 4;
  DRAGOMAN_TILE_STORE(0, sums[0], kStride);
  DRAGOMAN_TILE_STORE(1, sums[0] + kWidth, kStride);
  if (both) {
    DRAGOMAN_TILE_STORE(2, sums[kTileRows], kStride);
    DRAGOMAN_TILE_STORE(3, sums[kTileRows] + kWidth, kStride);
  }
}

// At most kPassRows rows, from x on, of a block of bfloat16, of which a tile has a group.
inline void multiply_bfloat16(const std::uint8_t* w, long groups, const std::uint8_t* x, long stride, long rows,
                              Vec (&sum)[kPassRows][kVectors]) {
  alignas(64) float sums[kPassRows][kBlock];
  const bool both = rows > kTileRows;
  start_sums(both);
  for (long g = 0; g < groups; ++g) {
    DRAGOMAN_TILE_LOAD(4, x, stride);
    DRAGOMAN_TILE_LOAD(6, w, kQuadBytes);
    DRAGOMAN_TILE_LOAD(7, w + kTileBytes, kQuadBytes);
    DRAGOMAN_TILE_DOT_BF16(0, 4, 6);
    DRAGOMAN_TILE_DOT_BF16(1, 4, 7);
    if (both) {
      DRAGOMAN_TILE_LOAD(5, x + kTileRows * stride, stride);
      DRAGOMAN_TILE_DOT_BF16(2, 5, 6);
      DRAGOMAN_TILE_DOT_BF16(3, 5, 7);
    }
    w += numbers_bytes(Precision::bfloat16);
    x += kTileBytes;
  }
  store_sums(both, sums);
  for (long i = 0; i < rows; ++i) {
    for (int j = 0; j < kVectors; ++j) sum[i][j] = load(sums[i] + j * kWidth);
  }
}

// Strips of rows of bfloat16, which stay in the second-level cache while blocks go by.
inline void multiply_bfloat16_matrix(const Matrix& w, const Activations& a, long begin, long end, const Output& out) {
  const long fitting = kStripBytes / a.stride / kPassRows * kPassRows, part = fitting > 0 ? fitting : kPassRows;
  long shaped = 0;
  for (long first = 0; first < a.rows; first += part) {
    const long last = a.rows - first < part ? a.rows : first + part;
    for (long block = begin; block < end; ++block) {
      for (long row = first; row < last; row += kPassRows) {
        const long rows = last - row < kPassRows ? last - row : kPassRows;
        if (rows != shaped) shape_pass(shaped = rows);
        Vec sum[kPassRows][kVectors];
        multiply_bfloat16(w.block(block), w.groups(), a.values + row * a.stride, a.stride, rows, sum);
        for (long i = 0; i < rows; ++i) {
          const Vec one[1][kVectors] = {{sum[i][0], sum[i][1]}};
          finish<1>(out, row + i, block, one);
        }
      }
    }
  }
  DRAGOMAN_TILE_RELEASE();
}

}  // namespace dragoman::DRAGOMAN_ISA
