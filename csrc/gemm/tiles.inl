// Packed matrix products: register tiles of a few rows over one block of columns.
//
// Every element of y is one chain over k: for quantized weights an exact integer sum per group, folded into the float32
// sum of its four groups, an ActGroup, in ascending order, or for a whole ActGroup where it has one scale, and the
// ActGroups' sums in ascending order; otherwise one fused multiply-add after the other. Tiles differ only in how many
// such chains run in parallel, so a row's bits do not depend on the other rows.
// clang-format off: the order is that of use
#include "gemm/output.inl"
#include "gemm/codes.inl"
#include "gemm/activations.inl"
#include "gemm/packing.inl"
#include "gemm/peak.inl"
// clang-format on

namespace dragoman::DRAGOMAN_ISA {

constexpr int kTogetherRows = kTuning.together_rows;
constexpr int kMaxRows = 8;
template <int M>
constexpr int kTogether = M <= kTogetherRows ? kVectors : 1;

// What a tile fetches into the second-level cache while it runs: always lines in ascending order without a gap. The
// processor's own prefetcher works best together with that; leaving out one line in 65 has cost a third of the
// bandwidth.
//
// Some lines of the next block with every group, where several tiles share a block.
struct NextBlock {
  const std::uint8_t* next;
  long lines_per_group;

  __attribute__((always_inline)) inline void fetch_group() {
    for (long i = 0; i < lines_per_group; ++i, next += 64) __builtin_prefetch(next, 0, 2);
  }
  __attribute__((always_inline)) inline void fetch(const std::uint8_t*) const {}
  template <class Sum>
  __attribute__((always_inline)) inline void spread(Sum&) const {}
};
// Prefetches at a fixed distance ahead of each line that is read, where a single tile reads a block from memory.
struct Ahead {
  long bytes;

  __attribute__((always_inline)) inline void fetch_group() const {}
  __attribute__((always_inline)) inline void fetch(const std::uint8_t* line) const { prefetch_here(line + bytes); }
  template <class Sum>
  __attribute__((always_inline)) inline void spread(Sum& sum) const {
    hold(sum);
  }
};

// The bytes of one group over V vectors of columns, added to integer sums: acc[i][j] += Σ q · w.
template <int M, int V, class Ahead, class Row>
DRAGOMAN_INLINE void add_bytes(const std::uint8_t* w, Ahead ahead, Row row, long g, Ints (&acc)[M][V]) {
#pragma GCC unroll 8
  for (int q = 0; q < 8; ++q) {
    Bytes quads[V];
#pragma GCC unroll 2
    for (int j = 0; j < V; ++j) quads[j] = load_bytes(w + q * kQuadBytes + j * 64);
#pragma GCC unroll 2
    for (int j = 0; j < V; ++j) ahead.fetch(w + q * kQuadBytes + j * 64);
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const std::uint32_t quad = load_u32(row(i).q[g] + q * 4);
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j) acc[i][j] = dot_bytes(acc[i][j], quads[j], quad);
    }
    ahead.spread(acc[M - 1][V - 1]);
  }
}

// The integer sums of one group over V vectors of columns: acc[i][j] = Σ q · (w − bias).
template <int M, int V, bool nibbles, class Ahead, class Row>
DRAGOMAN_INLINE void multiply_group(const std::uint8_t* w, Ahead ahead, Row row, long g, Ints (&acc)[M][V]) {
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
    const std::int32_t first = row(i).start[g];
    const Ints start = nibbles ? begin_nibbles(first) : broadcast_int(kBytesAreSigned ? 0 : first);
#pragma GCC unroll 2
    for (int j = 0; j < V; ++j) acc[i][j] = start;
  }
  if constexpr (!nibbles) {
    add_bytes(w, ahead, row, g, acc);
    return;
  }
#pragma GCC unroll 4
  for (int q = 0; q < 8; q += 2) {
    Bytes both[V];
#pragma GCC unroll 2
    for (int j = 0; j < V; ++j) both[j] = load_bytes(w + q / 2 * kQuadBytes + j * 64);
#pragma GCC unroll 2
    for (int j = 0; j < V; ++j) ahead.fetch(w + q / 2 * kQuadBytes + j * 64);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const std::uint32_t first = load_u32(row(i).q[g] + q * 4), second = load_u32(row(i).q[g] + q * 4 + 4);
#pragma GCC unroll 2
      for (int j = 0; j < V; ++j) {
        acc[i][j] = dot_nibbles(acc[i][j], low_nibbles(both[j]), first);
        acc[i][j] = dot_nibbles(acc[i][j], high_nibbles(both[j]), second);
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < V; ++j) acc[i][j] = end_nibbles(acc[i][j], row(i).start[g]);
  }
}

template <int M, bool nibbles, bool minimum, class Prefetch>
DRAGOMAN_INLINE void quantized_tile(const std::uint8_t* w, long groups, const std::uint8_t* x, long stride,
                                    Prefetch prefetch, Vec (&sum)[M][kVectors]) {
  constexpr Precision kPrecision = nibbles ? Precision::int4 : Precision::int8;
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < kVectors; ++j) sum[i][j] = zero();
  }
  for (long left = groups; left > 0; left -= kWeightGroups) {
    const auto row = [=](int i) -> const ActGroup& { return *reinterpret_cast<const ActGroup*>(x + i * stride); };
    Vec part[M][kVectors];
    for (int i = 0; i < M; ++i) {
      for (int j = 0; j < kVectors; ++j) part[i][j] = zero();
    }
    const long count = left < kWeightGroups ? left : kWeightGroups;
#pragma GCC unroll 1
    for (long g = 0; g < count; ++g) {
      prefetch.fetch_group();
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v += kTogether<M>) {
        Ints acc[M][kTogether<M>];
        multiply_group<M, kTogether<M>, nibbles>(w + v * 64, prefetch, row, g, acc);
#pragma GCC unroll 2
        for (int j = 0; j < kTogether<M>; ++j) {
          const auto* const scales = reinterpret_cast<const std::uint16_t*>(w + numbers_bytes(kPrecision));
          const Vec scale = load_fp16(scales + (v + j) * kWidth);
#pragma GCC unroll 8
          for (int i = 0; i < M; ++i) part[i][v + j] = fma(to_float(acc[i][j]), scale, part[i][v + j]);
          if constexpr (minimum) {
            const Vec least = load_fp16(scales + kBlock + (v + j) * kWidth);
#pragma GCC unroll 8
            for (int i = 0; i < M; ++i) part[i][v + j] = fma(least, broadcast(row(i).sum[g]), part[i][v + j]);
          }
        }
      }
      for (long line = numbers_bytes(kPrecision); line < group_bytes(kPrecision, minimum); line += 64) {
        prefetch.fetch(w + line);
      }
      w += group_bytes(kPrecision, minimum);
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const Vec scale = broadcast(row(i).scale);
#pragma GCC unroll 2
      for (int j = 0; j < kVectors; ++j) sum[i][j] = fma(part[i][j], scale, sum[i][j]);
    }
    x += sizeof(ActGroup);
  }
}

// The same for a wide matrix, whose integer sums cover a whole ActGroup.
template <int M, class Prefetch>
DRAGOMAN_INLINE void wide_tile(const std::uint8_t* w, long groups, const std::uint8_t* x, long stride,
                               Prefetch prefetch, Vec (&sum)[M][kVectors]) {
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < kVectors; ++j) sum[i][j] = zero();
  }
  long left = groups;
  if constexpr (M >= kTuning.assembly_rows) {
    if (left >= kWeightGroups) add_wide_groups<M>(w, left / kWeightGroups, x, stride, prefetch, sum);
    left %= kWeightGroups;
  }
  for (; left > 0; left -= kWeightGroups) {
    const auto row = [=](int i) -> const ActGroup& { return *reinterpret_cast<const ActGroup*>(x + i * stride); };
    const long count = left < kWeightGroups ? left : kWeightGroups;
    const auto* const scales = reinterpret_cast<const std::uint16_t*>(w + count * numbers_bytes(Precision::int8));
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += kTogether<M>) {
      Ints acc[M][kTogether<M>];
#pragma GCC unroll 16
      for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < kTogether<M>; ++j) acc[i][j] = broadcast_int(kBytesAreSigned ? 0 : row(i).wide_start);
      }
#pragma GCC unroll 1
      for (long g = 0; g < count; ++g) {
        if (v == 0) prefetch.fetch_group();
        add_bytes(w + g * numbers_bytes(Precision::int8) + v * 64, prefetch, row, g, acc);
      }
#pragma GCC unroll 2
      for (int j = 0; j < kTogether<M>; ++j) {
        const Vec scale = load_fp16(scales + (v + j) * kWidth);
#pragma GCC unroll 16
        for (int i = 0; i < M; ++i) {
          sum[i][v + j] = fma(to_float(acc[i][j]) * scale, broadcast(row(i).scale), sum[i][v + j]);
        }
      }
    }
    prefetch.fetch(reinterpret_cast<const std::uint8_t*>(scales));
    w += count * numbers_bytes(Precision::int8) + kBlock * 2;
    x += sizeof(ActGroup);
  }
}

// One step of a float chain: the next number of each column times the row's, or the next pair of each.
struct Float32Step {
  using Numbers = Vec;
  static constexpr int kSteps = kGroup;  // of a group
  DRAGOMAN_INLINE Numbers load_numbers(const std::uint8_t* w) { return load(reinterpret_cast<const float*>(w)); }
  DRAGOMAN_INLINE Vec multiply(Vec sum, Numbers w, std::uint32_t x) { return fma(w, broadcast(bits_to_float(x)), sum); }
};
struct BFloat16Step {
  using Numbers = BF16Pairs;
  static constexpr int kSteps = kGroup / 2;
  DRAGOMAN_INLINE Numbers load_numbers(const std::uint8_t* w) { return load_bf16_pairs(w); }
  DRAGOMAN_INLINE Vec multiply(Vec sum, Numbers w, std::uint32_t x) { return dot_bf16_pairs(sum, w, x); }
};

template <class Step, int M, class Prefetch>
DRAGOMAN_INLINE void float_tile(const std::uint8_t* w, long groups, const std::uint8_t* x, long stride,
                                Prefetch prefetch, Vec (&sum)[M][kVectors]) {
  if constexpr (M >= kTuning.bfloat16_rows && Step::kSteps == BFloat16Step::kSteps) {
    return add_bfloat16_groups<M>(w, groups, x, stride, prefetch, sum);
  }
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < kVectors; ++j) sum[i][j] = zero();
  }
  for (long g = 0; g < groups; ++g) {
    prefetch.fetch_group();
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += kTogether<M>) {
      Vec part[M][kTogether<M>];
      for (int i = 0; i < M; ++i) {
        for (int j = 0; j < kTogether<M>; ++j) part[i][j] = sum[i][v + j];
      }
#pragma GCC unroll 2
      for (int s = 0; s < Step::kSteps; ++s) {
        typename Step::Numbers numbers[kTogether<M>];
#pragma GCC unroll 2
        for (int j = 0; j < kTogether<M>; ++j) numbers[j] = Step::load_numbers(w + s * kBlock * 4 + (v + j) * 64);
#pragma GCC unroll 2
        for (int j = 0; j < kTogether<M>; ++j) prefetch.fetch(w + s * kBlock * 4 + (v + j) * 64);
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
          const std::uint32_t value = load_u32(x + i * stride + s * 4);
#pragma GCC unroll 2
          for (int j = 0; j < kTogether<M>; ++j) part[i][j] = Step::multiply(part[i][j], numbers[j], value);
        }
        prefetch.spread(part[M - 1][kTogether<M> - 1]);
      }
      for (int i = 0; i < M; ++i) {
        for (int j = 0; j < kTogether<M>; ++j) sum[i][v + j] = part[i][j];
      }
    }
    x += Step::kSteps * 4;
    w += Step::kSteps * kBlock * 4;
  }
}

}  // namespace dragoman::DRAGOMAN_ISA

#include "gemm/chunk_tiles.inl"

namespace dragoman::DRAGOMAN_ISA {

enum class TileKind {
  float32,
  bfloat16,
  int8,
  wide_int8,
  int4,
  int4_minimum,
  mxfp4,
  iq4_nl,
  iq4_xs,
  q3_k,
  q4_k,
  q5_k,
  q6_k
};

// The format of a kind of chunked tiles.
constexpr Precision chunked_precision(TileKind kind) {
  const int place = static_cast<int>(kind) - static_cast<int>(TileKind::mxfp4);
  return static_cast<Precision>(static_cast<int>(Precision::mxfp4) + place);
}

template <TileKind kind, int M, class Prefetch>
void run_tile(const Matrix& w, const Activations& a, long row, Prefetch prefetch, const Output& out, long block) {
  // The lines of y are far away: without prefetching them before the writes, a tile of 6 × 2048 took a tenth longer.
  for (int i = 0; i < M; ++i) {
    float* const y = out.y + (row + i) * out.ldy + block * kBlock;
    for (int j = 0; j < kVectors; ++j) __builtin_prefetch(y + j * kWidth, 1, 3);
  }
  const std::uint8_t* const x = a.values + row * a.stride;
  const std::uint8_t* const weights = w.block(block);
  Vec sum[M][kVectors];
  if constexpr (kind == TileKind::float32) {
    float_tile<Float32Step>(weights, w.groups(), x, a.stride, prefetch, sum);
  } else if constexpr (kind == TileKind::bfloat16) {
    float_tile<BFloat16Step>(weights, w.groups(), x, a.stride, prefetch, sum);
  } else if constexpr (kind == TileKind::wide_int8) {
    wide_tile<M>(weights, w.groups(), x, a.stride, prefetch, sum);
  } else if constexpr (kind >= TileKind::mxfp4) {
    chunked_tile<chunked_precision(kind), M>(weights, w.groups(), x, a.stride, prefetch, sum);
  } else {
    quantized_tile<M, kind != TileKind::int8, kind == TileKind::int4_minimum>(weights, w.groups(), x, a.stride,
                                                                              prefetch, sum);
  }
  finish(out, row, block, sum);
}

template <class Prefetch>
using Tile = void (*)(const Matrix&, const Activations&, long, Prefetch, const Output&, long);

// The tile of so many rows, at most R.
template <TileKind kind, int R, class Prefetch>
Tile<Prefetch> tile_of(long rows) {
  static_assert(R <= kMaxRows);
  static constexpr Tile<Prefetch> tiles[kMaxRows] = {
      run_tile<kind, 1, Prefetch>,
      run_tile<kind, (R >= 2 ? 2 : 1), Prefetch>,
      run_tile<kind, (R >= 3 ? 3 : 1), Prefetch>,
      run_tile<kind, (R >= 4 ? 4 : 1), Prefetch>,
      run_tile<kind, (R >= 5 ? 5 : 1), Prefetch>,
      run_tile<kind, (R >= 6 ? 6 : 1), Prefetch>,
      run_tile<kind, (R >= 7 ? 7 : 1), Prefetch>,
      run_tile<kind, (R >= 8 ? 8 : 1), Prefetch>,
  };
  return tiles[rows - 1];
}

// Distance at which one tile prefetches weights from memory, and from how many rows on where the processor's own
// prefetcher is left alone with fewer.
struct FetchAhead {
  long rows, bytes;
};
constexpr FetchAhead fetch_ahead(TileKind kind) {
  switch (kind) {
    case TileKind::float32: return {.rows = kNever, .bytes = 0};
    case TileKind::bfloat16: return {.rows = kTuning.ahead_rows_bfloat16, .bytes = kTuning.ahead_bytes};
    case TileKind::int8:
    case TileKind::wide_int8: return {.rows = kTuning.ahead_rows_int8, .bytes = kTuning.ahead_bytes};
    case TileKind::int4:
    case TileKind::int4_minimum:
    case TileKind::iq4_nl:
    case TileKind::iq4_xs:
    case TileKind::q6_k: return {.rows = kTuning.ahead_rows_int4, .bytes = kTuning.ahead_bytes};
    default: return {.rows = kTuning.ahead_rows_chunked, .bytes = kTuning.ahead_bytes};
  }
}

// All rows times one block, in tiles of at most R rows of sizes as equal as possible. Several tiles share the
// prefetching of the next block, if there is one.
template <TileKind kind, int R>
void multiply_block(const Matrix& w, const Activations& a, long block, bool another, const Output& out) {
  constexpr FetchAhead ahead = fetch_ahead(kind);
  const long count = (a.rows + R - 1) / R;
  if constexpr (ahead.rows <= R) {
    if (count == 1 && a.rows >= rows_to_fetch_from(ahead.rows) && a.rows <= kTogetherRows) {
      return tile_of<kind, R, Ahead>(a.rows)(w, a, 0, Ahead{.bytes = ahead.bytes}, out, block);
    }
  }
  const long groups = count * w.groups();
  const bool wanted = another && (count > 1 || a.rows >= ahead.rows);
  const long lines = wanted ? (w.block_bytes() / 64 + groups - 1) / groups : 0;
  const std::uint8_t* next = w.block(block) + (count > 1 ? w.block_bytes() : ahead.bytes);
  long row = 0;
  for (long t = 0; t < count; ++t) {
    const long rows = a.rows / count + (t < a.rows % count ? 1 : 0);
    tile_of<kind, R, NextBlock>(rows)(w, a, row, NextBlock{.next = next, .lines_per_group = lines}, out, block);
    next += lines * 64 * w.groups();
    row += rows;
  }
}

// Many rows: a few blocks that fit the second-level cache together with a part of the rows are processed part by part.
constexpr long kRowsBytes = 400 << 10, kBlocksBytes = 450 << 10;

template <TileKind kind, int R>
void multiply_blocks(const Matrix& w, const Activations& a, long begin, long end, const Output& out) {
  const long parts = (a.rows * a.stride + kRowsBytes - 1) / kRowsBytes;
  const long blocks = parts == 1 ? end - begin : std::max(1L, kBlocksBytes / w.block_bytes());
  const long step = ((a.rows + parts - 1) / parts + R - 1) / R * R;
  for (long first = begin; first < end; first += blocks) {
    const long last = end - first < blocks ? end : first + blocks;
    for (long row = 0; row < a.rows; row += step) {
      Activations part = a;
      part.values += row * a.stride;
      part.rows = a.rows - row < step ? a.rows - row : step;
      Output there = out;
      there.y += row * out.ldy;
      for (long block = first; block < last; ++block) multiply_block<kind, R>(w, part, block, block + 1 < end, there);
    }
  }
}

// Where matrices are multiplied with each other the sums lie in memory, so no register limits the rows of a tile.
constexpr int kBFloat16Rows = kTuning.bfloat16_rows <= kMaxRows ? kMaxRows : kTuning.float_rows;

template <TileKind kind>
inline void multiply_chunked(const Matrix& w, const Activations& a, long begin, long end, const Output& out) {
  multiply_blocks<kind, kTuning.quantized_rows>(w, a, begin, end, out);
}

inline void multiply_matrix(const Matrix& w, const Activations& a, long begin, long end, float* y, long ldy,
                            const float* bias, bool accumulate) {
  const Output out{.y = y, .ldy = ldy, .n = w.n, .bias = bias, .accumulate = accumulate};
  switch (w.precision) {
    case Precision::float32: return multiply_blocks<TileKind::float32, kTuning.float_rows>(w, a, begin, end, out);
    case Precision::bfloat16: return multiply_blocks<TileKind::bfloat16, kBFloat16Rows>(w, a, begin, end, out);
    case Precision::int8:
      return w.wide ? multiply_blocks<TileKind::wide_int8, kTuning.wide_rows>(w, a, begin, end, out)
                    : multiply_blocks<TileKind::int8, kTuning.quantized_rows>(w, a, begin, end, out);
    case Precision::int4:
      // Splitting the codes again in every tile costs less than reading them as bytes from the second-level cache.
      return w.minimum ? multiply_blocks<TileKind::int4_minimum, kTuning.quantized_rows>(w, a, begin, end, out)
                       : multiply_blocks<TileKind::int4, kTuning.quantized_rows>(w, a, begin, end, out);
    case Precision::mxfp4: return multiply_chunked<TileKind::mxfp4>(w, a, begin, end, out);
    case Precision::iq4_nl: return multiply_chunked<TileKind::iq4_nl>(w, a, begin, end, out);
    case Precision::iq4_xs: return multiply_chunked<TileKind::iq4_xs>(w, a, begin, end, out);
    case Precision::q3_k: return multiply_chunked<TileKind::q3_k>(w, a, begin, end, out);
    case Precision::q4_k: return multiply_chunked<TileKind::q4_k>(w, a, begin, end, out);
    case Precision::q5_k: return multiply_chunked<TileKind::q5_k>(w, a, begin, end, out);
    case Precision::q6_k: return multiply_chunked<TileKind::q6_k>(w, a, begin, end, out);
  }
}

constexpr LinearKernels linear_kernels{
    .prepare = prepare_rows,
    .multiply = multiply_matrix,
    .pack = pack_blocks,
    .quantize_iq4_nl = quantize_iq4_nl,
    .unpack_row = unpack_row,
    .multiply_peak = multiply_peak,
    .read = read_floats,
};

}  // namespace dragoman::DRAGOMAN_ISA
