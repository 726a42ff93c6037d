// Attention on a pool of bfloat16 in AMX's tiles: 16 queries times 16 tokens, or their weights times 16 dimensions, at
// once. Tiles 0 to 3 are sums, 4 and 5 queries or weights (of 32 and of 16 dimensions), 6 and 7 keys or values.
//
// Scores add 32 dimensions after the other, results the 32 tokens of a block after the other, each in the order of
// amx_tiles.h; a query's tiles have the same numbers whatever the other rows are. A token that a query does not see has
// a weight of 0, and takes part with that: its value is made 0 where no query sees it, and where it is no finite number
// the queries are multiplied one by one.
#pragma once

namespace dragoman::DRAGOMAN_ISA {
namespace {

struct TiledPairs : PairedLayout {
  using Query = std::uint16_t;
  using Weight = std::uint16_t;

  static void pack(const float* q, long n, long padded_dim, Query* packed) { round_row(q, n, padded_dim, packed); }
  DRAGOMAN_INLINE void put_weights(Weight* w, float*, Vec p0, Vec p1) { BF16Arithmetic::store_both(w, p0, p1); }

  static void begin_tiles() {
    TileShapes shapes;
    for (int i = 0; i < kTiles; ++i) {
      shapes.rows[i] = i == 7 ? kTileRows / 2 : kTileRows;
      shapes.bytes[i] = i == 5 ? kTileBytes / 2 : kTileBytes;
    }
    written(&shapes);
    DRAGOMAN_TILE_SHAPES(shapes);
  }
  static void end_tiles() { DRAGOMAN_TILE_RELEASE(); }

  // scores[i][0:32] of queries [begin, end), of which the rows of 16 are computed whole: those beside have any numbers.
  static void score(const Query* q, long begin, long end, long padded_dim, const std::uint8_t* keys, float* scores) {
    constexpr long kKeyStride = kBlockTokens * 4, kScoreStride = kStepTokens * 4;
    for (long i = begin / kTileRows * kTileRows; i < end; i += kTileRows) {
      const Query* from = q + i * padded_dim;
      const std::uint8_t* k = keys;
      DRAGOMAN_TILE_ZERO(0);
      DRAGOMAN_TILE_ZERO(1);
      long left = padded_dim;
      for (; left >= 32; left -= 32, from += 32, k += 16 * kKeyStride) {
        DRAGOMAN_TILE_LOAD(4, from, padded_dim * 2);
        DRAGOMAN_TILE_LOAD(6, k, kKeyStride);
        DRAGOMAN_TILE_DOT_BF16(0, 4, 6);
        DRAGOMAN_TILE_LOAD(6, k + 64, kKeyStride);
        DRAGOMAN_TILE_DOT_BF16(1, 4, 6);
      }
      if (left > 0) {  // 16
        DRAGOMAN_TILE_LOAD(5, from, padded_dim * 2);
        DRAGOMAN_TILE_LOAD(7, k, kKeyStride);
        DRAGOMAN_TILE_DOT_BF16(0, 5, 7);
        DRAGOMAN_TILE_LOAD(7, k + 64, kKeyStride);
        DRAGOMAN_TILE_DOT_BF16(1, 5, 7);
      }
      DRAGOMAN_TILE_STORE(0, scores + i * kStepTokens, kScoreStride);
      DRAGOMAN_TILE_STORE(1, scores + i * kStepTokens + kWidth, kScoreStride);
    }
  }

  // Columns of values that are multiplied together.
  static constexpr long kColumns = 4 * kWidth;
  using Sums = float[kTileRows][kColumns];

  // A step's values: results of queries [begin, end) are rescaled by alpha and extended.
  static void weigh(const Weight* weights, const Values& values, long padded_dim, long begin, long end,
                    const long* from, const long* to, const float* alpha, float* states, long stride) {
    for (long i = begin / kTileRows * kTileRows; i < end; i += kTileRows) {
      const long first = begin > i ? begin - i : 0, rows = end - i < kTileRows ? end - i : kTileRows;
      const Seen seen(first, rows, from + i, to + i);
      for (long d = 0; d < padded_dim; d += kColumns) {
        const long columns = padded_dim - d < kColumns ? padded_dim - d : kColumns;
        float* const results = states + i * stride + d;
        alignas(64) Sums sums;
        for (long r = 0; r < kTileRows; ++r) {
          for (long j = 0; j < columns; j += kWidth) {
            const bool wanted = r >= first && r < rows;
            store(sums[r] + j, wanted ? load(results + r * stride + j) * broadcast(alpha[i + r]) : zero());
          }
        }
        load_sums(sums, columns);
        for (long b = 0; b < values.count; ++b) {
          const long token = b * kBlockTokens;
          if (seen.most <= token || seen.least >= token + kBlockTokens) continue;
          const Weight* const w = weights + i * kStepTokens + token;
          const auto* const block = reinterpret_cast<const std::uint16_t*>(values.blocks[b]) + 2 * d;
          if (seen.all_from <= token && seen.all_to >= token + kBlockTokens) {
            multiply(w, block, padded_dim, columns);
            continue;
          }
          alignas(64) std::uint16_t own[kBlockTokens * kColumns];
          if (copy_seen(block, padded_dim, columns, seen.least - token, seen.most - token, own)) {
            multiply(w, own, kColumns, columns);
            continue;
          }
          store_sums(sums, columns);
          alignas(64) Sums before, after;
          std::memcpy(before, sums, sizeof before);
          for (long r = first; r < rows; ++r) {
            copy_seen(block, padded_dim, columns, from[i + r] - token, to[i + r] - token, own);
            load_sums(before, columns);
            multiply(w, own, kColumns, columns);
            store_sums(after, columns);
            std::memcpy(sums[r], after[r], sizeof sums[r]);
          }
          load_sums(sums, columns);
        }
        store_sums(sums, columns);
        for (long r = first; r < rows; ++r) {
          for (long j = 0; j < columns; j += kWidth) store(results + r * stride + j, load(sums[r] + j));
        }
      }
    }
  }

 private:
  // What queries see of a step: tokens that any of them does, and those that all do.
  struct Seen {
    long least = kStepTokens, most = 0, all_from = 0, all_to = kStepTokens;

    Seen(long first, long rows, const long* from, const long* to) {
      for (long r = first; r < rows; ++r) {
        all_from = from[r] > all_from ? from[r] : all_from;
        all_to = to[r] < all_to ? to[r] : all_to;
        if (from[r] >= to[r]) continue;
        least = from[r] < least ? from[r] : least;
        most = to[r] > most ? to[r] : most;
      }
    }
  };

  static void load_sums(const Sums& sums, long columns) {
    constexpr long kStride = kColumns * 4;
    DRAGOMAN_TILE_LOAD(0, sums[0], kStride);
    if (columns > kWidth) DRAGOMAN_TILE_LOAD(1, sums[0] + kWidth, kStride);
    if (columns > 2 * kWidth) DRAGOMAN_TILE_LOAD(2, sums[0] + 2 * kWidth, kStride);
    if (columns > 3 * kWidth) DRAGOMAN_TILE_LOAD(3, sums[0] + 3 * kWidth, kStride);
  }
  static void store_sums(Sums& sums, long columns) {
    constexpr long kStride = kColumns * 4;
    DRAGOMAN_TILE_STORE(0, sums[0], kStride);
    if (columns > kWidth) DRAGOMAN_TILE_STORE(1, sums[0] + kWidth, kStride);
    if (columns > 2 * kWidth) DRAGOMAN_TILE_STORE(2, sums[0] + 2 * kWidth, kStride);
    if (columns > 3 * kWidth) DRAGOMAN_TILE_STORE(3, sums[0] + 3 * kWidth, kStride);
  }

  // The sums, extended by a block: pairs of tokens are 2 · padded_dim numbers apart.
  static void multiply(const Weight* w, const std::uint16_t* values, long padded_dim, long columns) {
    const long stride = padded_dim * 4;
    DRAGOMAN_TILE_LOAD(4, w, kStepTokens * 2);
    DRAGOMAN_TILE_LOAD(6, values, stride);
    DRAGOMAN_TILE_DOT_BF16(0, 4, 6);
    if (columns > kWidth) {
      DRAGOMAN_TILE_LOAD(6, values + 2 * kWidth, stride);
      DRAGOMAN_TILE_DOT_BF16(1, 4, 6);
    }
    if (columns > 2 * kWidth) {
      DRAGOMAN_TILE_LOAD(6, values + 4 * kWidth, stride);
      DRAGOMAN_TILE_DOT_BF16(2, 4, 6);
    }
    if (columns > 3 * kWidth) {
      DRAGOMAN_TILE_LOAD(6, values + 6 * kWidth, stride);
      DRAGOMAN_TILE_DOT_BF16(3, 4, 6);
    }
  }

  // Columns of a block's values, [16 pairs][kColumns][2], with zeros for tokens outside [from, to). Whether all of them
  // are finite.
  static bool copy_seen(const std::uint16_t* values, long padded_dim, long columns, long from, long to,
                        std::uint16_t* out) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 infinite = 0;
    for (long t = 0; t < kBlockTokens; t += 2, values += 2 * padded_dim, out += 2 * kColumns) {
      const bool first = t >= from && t < to, second = t + 1 >= from && t + 1 < to;
      const __m512i mask = _mm512_set1_epi32(static_cast<int>((first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u)));
      for (long j = 0; j < columns; j += kWidth) {
        const __m512i pairs = _mm512_and_si512(_mm512_loadu_si512(values + 2 * j), mask);
        infinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(pairs, exponent), exponent);
        _mm512_store_si512(out + 2 * j, pairs);
      }
    }
    return infinite == 0;
  }
};

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
