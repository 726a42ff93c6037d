// Packed matrix products: register tiles over panels of a few column blocks.
//
// Every element of y is one chain over k: for quantized weights an exact integer sum per group, folded into the float32
// sum of its span of four groups in ascending order, and the spans' sums in ascending order; otherwise one fused
// multiply-add after the other. Tiles differ only in how many such chains run side by side, so a row's bits do not depend
// on its company.
#include "dot.h"
// clang-format off
#include "activations.inl"
#include "packing.inl"
// clang-format on

namespace dragoman::DRAGOMAN_ISA {

// Rows and column blocks of a tile.
struct Shape {
  int rows, blocks;
};

// Few rows: all of them in one tile, and the weights are read in the order of memory. Many rows: enough chains to cover
// the latency of the multiplier (about 12), in a shape that loads least, and no more than the registers hold; a quantized
// chain takes two (integer and float).
#if defined(DRAGOMAN_AVX512)
constexpr Shape kFewQuantized{8, 1}, kManyQuantized{6, 2};
constexpr Shape kFewFloat{8, 2}, kManyFloat{6, 4};
#elif defined(DRAGOMAN_AVX2)
constexpr Shape kFewQuantized{2, 1}, kManyQuantized{2, 1};
constexpr Shape kFewFloat{4, 1}, kManyFloat{4, 1};
#else
constexpr Shape kFewQuantized{1, 1}, kManyQuantized{1, 1};
constexpr Shape kFewFloat{1, 1}, kManyFloat{1, 1};
#endif
constexpr int kMaxRows = 8;

// How far ahead quantized weights are fetched that are read but once. Beside several rows of arithmetic the processor's
// own prefetcher reaches two thirds of the bandwidth. Beside one row it follows the numbers of int8, though not their
// scales, and does not keep up with the half as long rows of int4: there, other distances and pairings lose 5 to 20 %.
constexpr long kFetchAhead = 32768, kNumbersAhead = 4096, kScalesAhead = 512;
#if defined(DRAGOMAN_AVX512)
constexpr bool kOneRowIsLight = true;
#else
constexpr bool kOneRowIsLight = false;  // its arithmetic is as heavy as that of several rows above
#endif

// Some column blocks of a matrix, as a tile reads them.
struct Panel {
  const std::uint8_t* numbers;  // of the first block
  const std::uint8_t* scales;   // of the first block
  long stride;                  // bytes from one block to the next
  long minimums_offset;         // bytes from the scales to the minimums
  long groups;
};

// Lines to fetch into the cache while a tile runs. Without `next`, one row reads a stream from memory.
struct Prefetch {
  const std::uint8_t* next;
  long lines_per_group;
};

DRAGOMAN_INLINE void fetch(Prefetch& prefetch) {
  for (long i = 0; i < prefetch.lines_per_group; ++i, prefetch.next += 64) __builtin_prefetch(prefetch.next, 0, 3);
}

template <bool nibbles>
DRAGOMAN_INLINE void fetch_for_one_row(const std::uint8_t* numbers, const std::uint8_t* scales) {
  if constexpr (nibbles) {
    for (long i = 0; i < 256; i += 64) __builtin_prefetch(numbers + kNumbersAhead + i, 0, 3);
  } else {
    __builtin_prefetch(scales + kScalesAhead, 0, 3);
  }
}

// The integer sums of one group: acc[i][j] = Σ q · (w − bias).
template <int M, int NB, bool nibbles, class Span>
DRAGOMAN_INLINE void multiply_group(const std::uint8_t* w, long stride, Span span, long g, Ints (&acc)[M][NB]) {
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
    const Ints start = broadcast_int(kBytesAreSigned && !nibbles ? 0 : span(i).start[g]);
#pragma GCC unroll 4
    for (int j = 0; j < NB; ++j) acc[i][j] = start;
  }
  if constexpr (nibbles) {
#pragma GCC unroll 4
    for (int q = 0; q < 8; q += 2) {
      Bytes both[NB];
#pragma GCC unroll 4
      for (int j = 0; j < NB; ++j) both[j] = load_bytes(w + j * stride + q * 32);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const std::uint32_t first = load_u32(span(i).q[g] + q * 4), second = load_u32(span(i).q[g] + q * 4 + 4);
#pragma GCC unroll 4
        for (int j = 0; j < NB; ++j) {
          acc[i][j] = dot_nibbles(acc[i][j], low_nibbles(both[j]), first);
          acc[i][j] = dot_nibbles(acc[i][j], high_nibbles(both[j]), second);
        }
      }
    }
  } else {
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
      Bytes quads[NB];
#pragma GCC unroll 4
      for (int j = 0; j < NB; ++j) quads[j] = load_bytes(w + j * stride + q * 64);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const std::uint32_t quad = load_u32(span(i).q[g] + q * 4);
#pragma GCC unroll 4
        for (int j = 0; j < NB; ++j) acc[i][j] = dot_bytes(acc[i][j], quads[j], quad);
      }
    }
  }
}

template <int M, int NB, bool nibbles, bool minimum>
DRAGOMAN_INLINE void quantized_tile(const Panel& panel, const std::uint8_t* x, long stride, Prefetch prefetch,
                                    Vec (&sum)[M][NB]) {
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < NB; ++j) sum[i][j] = zero();
  }
  const std::uint8_t* w = panel.numbers;
  const std::uint8_t* s = panel.scales;
  for (long left = panel.groups; left > 0; left -= QuantizedSpan::kGroups) {
    const auto span = [=](int i) -> const QuantizedSpan& {
      return *reinterpret_cast<const QuantizedSpan*>(x + i * stride);
    };
    Vec part[M][NB];
    for (int i = 0; i < M; ++i) {
      for (int j = 0; j < NB; ++j) part[i][j] = zero();
    }
    const long groups = left < QuantizedSpan::kGroups ? left : QuantizedSpan::kGroups;
#pragma GCC unroll 1
    for (long g = 0; g < groups; ++g) {
      if (kOneRowIsLight && M == 1 && prefetch.next == nullptr) {
        fetch_for_one_row<nibbles>(w, s);
      } else {
        fetch(prefetch);
      }
      Ints acc[M][NB];
      multiply_group<M, NB, nibbles>(w, panel.stride, span, g, acc);
#pragma GCC unroll 4
      for (int j = 0; j < NB; ++j) {
        const std::uint8_t* const scales = s + j * panel.stride;
        const Vec scale = load_fp16(reinterpret_cast<const std::uint16_t*>(scales));
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) part[i][j] = fma(to_float(acc[i][j]), scale, part[i][j]);
        if constexpr (minimum) {
          const Vec least = load_fp16(reinterpret_cast<const std::uint16_t*>(scales + panel.minimums_offset));
#pragma GCC unroll 8
          for (int i = 0; i < M; ++i) part[i][j] = fma(least, broadcast(span(i).sum[g]), part[i][j]);
        }
      }
      w += nibbles ? 256 : 512;
      s += kBlock * 2;
    }
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const Vec scale = broadcast(span(i).scale);
#pragma GCC unroll 4
      for (int j = 0; j < NB; ++j) sum[i][j] = fma(part[i][j], scale, sum[i][j]);
    }
    x += sizeof(QuantizedSpan);
  }
}

template <int M, int NB>
DRAGOMAN_INLINE void bfloat16_tile(const Panel& panel, const std::uint8_t* x, long stride, Prefetch prefetch,
                                   Vec (&sum)[M][NB]) {
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < NB; ++j) sum[i][j] = zero();
  }
  const std::uint8_t* w = panel.numbers;
  for (long g = 0; g < panel.groups; ++g) {
    fetch(prefetch);
#pragma GCC unroll 2
    for (int p = 0; p < kGroup / 2; ++p) {
      Pairs pairs[NB];
#pragma GCC unroll 4
      for (int j = 0; j < NB; ++j) pairs[j] = load_pairs(w + j * panel.stride);
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const std::uint32_t pair = load_u32(x + i * stride);
#pragma GCC unroll 4
        for (int j = 0; j < NB; ++j) sum[i][j] = dot_pairs(sum[i][j], pairs[j], pair);
      }
      x += 4;
      w += 64;
    }
  }
}

template <int M, int NB>
DRAGOMAN_INLINE void float32_tile(const Panel& panel, const std::uint8_t* x, long stride, Prefetch prefetch,
                                  Vec (&sum)[M][NB]) {
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < NB; ++j) sum[i][j] = zero();
  }
  const std::uint8_t* w = panel.numbers;
  for (long g = 0; g < panel.groups; ++g) {
    fetch(prefetch);
#pragma GCC unroll 2
    for (int k = 0; k < kGroup; ++k) {
      Vec column[NB];
#pragma GCC unroll 4
      for (int j = 0; j < NB; ++j) column[j] = load(reinterpret_cast<const float*>(w + j * panel.stride));
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const Vec value = broadcast(bits_to_float(load_u32(x + i * stride)));
#pragma GCC unroll 4
        for (int j = 0; j < NB; ++j) sum[i][j] = fma(column[j], value, sum[i][j]);
      }
      x += 4;
      w += 64;
    }
  }
}

// Where a tile's sums go.
struct Output {
  float* y;
  long ldy;
  long n;  // columns of y
  const float* bias;
  bool accumulate;
};

template <int M, int NB>
DRAGOMAN_INLINE void finish(const Output& out, long row, long block, const Vec (&sum)[M][NB]) {
  for (int j = 0; j < NB; ++j) {
    const long column = (block + j) * kBlock;
    const long width = out.n - column;
    for (int i = 0; i < M; ++i) {
      float* const y = out.y + (row + i) * out.ldy + column;
      Vec value = sum[i][j];
      if (width >= kBlock) {
        if (out.bias != nullptr) value = value + load(out.bias + column);
        if (out.accumulate) value = value + load(y);
        store(y, value);
      } else {
        if (out.bias != nullptr) value = value + load_partial(out.bias + column, width);
        if (out.accumulate) value = value + load_partial(y, width);
        store_partial(y, value, width);
      }
    }
  }
}

enum class Kind { float32, bfloat16, int8, int4, int4_minimum };

template <Kind kind, int M, int NB>
void run_tile(const Panel& panel, const Activations& a, long row, Prefetch prefetch, const Output& out, long block) {
  Vec sum[M][NB];
  const std::uint8_t* const x = a.values + row * a.stride;
  if constexpr (kind == Kind::float32) {
    float32_tile<M, NB>(panel, x, a.stride, prefetch, sum);
  } else if constexpr (kind == Kind::bfloat16) {
    bfloat16_tile<M, NB>(panel, x, a.stride, prefetch, sum);
  } else {
    quantized_tile<M, NB, kind != Kind::int8, kind == Kind::int4_minimum>(panel, x, a.stride, prefetch, sum);
  }
  finish<M, NB>(out, row, block, sum);
}

// All rows times one panel of NB blocks, in tiles of at most R rows and as equal as can be. The tiles share the fetching
// of the next panel; `next_bytes` is 0 after the last one.
template <Kind kind, int R, int NB>
void multiply_panel(const Panel& panel, const Activations& a, const std::uint8_t* next, long next_bytes,
                    const Output& out, long block) {
  using Tile = void (*)(const Panel&, const Activations&, long, Prefetch, const Output&, long);
  static_assert(R <= kMaxRows);
  static constexpr Tile tiles[kMaxRows] = {
      run_tile<kind, 1, NB>,
      run_tile<kind, R >= 2 ? 2 : 1, NB>,
      run_tile<kind, R >= 3 ? 3 : 1, NB>,
      run_tile<kind, R >= 4 ? 4 : 1, NB>,
      run_tile<kind, R >= 5 ? 5 : 1, NB>,
      run_tile<kind, R >= 6 ? 6 : 1, NB>,
      run_tile<kind, R >= 7 ? 7 : 1, NB>,
      run_tile<kind, R >= 8 ? 8 : 1, NB>,
  };
  const long count = (a.rows + R - 1) / R;
  const long share = (next_bytes / 64 + count - 1) / count;  // lines
  const long lines = (share + panel.groups - 1) / panel.groups;
  long row = 0;
  for (long t = 0; t < count; ++t) {
    const long rows = a.rows / count + (t < a.rows % count ? 1 : 0);
    tiles[rows - 1](panel, a, row, Prefetch{next == nullptr ? nullptr : next + t * share * 64, lines}, out, block);
    row += rows;
  }
}

template <Kind kind, Shape shape>
void multiply_blocks(const Matrix& w, const Activations& a, long begin, long end, const Output& out) {
  constexpr int R = shape.rows, NB = shape.blocks;
  // One tile per panel: the weights are one stream, fetched at a fixed distance. (Of float weights the processor's own
  // prefetcher makes as much.)
  const bool stream = a.rows <= R;
  const auto multiply_at = [&]<int Count>(long block) {
    const std::uint8_t* const start = w.block(block);
    const Panel panel{start, start + w.scales_offset(), w.block_bytes(), w.scales_bytes(), w.groups()};
    const long following = end - block - Count < Count ? end - block - Count : Count;
    const bool light = kOneRowIsLight && a.rows == 1;
    const std::uint8_t* const next = !stream ? w.block(block + Count) : light ? nullptr : start + kFetchAhead;
    const long next_bytes = !stream ? following * w.block_bytes() : w.quantized() ? Count * w.block_bytes() : 0;
    multiply_panel<kind, R, Count>(panel, a, next, next_bytes, out, block);
  };
  long block = begin;
  for (; block + NB <= end; block += NB) multiply_at.template operator()<NB>(block);
  for (; block < end; ++block) multiply_at.template operator()<1>(block);
}

// Many rows: where a few panels fit the second-level cache beside a part of the rows, part after part.
constexpr long kRowsBytes = 400 << 10, kPanelsBytes = 450 << 10;

template <Kind kind, Shape few, Shape many>
void multiply_rows(const Matrix& w, const Activations& a, long begin, long end, const Output& out) {
  if (a.rows <= few.rows) return multiply_blocks<kind, few>(w, a, begin, end, out);
  const long parts = (a.rows * a.stride + kRowsBytes - 1) / kRowsBytes;
  const long blocks = kPanelsBytes / w.block_bytes() / many.blocks * many.blocks;
  if (parts == 1 || blocks == 0) return multiply_blocks<kind, many>(w, a, begin, end, out);
  const long step = ((a.rows + parts - 1) / parts + many.rows - 1) / many.rows * many.rows;
  for (long block = begin; block < end; block += blocks) {
    for (long row = 0; row < a.rows; row += step) {
      Activations part = a;
      part.values += row * a.stride;
      part.rows = a.rows - row < step ? a.rows - row : step;
      Output there = out;
      there.y += row * out.ldy;
      multiply_blocks<kind, many>(w, part, block, end - block < blocks ? end : block + blocks, there);
    }
  }
}

inline void multiply_matrix(const Matrix& w, const Activations& a, long begin, long end, float* y, long ldy,
                            const float* bias, bool accumulate) {
  const Output out{y, ldy, w.n, bias, accumulate};
  constexpr Shape few = kFewQuantized, many = kManyQuantized;
  switch (w.precision) {
    case Precision::float32: return multiply_rows<Kind::float32, kFewFloat, kManyFloat>(w, a, begin, end, out);
    case Precision::bfloat16: return multiply_rows<Kind::bfloat16, kFewFloat, kManyFloat>(w, a, begin, end, out);
    case Precision::int8: return multiply_rows<Kind::int8, few, many>(w, a, begin, end, out);
    case Precision::int4:
      // Splitting the codes again in every tile costs less than reading them as bytes from the second-level cache.
      return w.minimum ? multiply_rows<Kind::int4_minimum, few, many>(w, a, begin, end, out)
                       : multiply_rows<Kind::int4, few, many>(w, a, begin, end, out);
  }
}

#if defined(DRAGOMAN_AVX512)
constexpr int kChainsOfPeak = 12;
#elif defined(DRAGOMAN_AVX2)
constexpr int kChainsOfPeak = 4;  // of two registers each
#else
constexpr int kChainsOfPeak = 2;  // of four
#endif

// Independent chains of one multiply instruction on registers only: what no tile can exceed.
template <Precision precision>
double multiply_rounds(long rounds, float* sink) {
  constexpr int kChains = kChainsOfPeak;
  constexpr double kOperations = precision == Precision::float32 ? 32 : precision == Precision::bfloat16 ? 64 : 128;
  alignas(64) std::uint8_t unknown[64];  // to the compiler
  for (int i = 0; i < 64; ++i) unknown[i] = static_cast<std::uint8_t>(rounds & 1);
  const std::uint32_t x = load_u32(unknown);
  Vec total = zero();
  if constexpr (precision == Precision::float32 || precision == Precision::bfloat16) {
    const Vec value = load(reinterpret_cast<const float*>(unknown));
    const Pairs pairs = load_pairs(unknown);
    Vec sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = value;
    for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) {
        sums[c] = precision == Precision::float32 ? fma(value, sums[c], value) : dot_pairs(sums[c], pairs, x);
      }
    }
    for (int c = 0; c < kChains; ++c) total = total + sums[c];
  } else {
    const Bytes bytes = load_bytes(unknown);
    Ints sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = broadcast_int(c);
    for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) {
        sums[c] = precision == Precision::int8 ? dot_bytes(sums[c], bytes, x) : dot_nibbles(sums[c], bytes, x);
      }
    }
    for (int c = 0; c < kChains; ++c) total = total + to_float(sums[c]);
  }
  store(sink, total);
  return static_cast<double>(rounds) * kChains * kOperations;
}

inline double multiply_peak(Precision precision, long rounds, float* sink) {
  switch (precision) {
#if defined(DRAGOMAN_AVX512)
    case Precision::bfloat16: return multiply_rounds<Precision::bfloat16>(rounds, sink);
#else
    case Precision::bfloat16:  // no instruction of its own: widened and multiplied as float32
#endif
    case Precision::float32: return multiply_rounds<Precision::float32>(rounds, sink);
    case Precision::int8: return multiply_rounds<Precision::int8>(rounds, sink);
    case Precision::int4: return multiply_rounds<Precision::int4>(rounds, sink);
  }
  return 0.0;
}

inline float read_floats(const std::uint8_t* bytes, long length) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  for (long i = 0; i < length; i += 256) {
    for (int c = 0; c < 4; ++c) sums[c] = sums[c] + load(reinterpret_cast<const float*>(bytes + i + c * 64));
  }
  return hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

constexpr LinearKernels linear_kernels{
    prepare_rows, multiply_matrix, pack_blocks, unpack_row, multiply_peak, read_floats,
};

}  // namespace dragoman::DRAGOMAN_ISA
