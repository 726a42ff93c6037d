// Low-rank changes: dot products with rows of A, then sums of columns of B.
namespace dragoman::DRAGOMAN_ISA {
namespace {

constexpr int kShrinkRows = kTuning.shrink_rows, kExpandRows = kTuning.expand_rows;

template <Precision precision>
DRAGOMAN_INLINE Vec load_numbers_at(const std::uint8_t* p, long index) {
  if constexpr (precision == Precision::float32) {
    return load(reinterpret_cast<const float*>(p) + index);
  } else {
    return load_bf16(reinterpret_cast<const std::uint16_t*>(p) + index);
  }
}

template <Precision precision>
constexpr long kNumberBytes = precision == Precision::float32 ? 4 : 2;

// Four ranks of M rows; every sum is one chain of fused multiply-adds along x, then the horizontal sum.
template <Precision precision, int M>
DRAGOMAN_INLINE void shrink_tile(const std::uint8_t* a, long k, const float* x, long ldx, float factor, float* t,
                                 long ldt) {
  Vec sums[M][kRankTile];
  for (int m = 0; m < M; ++m) {
    for (int i = 0; i < kRankTile; ++i) sums[m][i] = zero();
  }
  for_each_vector(k, [&](long at, long n) {
    Vec values[M];
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) values[m] = load_up_to(x + m * ldx + at, n);
    const std::uint8_t* const four = a + at * kRankTile * kNumberBytes<precision>;
#pragma GCC unroll 4
    for (int i = 0; i < kRankTile; ++i) {
      const Vec numbers = load_numbers_at<precision>(four, i * kWidth);
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) sums[m][i] = fma(numbers, values[m], sums[m][i]);
    }
  });
  for (int m = 0; m < M; ++m) {
    float* const out = t + m * ldt;
    sum_four(sums[m], out);
    for (int i = 0; i < kRankTile; ++i) out[i] = out[i] * factor;
  }
}

template <Precision precision>
void shrink_rows(const LowRankPart& part, long k, const float* x, long ldx, long rows, long begin, long end, float* t,
                 long ldt) {
  const long tile_bytes = (k + kWidth - 1) / kWidth * kWidth * kRankTile * kNumberBytes<precision>;
  for (long tile = begin; tile < end; ++tile) {
    const std::uint8_t* const a = part.a + tile * tile_bytes;
    float* const out = t + tile * kRankTile;
    long r = 0;
    for (; r + kShrinkRows <= rows; r += kShrinkRows) {
      shrink_tile<precision, kShrinkRows>(a, k, x + r * ldx, ldx, part.factor, out + r * ldt, ldt);
    }
    if constexpr (kShrinkRows > 2) {
      if (r + 2 <= rows) {
        shrink_tile<precision, 2>(a, k, x + r * ldx, ldx, part.factor, out + r * ldt, ldt);
        r += 2;
      }
    }
    for (; r < rows; ++r) shrink_tile<precision, 1>(a, k, x + r * ldx, ldx, part.factor, out + r * ldt, ldt);
  }
}

void shrink(const LowRankPart& part, Precision precision, long k, const float* x, long ldx, long rows, long begin,
            long end, float* t, long ldt) {
  if (precision == Precision::float32) {
    shrink_rows<Precision::float32>(part, k, x, ldx, rows, begin, end, t, ldt);
  } else {
    shrink_rows<Precision::bfloat16>(part, k, x, ldx, rows, begin, end, t, ldt);
  }
}

struct Expansion {
  const LowRankPart& part;
  const float* t;
  long ldt;
  float* y;
  long ldy;
  const float* base;
  long ldbase;
};

DRAGOMAN_INLINE void add_expanded(const Expansion& e, long row, long column, Vec sum) {
  const long left = e.part.n - column;
  if (left <= 0) return;
  const long n = left < kWidth ? left : kWidth;
  float* const y = e.y + row * e.ldy + column;
  if (e.part.column_scale != nullptr) {
    const Vec scale = load_up_to(e.part.column_scale + column, n);
    const Vec base = load_up_to(e.base + row * e.ldbase + column, n);
    sum = fma(scale - broadcast(1.0f), base, scale * sum);
  }
  store_up_to(y, load_up_to(y, n) + sum, n);
}

// A panel's columns of M rows; every sum is one chain along the rank.
template <Precision precision, int M>
DRAGOMAN_INLINE void expand_tile(const Expansion& e, const std::uint8_t* b, long panel, long row) {
  Vec low[M], high[M];
  for (int m = 0; m < M; ++m) low[m] = high[m] = zero();
  for (long i = 0; i < e.part.rank; ++i) {
    const Vec first = load_numbers_at<precision>(b, i * kPanel),
              second = load_numbers_at<precision>(b, i * kPanel + kWidth);
#pragma GCC unroll 4
    for (int m = 0; m < M; ++m) {
      const Vec value = broadcast(e.t[(row + m) * e.ldt + i]);
      low[m] = fma(first, value, low[m]);
      high[m] = fma(second, value, high[m]);
    }
  }
  for (int m = 0; m < M; ++m) {
    add_expanded(e, row + m, panel * kPanel, low[m]);
    add_expanded(e, row + m, panel * kPanel + kWidth, high[m]);
  }
}

template <Precision precision>
void expand_rows(const Expansion& e, long rows, long begin, long end) {
  for (long panel = begin; panel < end; ++panel) {
    const std::uint8_t* const b = e.part.b + panel * e.part.rank * kPanel * kNumberBytes<precision>;
    long r = 0;
    for (; r + kExpandRows <= rows; r += kExpandRows) expand_tile<precision, kExpandRows>(e, b, panel, r);
    if constexpr (kExpandRows > 2) {
      if (r + 2 <= rows) {
        expand_tile<precision, 2>(e, b, panel, r);
        r += 2;
      }
    }
    for (; r < rows; ++r) expand_tile<precision, 1>(e, b, panel, r);
  }
}

void expand(const LowRankPart& part, Precision precision, const float* t, long ldt, long rows, long begin, long end,
            float* y, long ldy, const float* base, long ldbase) {
  const Expansion expansion{.part = part, .t = t, .ldt = ldt, .y = y, .ldy = ldy, .base = base, .ldbase = ldbase};
  if (precision == Precision::float32) {
    expand_rows<Precision::float32>(expansion, rows, begin, end);
  } else {
    expand_rows<Precision::bfloat16>(expansion, rows, begin, end);
  }
}

}  // namespace

constexpr LoraKernels lora_kernels{.shrink = shrink, .expand = expand};

}  // namespace dragoman::DRAGOMAN_ISA
