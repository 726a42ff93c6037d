// The two products of attention, queries · keys and weights · values, for each precision of the KV pool.
namespace dragoman::DRAGOMAN_ISA {
namespace {

// A cache of one precision says how queries and weights are kept beside it (the elements of a row of each; before the
// weights of a block begin_values is called), and holds the two products:
//   scores<R>: s[r][32] = q[r] · keys of the block, for R queries
//   weigh<R, V>: o[r][16·V] = o[r] · alpha[r] + Σ weight[r][t] · value[t], tokens [begin, end) of the block ascending
// Every accumulator is one chain over ascending d or t, so R and V do not show in the result.

// What comes next, fetched a few lines with every step of the arithmetic: as a burst, fetches would take all places where
// the core keeps track of missing lines, and the keys and values in use would have to wait for them.
class Fetch {
 public:
  void start(const std::uint8_t* bytes, std::size_t count) {
    next_ = bytes;
    lines_ = bytes == nullptr ? 0 : static_cast<long>(count / 64);
  }
  template <int lines>
  void step() {
    if (lines_ <= 0) return;
    for (int i = 0; i < lines; ++i, next_ += 64) __builtin_prefetch(next_, 0, 2);
    lines_ -= lines;
  }

 private:
  const std::uint8_t* next_ = nullptr;
  long lines_ = 0;
};

// Rows of the caches whose queries and weights need no scales.
struct PlainRows {
  static constexpr long query_row(long padded_dim) { return padded_dim; }
  static constexpr long weight_row(long) { return kBlockTokens; }
  static void begin_values(const std::uint8_t*, long, long, long) {}
};

struct Float32Cache : PlainRows {
  using Query = float;
  using Weight = float;

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    for (long d = 0; d < padded_dim; ++d) packed[d] = d < n ? q[d] : 0.0f;
  }
  DRAGOMAN_INLINE void put_weights(Weight* w, Vec p0, Vec p1) {
    store(w, p0);
    store(w + kWidth, p1);
  }

  template <int R>
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s, Fetch& fetch) {
    const float* k = reinterpret_cast<const float*>(keys);
    Vec sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
    for (long d = 0; d < padded_dim; ++d, k += kBlockTokens) {
      fetch.step<2>();
      const Vec k0 = load(k), k1 = load(k + kWidth);
      for (int r = 0; r < R; ++r) {
        const Vec b = broadcast(q[r * padded_dim + d]);
        sum[r][0] = fma(b, k0, sum[r][0]);
        sum[r][1] = fma(b, k1, sum[r][1]);
      }
    }
    for (int r = 0; r < R; ++r) {
      store(s + r * kBlockTokens, sum[r][0]);
      store(s + r * kBlockTokens + kWidth, sum[r][1]);
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const std::uint8_t* values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sum[r][j] = zero();
    }
    const float* v = reinterpret_cast<const float*>(values) + begin * padded_dim + d;
    for (long t = begin; t < end; ++t, v += padded_dim) {
      fetch.step<2>();
      Vec value[V];
      for (int j = 0; j < V; ++j) value[j] = load(v + j * kWidth);
      for (int r = 0; r < R; ++r) {
        const Vec b = broadcast(w[r * kBlockTokens + t]);
        for (int j = 0; j < V; ++j) sum[r][j] = fma(b, value[j], sum[r][j]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) {
        float* const out = o + r * ldo + d + j * kWidth;
        store(out, fma(load(out), broadcast(alpha[r]), sum[r][j]));
      }
    }
  }

  static void write_token(std::uint8_t* keys, std::uint8_t* values, long padded_dim, long n, long slot, const float* k,
                          const float* v) {
    float* const key = reinterpret_cast<float*>(keys) + slot;
    for (long d = 0; d < n; ++d) key[d * kBlockTokens] = k[d];
    std::memcpy(reinterpret_cast<float*>(values) + slot * padded_dim, v, static_cast<std::size_t>(n) * sizeof(float));
  }
};

// x[0:n] as bfloat16, filled up with zeros to padded_dim.
DRAGOMAN_INLINE void round_row(const float* x, long n, long padded_dim, std::uint16_t* out) {
  for (long d = 0; d < padded_dim; d += kWidth) store_bf16(out + d, load_up_to(x + d, n - d < kWidth ? n - d : kWidth));
}

// Both bfloat16 caches share the layout; they differ in the arithmetic.
struct PairedLayout : PlainRows {
  static void write_token(std::uint8_t* keys, std::uint8_t* values, long padded_dim, long n, long slot, const float* k,
                          const float* v) {
    std::uint16_t row[kMaxHeadDim];
    round_row(k, n, padded_dim, row);
    for (long d = 0; d < padded_dim; d += 2) std::memcpy(keys + (d * kBlockTokens + 2 * slot) * 2, row + d, 4);
    round_row(v, n, padded_dim, row);
    std::uint16_t* const value = reinterpret_cast<std::uint16_t*>(values) + (slot / 2) * 2 * padded_dim + slot % 2;
    for (long d = 0; d < padded_dim; ++d) value[2 * d] = row[d];
  }
};

#if defined(DRAGOMAN_AVX512)

// VDPBF16PS: queries and weights are rounded to bfloat16, products and sums are float32.
struct BFloat16Cache : PairedLayout {
  using Query = std::uint16_t;
  using Weight = std::uint16_t;

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    round_row(q, n, padded_dim, packed);
  }
  DRAGOMAN_INLINE void put_weights(Weight* w, Vec p0, Vec p1) {
    const __m512bh both = _mm512_cvtne2ps_pbh(p1.v, p0.v);
    std::memcpy(w, &both, sizeof both);
  }
  DRAGOMAN_INLINE __m512bh pairs(const std::uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
  DRAGOMAN_INLINE __m512bh broadcast_pair(const std::uint16_t* p) {
    int both;
    std::memcpy(&both, p, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
  }

  template <int R>
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s, Fetch& fetch) {
    const std::uint16_t* k = reinterpret_cast<const std::uint16_t*>(keys);
    __m512 sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (long d = 0; d < padded_dim; d += 2, k += 2 * kBlockTokens) {
      fetch.step<2>();
      const __m512bh k0 = pairs(k), k1 = pairs(k + 2 * kWidth);
      for (int r = 0; r < R; ++r) {
        const __m512bh b = broadcast_pair(q + r * padded_dim + d);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], b, k0);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], b, k1);
      }
    }
    for (int r = 0; r < R; ++r) {
      _mm512_storeu_ps(s + r * kBlockTokens, sum[r][0]);
      _mm512_storeu_ps(s + r * kBlockTokens + kWidth, sum[r][1]);
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const std::uint8_t* values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
    __m512 sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sum[r][j] = _mm512_setzero_ps();
    }
    const auto step = [&](long pair, int mask) {
      const std::uint16_t* const v = reinterpret_cast<const std::uint16_t*>(values) + 2 * (pair * padded_dim + d);
      __m512bh value[V];
      for (int j = 0; j < V; ++j) {
        const __m512i both = _mm512_loadu_si512(v + 2 * j * kWidth);
        value[j] = (__m512bh)_mm512_and_si512(both, _mm512_set1_epi32(mask));
      }
      for (int r = 0; r < R; ++r) {
        const __m512bh b = broadcast_pair(w + r * kBlockTokens + 2 * pair);
        for (int j = 0; j < V; ++j) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], b, value[j]);
      }
    };
    // A pair of which one token is not seen: the other's weight is 0, but its value may be anything, so it is blanked.
    long t = begin;
    if (t % 2 != 0) step(t++ / 2, static_cast<int>(0xffff0000u));
    for (; t + 2 <= end; t += 2) {
      fetch.step<4>();
      step(t / 2, -1);
    }
    if (t < end) step(t / 2, 0x0000ffff);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) {
        float* const out = o + r * ldo + d + j * kWidth;
        _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_loadu_ps(out), _mm512_set1_ps(alpha[r]), sum[r][j]));
      }
    }
  }
};

#else

// Without VDPBF16PS: keys and values are widened to float32, queries and weights stay float32.
struct BFloat16Cache : PairedLayout {
  using Query = float;
  using Weight = float;

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    Float32Cache::pack(q, n, padded_dim, packed);
  }
  DRAGOMAN_INLINE void put_weights(Weight* w, Vec p0, Vec p1) { Float32Cache::put_weights(w, p0, p1); }

#if defined(DRAGOMAN_AVX2)
  DRAGOMAN_INLINE Vec even(const std::uint16_t* p) {
    const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kWidth));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
  }
  DRAGOMAN_INLINE Vec odd(const std::uint16_t* p) {
    const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + kWidth));
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(hi, mask))};
  }
#else
  DRAGOMAN_INLINE Vec even(const std::uint16_t* p) {
    Vec a;
    for (int i = 0; i < kWidth; ++i) a.v[i] = bf16_to_float(p[2 * i]);
    return a;
  }
  DRAGOMAN_INLINE Vec odd(const std::uint16_t* p) { return even(p + 1); }
#endif

  template <int R>
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s, Fetch& fetch) {
    const std::uint16_t* k = reinterpret_cast<const std::uint16_t*>(keys);
    Vec sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
    for (long d = 0; d < padded_dim; d += 2, k += 2 * kBlockTokens) {
      fetch.step<2>();
      for (int half = 0; half < 2; ++half) {
        const std::uint16_t* const p = k + half * 2 * kWidth;
        const Vec k0 = even(p), k1 = odd(p);
        for (int r = 0; r < R; ++r) {
          sum[r][half] = fma(broadcast(q[r * padded_dim + d]), k0, sum[r][half]);
          sum[r][half] = fma(broadcast(q[r * padded_dim + d + 1]), k1, sum[r][half]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      store(s + r * kBlockTokens, sum[r][0]);
      store(s + r * kBlockTokens + kWidth, sum[r][1]);
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const std::uint8_t* values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sum[r][j] = zero();
    }
    for (long t = begin; t < end; ++t) {
      fetch.step<2>();
      const std::uint16_t* const v =
          reinterpret_cast<const std::uint16_t*>(values) + 2 * ((t / 2) * padded_dim + d);
      Vec value[V];
      for (int j = 0; j < V; ++j) value[j] = t % 2 == 0 ? even(v + 2 * j * kWidth) : odd(v + 2 * j * kWidth);
      for (int r = 0; r < R; ++r) {
        const Vec b = broadcast(w[r * kBlockTokens + t]);
        for (int j = 0; j < V; ++j) sum[r][j] = fma(b, value[j], sum[r][j]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) {
        float* const out = o + r * ldo + d + j * kWidth;
        store(out, fma(load(out), broadcast(alpha[r]), sum[r][j]));
      }
    }
  }
};

#endif

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
