// Products of many rows with integers, in AMX's tiles.
//
// A block of 32 columns is opened to signed bytes, 128 inputs at a time, which stay in the first-level cache while all
// rows of a strip go by, 16 at a time: two tiles of sums for each part of the inputs that shares a scale. Integer sums
// are exact, and folded in the order of AVX-512's, so the bits are the same. While the tiles multiply 16 rows, the sums
// of the 16 before are folded; the processor has one unit for that while it uses tiles, and folding takes longer.
#pragma once

namespace dragoman::DRAGOMAN_ISA {

// Rows of a strip, whose sums stay in the first-level cache, and bytes of it, which stay in the second-level one.
constexpr long kStripRows = 128, kStripBytes = 1 << 20;

// Whether tiles are used. With fewer than 16 rows AVX-512 takes no longer, and in int8 with a scale for each 32 numbers
// with fewer than 28.
inline bool is_for_tiles(const Matrix& w, long rows) {
  return rows >= (w.precision == Precision::int8 && !w.wide ? 28 : 16);
}

// Blocks of a range from which rows are copied to a panel: with fewer, copying takes longer than reading lines apart.
constexpr long kLeastBlocks = 4;

// Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights: so many rows of sums and of inputs, and bytes of a row of
// inputs; of the current thread.
inline void shape_tiles(long rows, long input_bytes) {
  TileShapes shapes;
  for (int i = 0; i < kTiles; ++i) {
    const bool of_inputs = i == 4 || i == 5;
    shapes.rows[i] = static_cast<std::uint8_t>(i < 6 ? rows : input_bytes / 4);
    shapes.bytes[i] = static_cast<std::uint16_t>(of_inputs ? input_bytes : kTileBytes);
  }
  written(&shapes);
  DRAGOMAN_TILE_SHAPES(shapes);
}

// Memory of a thread that grows.
struct Panel {
  std::uint8_t* bytes = nullptr;
  long size = 0;

  // Null where there is none.
  std::uint8_t* get(long wanted) {
    if (wanted <= size) return bytes;
    std::free(bytes);
    const long whole = (wanted + 4095) / 4096 * 4096;
    bytes = static_cast<std::uint8_t*>(std::aligned_alloc(4096, static_cast<std::size_t>(whole)));
    size = bytes == nullptr ? 0 : whole;
    return bytes;
  }
  ~Panel() { std::free(bytes); }
};

// A kind of integer matrix: how many inputs share a scale, and how 128 inputs of a block are opened.
template <Precision precision, bool is_wide = false, bool has_minimum = false>
struct Kind {
  static constexpr bool kChunked = is_chunked(precision);
  static constexpr ChunkLayout kLayout = chunk_layout(precision);
  static constexpr bool kMinimum = kChunked ? kLayout.minimum : has_minimum;
  static constexpr long kInputs = is_wide ? kActGroup : kChunked ? kLayout.width : kGroup;  // of a part
  static constexpr int kParts = kActGroup / kInputs;
  using Act = typename ActOf<kInputs>::Group;

  // 128 inputs of a block: signed bytes in the order of int8's, and what scales them.
  using Numbers = std::uint8_t[kWeightGroups][kGroup * kBlock];
  struct Factors {
    Vec scale[kVectors][kParts], least[kVectors][kMinimum ? kWeightGroups : 1];
  };

  // Opens a block from w on, 128 inputs after the other.
  struct Reader {
    const std::uint8_t* w;
    long left;  // groups
    const std::uint8_t* head = nullptr;
    long chunk = 0, place = 0;  // groups of the chunk, and those that are opened
    Vec factor[kVectors] = {}, lowest[kVectors] = {};

    void open(Numbers& numbers, Factors& to) {
      const long count = left < kWeightGroups ? left : kWeightGroups;
      if constexpr (kChunked) {
        open_chunk(count, numbers, to);
      } else {
        for (long g = 0; g < count; ++g) {
          open_group(w, numbers[g]);
          w += numbers_bytes(precision);
          if constexpr (is_wide) continue;
          load_scales(to, g);
        }
        if constexpr (is_wide) load_scales(to, 0);
      }
      for (long g = count; g < kWeightGroups; ++g) {  // the inputs of the groups that are not there are 0
        std::memset(numbers[g], 0, sizeof numbers[g]);
        for (int v = 0; v < kVectors; ++v) {
          for (int p = 0; p < kParts / kWeightGroups; ++p) to.scale[v][g * (kParts / kWeightGroups) + p] = zero();
          if constexpr (kMinimum) to.least[v][g] = zero();
        }
      }
      left -= count;
    }

    // Lines of the next 128 inputs from `from` on, while rows are multiplied: into the cache that they are opened from.
    DRAGOMAN_INLINE void prefetch(const Reader& reader, long from, long lines) {
      for (long line = from; line < from + lines; ++line) __builtin_prefetch(reader.w + line * 64, 0, 3);
    }
    static constexpr long kLines = (kWeightGroups * group_bytes(precision, kMinimum) + 63) / 64;

   private:
    static void subtract_bias(Bytes codes, std::uint8_t* to) {
      constexpr int kBias = bias_of(precision, has_minimum);
      _mm512_store_si512(to, _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(kBias))));
    }
    static void open_group(const std::uint8_t* from, std::uint8_t* to) {
      if constexpr (precision == Precision::int8) {
        for (long line = 0; line < kGroup * kBlock; line += 64) subtract_bias(load_bytes(from + line), to + line);
      } else {
        using Format = Codes<kChunked ? precision : Precision::q4_k>;
        const auto codes = Format::load_codes();
        for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
          for (int p = 0; p < 4; ++p) {
            Bytes first, second;
            Format::load_pair(codes, from + v * 64, p, first, second);
            subtract_bias(first, to + 2 * p * kQuadBytes + v * 64);
            subtract_bias(second, to + (2 * p + 1) * kQuadBytes + v * 64);
          }
        }
      }
    }
    void load_scales(Factors& to, long part) {
      const auto* const scales = reinterpret_cast<const std::uint16_t*>(w);
      for (int v = 0; v < kVectors; ++v) {
        to.scale[v][part] = load_fp16(scales + v * kWidth);
        if constexpr (kMinimum) to.least[v][part] = load_fp16(scales + kBlock + v * kWidth);
      }
      w += (1 + kMinimum) * kBlock * 2;
    }
    void open_chunk(long count, Numbers& numbers, Factors& to) {
      if (place == chunk) {
        chunk = left < kLayout.groups ? left : kLayout.groups;
        place = 0;
        head = w;
        for (int v = 0; v < kVectors; ++v) {
          const auto* const halves = reinterpret_cast<const std::uint16_t*>(head) + v * kWidth;
          factor[v] = kLayout.halves() > 0 ? load_fp16(halves) : zero();
          lowest[v] = kLayout.minimum ? load_fp16(halves + kBlock) : zero();
        }
        w += kLayout.head_bytes(chunk);
      }
      constexpr int kOfGroup = kParts / kWeightGroups;
      for (long g = 0; g < count; ++g, ++place) {
        open_group(w, numbers[g]);
        w += numbers_bytes(precision);
        for (int v = 0; v < kVectors; ++v) {
          for (int p = 0; p < kOfGroup; ++p) {
            to.scale[v][g * kOfGroup + p] = load_scale<precision>(head, place * kOfGroup + p, v, factor[v]);
          }
          if constexpr (kMinimum) {
            const std::uint8_t* const minimums = head + kLayout.minimums_offset(chunk) + place * kBlock;
            to.least[v][g] = load_int8(minimums + v * kWidth) * lowest[v];
          }
        }
      }
    }
  };

  // Blocks that are multiplied together, each reading the inputs from the second-level cache: of kinds with more sums
  // than one of a block, they would not fit the first-level one.
  static constexpr int kBlocks = kParts == 1 ? 2 : 1;
  static constexpr long kColumns = kBlocks * kBlock;
  static constexpr long kInputBytes = kInputs < kTileBytes ? kInputs : kTileBytes;

  // 128 inputs of some rows: bytes at distances of `stride`, scale and sums of row i at factors + i · apart; and how
  // far behind both the next 128 are.
  struct Inputs {
    const std::uint8_t* bytes = nullptr;
    long stride = 0;
    const float* factors = nullptr;
    long apart = 0, next_bytes = 0, next_factors = 0;

    Inputs from(long row) const {
      Inputs some = *this;
      some.bytes += row * stride, some.factors += row * apart;
      return some;
    }
    void advance() { bytes += next_bytes, factors += next_factors; }
  };

  // Where the sums of an Act begin, and its scale among the floats from there on; how many of them are kept.
  static constexpr long kFactorsAt = kMinimum ? offsetof(ActGroup, sum) : offsetof(Act, scale);
  static constexpr long kScaleAt = kMinimum ? 5 : 0, kFactors = kScaleAt + 1;

  static Inputs rows_from(const Activations& a, long top) {
    const std::uint8_t* const from = a.values + top * a.stride;
    const auto* const factors = reinterpret_cast<const float*>(from + kFactorsAt);
    return {from, a.stride, factors, a.stride / 4, sizeof(Act), sizeof(Act) / 4};
  }

  // Rows of a strip, copied to a panel, 128 inputs after the other; where there is no memory for it, as they are.
  static Inputs gather(const Activations& a, long acts, long top, long rows, Panel& panel) {
    std::uint8_t* const bytes = panel.get(rows * acts * (kActGroup + kFactors * 4));
    if (bytes == nullptr) return rows_from(a, top);
    auto* const factors = reinterpret_cast<float*>(bytes + rows * acts * kActGroup);
    for (long i = 0; i < rows; ++i) {
      const std::uint8_t* from = a.values + (top + i) * a.stride;
      for (long act = 0; act < acts; ++act, from += sizeof(Act)) {
        const long to = act * rows + i;
        _mm512_store_si512(bytes + to * kActGroup, _mm512_load_si512(from));
        _mm512_store_si512(bytes + to * kActGroup + 64, _mm512_load_si512(from + 64));
        std::memcpy(factors + to * kFactors, from + kFactorsAt, kFactors * 4);
      }
    }
    return {bytes, kActGroup, factors, kFactors, rows * kActGroup, rows * kFactors};
  }

  // The integer sums of 16 rows.
  struct alignas(64) Products {
    std::int32_t sums[kParts][kTileRows][kColumns];
  };

  // Rows [first, rows) of products, and where they are folded to.
  struct Folding {
    const Products* products = nullptr;
    const Factors* w = nullptr;  // of each block
    Inputs x;
    float (*sum)[kColumns] = nullptr;
    long first = 0, rows = 0;
    const Output* out = nullptr;  // of the last inputs: where the sums go
    long row = 0, block = 0;      // of out

    // Whether all 16 rows are folded, and into `sum`.
    bool is_plain() const { return first == 0 && rows == kTileRows && out == nullptr; }

    // One row, from its sums before.
    template <int blocks>
    DRAGOMAN_INLINE void fold_row(const Folding& folding, long i, Vec (&sums)[blocks * kVectors]) {
      const std::int32_t* const products = folding.products->sums[0][i];
      const float* const x = folding.x.factors + i * folding.x.apart;
      const Vec row_scale = broadcast(x[kScaleAt]);
#pragma GCC unroll 4
      for (int v = 0; v < blocks * kVectors; ++v) {
        const Factors& w = folding.w[v / kVectors];
        const int j = v % kVectors;
        const auto product = [&](int p) {
          return to_float(_mm512_load_si512(products + p * kTileRows * kColumns + v * kWidth));
        };
        Vec part = product(0) * w.scale[j][0];
        if constexpr (kMinimum) part = fma(w.least[j][0], broadcast(x[0]), part);
#pragma GCC unroll 8
        for (int p = 1; p < kParts; ++p) {
          part = fma(product(p), w.scale[j][p], part);
          if constexpr (kMinimum) part = fma(w.least[j][p], broadcast(x[p]), part);
        }
        sums[v] = fma(part, row_scale, load(folding.sum[i] + v * kWidth));
      }
    }

    // Four rows of a plain one: part `step` of 4.
    template <int blocks>
    DRAGOMAN_INLINE void run_plain(const Folding& folding, long step) {
#pragma GCC unroll 4
      for (long i = step * 4; i < step * 4 + 4; ++i) {
        Vec sums[blocks * kVectors];
        fold_row<blocks>(folding, i, sums);
#pragma GCC unroll 4
        for (int v = 0; v < blocks * kVectors; ++v) store(folding.sum[i] + v * kWidth, sums[v]);
      }
    }

    template <int blocks>
    static __attribute__((noinline)) void run(const Folding& folding) {
      for (long i = folding.first; i < folding.rows; ++i) {
        Vec sums[blocks * kVectors];
        fold_row<blocks>(folding, i, sums);
        for (int b = 0; b < blocks; ++b) {
          const Vec one[1][kVectors] = {{sums[b * kVectors], sums[b * kVectors + 1]}};
          if (folding.out != nullptr) {
            finish<1>(*folding.out, folding.row + i, folding.block + b, one);
          } else {
            for (int j = 0; j < kVectors; ++j) store(folding.sum[i] + b * kBlock + j * kWidth, one[0][j]);
          }
        }
      }
    }
  };

  // Up to 16 rows, from x on, times 128 inputs of blocks. Between the instructions on tiles, whose results take long,
  // the products before are folded where they are plain.
  template <int blocks, bool plain>
  static void multiply(const Numbers* w, const Inputs& inputs, Products& to, const Folding& folding) {
    const std::uint8_t* const x = inputs.bytes;
    const long stride = inputs.stride;
    constexpr long kPartBytes = kInputs * kBlock, kStride = kColumns * 4;
    const std::uint8_t* const bytes = w[0][0];
    const auto fold = [&](long step) {
      if constexpr (plain) Folding::template run_plain<blocks>(folding, step);
    };
    if constexpr (kParts == 1) {
      const std::uint8_t* const others = w[blocks - 1][0];
      DRAGOMAN_TILE_ZERO(0);
      DRAGOMAN_TILE_ZERO(1);
      if constexpr (blocks > 1) {
        DRAGOMAN_TILE_ZERO(2);
        DRAGOMAN_TILE_ZERO(3);
      }
#pragma GCC unroll 2
      for (long half = 0; half < 2; ++half) {
        const long at = half * kPartBytes / 2;
        DRAGOMAN_TILE_LOAD(4, x + half * kTileBytes, stride);
        DRAGOMAN_TILE_LOAD(6, bytes + at, kQuadBytes);
        DRAGOMAN_TILE_DOT_BYTES(0, 4, 6);
        DRAGOMAN_TILE_LOAD(7, bytes + at + 64, kQuadBytes);
        DRAGOMAN_TILE_DOT_BYTES(1, 4, 7);
        fold(half * 2);
        if constexpr (blocks > 1) {
          DRAGOMAN_TILE_LOAD(6, others + at, kQuadBytes);
          DRAGOMAN_TILE_DOT_BYTES(2, 4, 6);
          DRAGOMAN_TILE_LOAD(7, others + at + 64, kQuadBytes);
          DRAGOMAN_TILE_DOT_BYTES(3, 4, 7);
        }
        fold(half * 2 + 1);
      }
      DRAGOMAN_TILE_STORE(0, to.sums[0][0], kStride);
      DRAGOMAN_TILE_STORE(1, to.sums[0][0] + kWidth, kStride);
      if constexpr (blocks > 1) {
        DRAGOMAN_TILE_STORE(2, to.sums[0][0] + kBlock, kStride);
        DRAGOMAN_TILE_STORE(3, to.sums[0][0] + kBlock + kWidth, kStride);
      }
    } else {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; part += 2) {
        const std::uint8_t *const first = bytes + part * kPartBytes, *const second = first + kPartBytes;
        DRAGOMAN_TILE_ZERO(0);
        DRAGOMAN_TILE_ZERO(1);
        DRAGOMAN_TILE_LOAD(4, x + part * kInputs, stride);
        DRAGOMAN_TILE_LOAD(6, first, kQuadBytes);
        DRAGOMAN_TILE_DOT_BYTES(0, 4, 6);
        DRAGOMAN_TILE_LOAD(7, first + 64, kQuadBytes);
        DRAGOMAN_TILE_DOT_BYTES(1, 4, 7);
        if (kParts == 4 || part % 4 == 0) fold(kParts == 4 ? part : part / 2);
        DRAGOMAN_TILE_ZERO(2);
        DRAGOMAN_TILE_ZERO(3);
        DRAGOMAN_TILE_LOAD(5, x + (part + 1) * kInputs, stride);
        DRAGOMAN_TILE_LOAD(6, second, kQuadBytes);
        DRAGOMAN_TILE_DOT_BYTES(2, 5, 6);
        DRAGOMAN_TILE_LOAD(7, second + 64, kQuadBytes);
        DRAGOMAN_TILE_DOT_BYTES(3, 5, 7);
        DRAGOMAN_TILE_STORE(0, to.sums[part][0], kStride);
        DRAGOMAN_TILE_STORE(1, to.sums[part][0] + kWidth, kStride);
        if (kParts == 4 || part % 4 == 2) fold(kParts == 4 ? part + 1 : part / 2);
        DRAGOMAN_TILE_STORE(2, to.sums[part + 1][0], kStride);
        DRAGOMAN_TILE_STORE(3, to.sums[part + 1][0] + kWidth, kStride);
      }
    }
  }

  // Rows of a strip times some blocks.
  template <int blocks>
  static void multiply_blocks(const Matrix& w, Inputs x, long top, long rows, long block, const Output& out) {
    alignas(64) float sum[kStripRows][kColumns];
    Products products[2];
    alignas(64) Numbers numbers[blocks];
    Factors factors[2][blocks];
    Reader readers[blocks];
    for (int b = 0; b < blocks; ++b) readers[b] = {.w = w.block(block + b), .left = w.groups()};
    std::memset(sum, 0, static_cast<std::size_t>(rows) * sizeof sum[0]);
    // The same for all rows: a number that changes would be a branch that is not foreseen.
    const long lines = (Reader::kLines * kTileRows + rows - 1) / rows;
    Folding waiting;  // nothing yet
    for (long act = 0, turn = 0; readers[0].left > 0; ++act, x.advance()) {
      Factors* const here = factors[act % 2];
      for (int b = 0; b < blocks; ++b) readers[b].open(numbers[b], here[b]);
      for (long next = 0; next < rows; next += kTileRows, turn ^= 1) {
        // The last rows overlap those before: tiles of other shapes would take longer.
        const long row = next + kTileRows <= rows ? next : rows < kTileRows ? 0 : rows - kTileRows;
        for (int b = 0; b < blocks; ++b) Reader::prefetch(readers[b], next / kTileRows * lines, lines);
        if (waiting.is_plain()) {
          multiply<blocks, true>(numbers, x.from(row), products[turn], waiting);
        } else {
          Folding::template run<blocks>(waiting);
          multiply<blocks, false>(numbers, x.from(row), products[turn], waiting);
        }
        waiting = Folding{.products = &products[turn],
                          .w = here,
                          .x = x.from(row),
                          .sum = sum + row,
                          .first = next - row,
                          .rows = rows - row < kTileRows ? rows - row : kTileRows,
                          .out = readers[0].left > 0 ? nullptr : &out,
                          .row = top + row,
                          .block = block};
        if (waiting.out == nullptr) continue;
        for (long i = waiting.first; i < waiting.rows; ++i) {  // the lines of y are far away
          const float* const y = out.y + (waiting.row + i) * out.ldy + block * kBlock;
          for (long j = 0; j < blocks * kVectors; ++j) __builtin_prefetch(y + j * kWidth, 1, 3);
        }
      }
    }
    Folding::template run<blocks>(waiting);
  }
};

// Columns of blocks [begin, end) of y: strips of rows, block after block, 128 inputs after the other.
template <class Kind>
void multiply_integers(const Matrix& w, const Activations& a, long begin, long end, const Output& out) {
  const long units = (a.rows + kTileRows - 1) / kTileRows;
  const long fitting = kStripBytes / a.stride / kTileRows, least = fitting < 1 ? 1 : fitting;
  const long most = least * kTileRows > kStripRows ? kStripRows / kTileRows : least;
  const long strips = (units + most - 1) / most;
  shape_tiles(a.rows < kTileRows ? a.rows : kTileRows, Kind::kInputBytes);
  static thread_local Panel panel;
  for (long strip = 0; strip < strips; ++strip) {
    const long top = units * strip / strips * kTileRows, bottom = units * (strip + 1) / strips * kTileRows;
    const long rows = (bottom < a.rows ? bottom : a.rows) - top;
    const auto x =
        end - begin >= kLeastBlocks ? Kind::gather(a, w.act_groups(), top, rows, panel) : Kind::rows_from(a, top);
    long block = begin;
    for (; block + Kind::kBlocks <= end; block += Kind::kBlocks) {
      Kind::template multiply_blocks<Kind::kBlocks>(w, x, top, rows, block, out);
    }
    for (; block < end; ++block) {
      Kind::template multiply_blocks<1>(w, x, top, rows, block, out);
    }
  }
  DRAGOMAN_TILE_RELEASE();  // the system need not keep them for this thread
}

}  // namespace dragoman::DRAGOMAN_ISA
