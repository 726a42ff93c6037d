// The kernels of AVX-512, but for products of many rows of int8, and all of bfloat16, in AMX's tiles.
//
// Two tiles of 16 rows times the two halves of a block, four tiles of sums. int8 sums are exact, and folded as AVX-512
// folds them: the bits are the same, so fewer rows are left to AVX-512, as are matrices with a scale for each 32
// inputs: folding takes longer than multiplying there. bfloat16 has another order of additions (amx_tiles.h), so that
// products of one row take it too. Nobody has run these tiles on a processor that has them: DRAGOMAN_KERNELS has to
// name them.
// clang-format off: the order is that of use
#include "simd/math.h"
#include "gemm/output.inl"
#include "simd/amx_tiles.h"
#include "simd/kernels.h"
// clang-format on

namespace dragoman {
namespace avx512 {
const Kernels& table();
}

namespace DRAGOMAN_ISA {

constexpr long kPassRows = 2 * kTileRows;
constexpr long kQuadBytes = kBlock * 4;

// Rows from which tiles are used for int8: below, AVX-512 reads the weights no slower.
constexpr long kLeastRows = 12;

// Rows that stay in the second-level cache while the blocks of a range go by.
constexpr long kRowsBytes = 400 << 10;

// The shapes of a pass of so many rows; of the current thread.
inline void shape_tiles(long rows) {
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

// At most kPassRows rows, from x on, of a wide matrix's block.
inline void multiply_wide(const std::uint8_t* w, long groups, const std::uint8_t* x, long stride, long rows,
                          Vec (&sum)[kPassRows][kVectors]) {
  alignas(64) std::int32_t sums[kPassRows][kBlock];
  alignas(64) std::uint8_t padded[kWeightGroups * numbers_bytes(Precision::int8)];
  const bool both = rows > kTileRows;
  for (long i = 0; i < rows; ++i) {
    for (int j = 0; j < kVectors; ++j) sum[i][j] = zero();
  }
  for (long left = groups; left > 0; left -= kWeightGroups) {
    const long count = left < kWeightGroups ? left : kWeightGroups;
    const long bytes = count * numbers_bytes(Precision::int8);
    const std::uint8_t* numbers = w;
    if (count < kWeightGroups) {  // the inputs of the groups that are not there are 0
      std::memcpy(padded, w, static_cast<std::size_t>(bytes));
      std::memset(padded + bytes, 0, sizeof padded - static_cast<std::size_t>(bytes));
      written(padded);
      numbers = padded;
    }
    start_sums(both);
    for (long half = 0; half < 2; ++half) {  // of the 128 inputs
      const std::uint8_t* const from = numbers + half * 2 * numbers_bytes(Precision::int8);
      DRAGOMAN_TILE_LOAD(4, x + half * kTileBytes, stride);
      DRAGOMAN_TILE_LOAD(6, from, kQuadBytes);
      DRAGOMAN_TILE_LOAD(7, from + kTileBytes, kQuadBytes);
      DRAGOMAN_TILE_DOT_BYTES(0, 4, 6);
      DRAGOMAN_TILE_DOT_BYTES(1, 4, 7);
      if (both) {
        DRAGOMAN_TILE_LOAD(5, x + kTileRows * stride + half * kTileBytes, stride);
        DRAGOMAN_TILE_DOT_BYTES(2, 5, 6);
        DRAGOMAN_TILE_DOT_BYTES(3, 5, 7);
      }
    }
    store_sums(both, sums);
    const auto* const scales = reinterpret_cast<const std::uint16_t*>(w + bytes);
    const Vec scale[kVectors] = {load_fp16(scales), load_fp16(scales + kWidth)};
    for (long i = 0; i < rows; ++i) {
      const auto& row = *reinterpret_cast<const ActGroup*>(x + i * stride);
      for (int j = 0; j < kVectors; ++j) {
        const Ints whole = load_and_add(sums[i] + j * kWidth, row.wide_start);
        sum[i][j] = fma(to_float(whole) * scale[j], broadcast(row.scale), sum[i][j]);
      }
    }
    w += bytes + kBlock * 2;
    x += sizeof(ActGroup);
  }
}

// The same of bfloat16, of which a tile has a group.
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

inline void multiply_matrix(const Matrix& w, const Activations& a, long begin, long end, float* y, long ldy,
                            const float* bias, bool accumulate) {
  const bool of_bytes = w.precision == Precision::int8 && w.wide && a.rows >= kLeastRows;
  if (!of_bytes && w.precision != Precision::bfloat16) {
    return avx512::table().linear.multiply(w, a, begin, end, y, ldy, bias, accumulate);
  }
  const Output out{.y = y, .ldy = ldy, .n = w.n, .bias = bias, .accumulate = accumulate};
  const long fitting = kRowsBytes / a.stride / kPassRows * kPassRows, part = fitting > 0 ? fitting : kPassRows;
  long shaped = 0;
  for (long first = 0; first < a.rows; first += part) {
    const long last = a.rows - first < part ? a.rows : first + part;
    for (long block = begin; block < end; ++block) {
      for (long row = first; row < last; row += kPassRows) {
        const long rows = last - row < kPassRows ? last - row : kPassRows;
        if (rows != shaped) shape_tiles(shaped = rows);
        const std::uint8_t* const x = a.values + row * a.stride;
        Vec sum[kPassRows][kVectors];
        if (of_bytes) {
          multiply_wide(w.block(block), w.groups(), x, a.stride, rows, sum);
        } else {
          multiply_bfloat16(w.block(block), w.groups(), x, a.stride, rows, sum);
        }
        for (long i = 0; i < rows; ++i) {
          const Vec one[1][kVectors] = {{sum[i][0], sum[i][1]}};
          finish<1>(out, row + i, block, one);
        }
      }
    }
  }
  if (shaped > 0) DRAGOMAN_TILE_RELEASE();  // the system need not keep them for this thread
}

#define DRAGOMAN_STRING_(x) #x
#define DRAGOMAN_STRING(x) DRAGOMAN_STRING_(x)

const Kernels& table() {
  static const Kernels kernels = [] {
    Kernels own = avx512::table();
    own.name = DRAGOMAN_STRING(DRAGOMAN_ISA);
    own.linear.multiply = multiply_matrix;
    return own;
  }();
  return kernels;
}

}  // namespace DRAGOMAN_ISA
}  // namespace dragoman
