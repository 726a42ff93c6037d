// Attention of one tile of queries over one span of a sequence's KV blocks.
namespace dragoman::DRAGOMAN_ISA {
namespace {

// How many queries and value vectors a register tile holds: 16 accumulators where there are 32 wide registers.
#if defined(DRAGOMAN_AVX512)
constexpr int kScoreRows = 8, kWeighRows = 4, kWeighVectors = 4;
#else
constexpr int kScoreRows = 2, kWeighRows = 1, kWeighVectors = 2;
#endif

// A state's fields within its state_floats(padded_dim) floats: [values][sums 16][maximum][padding].
DRAGOMAN_INLINE float* sums_of(float* state, long padded_dim) { return state + padded_dim; }
DRAGOMAN_INLINE float& maximum_of(float* state, long padded_dim) { return state[padded_dim + kWidth]; }

DRAGOMAN_INLINE float exp_one(float x) {
  float lanes[kWidth];
  store(lanes, exp(broadcast(x)));
  return lanes[0];
}

// A cache of one precision says how queries and weights are kept beside it, and holds the two products:
//   scores<R>: s[r][32] = q[r] · keys of the block, for R queries
//   weigh<R, V>: o[r][16·V] = o[r] · alpha[r] + Σ weight[r][t] · value[t], tokens [begin, end) of the block ascending
// Every accumulator is one chain over ascending d or t, so R and V do not show in the result.

struct Float32Cache {
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
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s) {
    const float* k = reinterpret_cast<const float*>(keys);
    Vec sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
    for (long d = 0; d < padded_dim; ++d, k += kBlockTokens) {
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
                    const float* alpha, float* o, long ldo) {
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sum[r][j] = zero();
    }
    const float* v = reinterpret_cast<const float*>(values) + begin * padded_dim + d;
    for (long t = begin; t < end; ++t, v += padded_dim) {
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

// Both bfloat16 caches share the layout; they differ in the arithmetic.
struct PairedLayout {
  static void write_token(std::uint8_t* keys, std::uint8_t* values, long padded_dim, long n, long slot, const float* k,
                          const float* v) {
    std::uint16_t* const key = reinterpret_cast<std::uint16_t*>(keys) + 2 * slot;
    std::uint16_t* const value = reinterpret_cast<std::uint16_t*>(values) + (slot / 2) * 2 * padded_dim + slot % 2;
    for (long d = 0; d < n; ++d) {
      key[(d / 2) * 2 * kBlockTokens + d % 2] = float_to_bf16(k[d]);
      value[2 * d] = float_to_bf16(v[d]);
    }
  }
};

#if defined(DRAGOMAN_AVX512)

// VDPBF16PS: queries and weights are rounded to bfloat16, products and sums are float32.
struct BFloat16Cache : PairedLayout {
  using Query = std::uint16_t;
  using Weight = std::uint16_t;

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    for (long d = 0; d < padded_dim; ++d) packed[d] = d < n ? float_to_bf16(q[d]) : std::uint16_t{0};
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
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s) {
    const std::uint16_t* k = reinterpret_cast<const std::uint16_t*>(keys);
    __m512 sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (long d = 0; d < padded_dim; d += 2, k += 2 * kBlockTokens) {
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
                    const float* alpha, float* o, long ldo) {
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
    for (; t + 2 <= end; t += 2) step(t / 2, -1);
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
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s) {
    const std::uint16_t* k = reinterpret_cast<const std::uint16_t*>(keys);
    Vec sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
    for (long d = 0; d < padded_dim; d += 2, k += 2 * kBlockTokens) {
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
                    const float* alpha, float* o, long ldo) {
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sum[r][j] = zero();
    }
    for (long t = begin; t < end; ++t) {
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

// One tile against the blocks of a span.
template <class Cache>
class Span {
 public:
  using Query = typename Cache::Query;
  using Weight = typename Cache::Weight;

  Span(const AttentionTile& tile, float* states, float* workspace)
      : tile_(tile),
        dim_(tile.kv->padded_dim),
        stride_(state_floats(dim_)),
        states_(states),
        scores_(workspace),
        weights_(reinterpret_cast<Weight*>(workspace + kTileQueries * kBlockTokens)),
        queries_(reinterpret_cast<Query*>(workspace + 2 * kTileQueries * kBlockTokens)) {
    for (long i = 0; i < tile.count; ++i) {
      const long n = tile.first + i;
      const float* const q = tile.q + (n / tile.group) * tile.ldq + (n % tile.group) * tile.kv->head_dim;
      Cache::pack(q, tile.kv->head_dim, dim_, queries_ + i * dim_);
      float* const state = states_ + i * stride_;
      std::memset(state, 0, static_cast<std::size_t>(stride_) * sizeof(float));
      maximum_of(state, dim_) = -__builtin_inff();
    }
  }

  void run(long span) {
    const long seen = tile_.first_seen(tile_.first), last = tile_.last_position();
    const long begin = span * kSpanTokens, end = begin + kSpanTokens - 1;
    const long first_block = (seen > begin ? seen : begin) / kBlockTokens;
    const long last_block = (last < end ? last : end) / kBlockTokens;
    for (long b = first_block; b <= last_block; ++b) block(b);
  }

 private:
  // Queries that see the whole block are taken together; they are neighbours, since what a query sees moves on with its
  // position. Those that see a part of it are taken one by one.
  void block(long number) {
    const std::uint8_t* const keys = tile_.kv->keys(tile_.blocks[number], tile_.kv_head);
    const std::uint8_t* const values = tile_.kv->values(tile_.blocks[number], tile_.kv_head);
    const long base = number * kBlockTokens;
    long whole_begin = 0, whole_end = 0;
    for (long i = 0; i < tile_.count; ++i) {
      const long n = tile_.first + i;
      const long after = tile_.position + n / tile_.group + 1 - base;  // tokens of the block up to the query's own
      const long before = tile_.first_seen(n) - base;
      const long from = before > 0 ? before : 0, to = after < kBlockTokens ? after : kBlockTokens;
      if (from >= to) continue;
      if (from == 0 && to == kBlockTokens) {
        if (whole_begin == whole_end) whole_begin = i;
        whole_end = i + 1;
      } else {
        part(i, keys, values, from, to);
      }
    }
    if (whole_begin < whole_end) whole(whole_begin, whole_end, keys, values);
  }

  void whole(long begin, long end, const std::uint8_t* keys, const std::uint8_t* values) {
    score_rows<kScoreRows>(begin, end, keys);
    for (long i = begin; i < end; ++i) {
      const float* const s = scores_ + i * kBlockTokens;
      const Vec scale = broadcast(tile_.scale);
      soften(i, load(s) * scale, load(s + kWidth) * scale);
    }
    weigh_rows<kWeighRows>(begin, end, values, 0, kBlockTokens);
  }

  void part(long i, const std::uint8_t* keys, const std::uint8_t* values, long from, long to) {
    float* const s = scores_ + i * kBlockTokens;
    score_rows<1>(i, i + 1, keys);
    for (long t = 0; t < kBlockTokens; ++t) {
      if (t < from || t >= to) s[t] = -__builtin_inff();
    }
    const Vec scale = broadcast(tile_.scale);
    soften(i, load(s) * scale, load(s + kWidth) * scale);
    weigh_rows<1>(i, i + 1, values, from, to);
  }

  template <int R>
  void score_rows(long begin, long end, const std::uint8_t* keys) {
    for (; begin + R <= end; begin += R) {
      Cache::template scores<R>(queries_ + begin * dim_, dim_, keys, scores_ + begin * kBlockTokens);
    }
    if constexpr (R > 1) score_rows<R / 2>(begin, end, keys);
  }

  template <int R>
  void weigh_rows(long begin, long end, const std::uint8_t* values, long from, long to) {
    for (; begin + R <= end; begin += R) {
      const Weight* const w = weights_ + begin * kBlockTokens;
      float* const o = states_ + begin * stride_;
      long d = 0;
      for (; d + kWeighVectors * kWidth <= dim_; d += kWeighVectors * kWidth) {
        Cache::template weigh<R, kWeighVectors>(w, values, dim_, d, from, to, alpha_ + begin, o, stride_);
      }
      for (; d < dim_; d += kWidth) Cache::template weigh<R, 1>(w, values, dim_, d, from, to, alpha_ + begin, o, stride_);
    }
    if constexpr (R > 1) weigh_rows<R / 2>(begin, end, values, from, to);
  }

  // From a block's scaled scores to weights: the maximum moves up, the sums are rescaled and grow.
  void soften(long i, Vec s0, Vec s1) {
    float* const state = states_ + i * stride_;
    float& maximum = maximum_of(state, dim_);
    const float highest = hmax(max(s0, s1));
    const float now = highest > maximum ? highest : maximum;
    alpha_[i] = now == maximum ? 1.0f : exp_one(maximum - now);  // exp(0) is 1 exactly
    maximum = now;
    const Vec p0 = exp(s0 - broadcast(now)), p1 = exp(s1 - broadcast(now));
    float* const sums = sums_of(state, dim_);
    store(sums, fma(load(sums), broadcast(alpha_[i]), p0 + p1));
    Cache::put_weights(weights_ + i * kBlockTokens, p0, p1);
  }

  const AttentionTile& tile_;
  const long dim_, stride_;
  float* const states_;
  float* const scores_;
  Weight* const weights_;
  Query* const queries_;
  float alpha_[kTileQueries];
};

void attend_span(const AttentionTile& tile, long span, float* states, float* workspace) {
  if (tile.kv->precision == KVPrecision::float32) {
    Span<Float32Cache>(tile, states, workspace).run(span);
  } else {
    Span<BFloat16Cache>(tile, states, workspace).run(span);
  }
}

void merge(long padded_dim, long count, float* total, const float* states) {
  const long stride = state_floats(padded_dim);
  for (long i = 0; i < count; ++i, total += stride, states += stride) {
    const float next = states[padded_dim + kWidth], before = maximum_of(total, padded_dim);
    if (next == -__builtin_inff()) continue;  // nothing seen in this span
    if (before == -__builtin_inff()) {        // nothing seen before
      std::memcpy(total, states, static_cast<std::size_t>(stride) * sizeof(float));
      continue;
    }
    const float now = next > before ? next : before;
    const Vec a = broadcast(exp_one(before - now)), b = broadcast(exp_one(next - now));
    for (long d = 0; d < padded_dim + kWidth; d += kWidth) {  // values and, behind them, the sums
      store(total + d, fma(load(total + d), a, load(states + d) * b));
    }
    maximum_of(total, padded_dim) = now;
  }
}

void finish(const AttentionTile& tile, const float* total) {
  const long dim = tile.kv->head_dim, padded_dim = tile.kv->padded_dim;
  for (long i = 0; i < tile.count; ++i, total += state_floats(padded_dim)) {
    const long n = tile.first + i;
    float* const out = tile.out + (n / tile.group) * tile.ldout + (n % tile.group) * dim;
    const Vec sum = broadcast(hsum(load(total + padded_dim)));
    for_each_vector(dim, [&](long d, long k) { store_up_to(out + d, load_up_to(total + d, k) / sum, k); });
  }
}

void write(const KVLayer& kv, long block, long head, long slot, long count, const float* k, const float* v, long ld) {
  std::uint8_t* const keys = kv.keys(block, head);
  std::uint8_t* const values = kv.values(block, head);
  for (long i = 0; i < count; ++i, k += ld, v += ld) {
    if (kv.precision == KVPrecision::float32) {
      Float32Cache::write_token(keys, values, kv.padded_dim, kv.head_dim, slot + i, k, v);
    } else {
      PairedLayout::write_token(keys, values, kv.padded_dim, kv.head_dim, slot + i, k, v);
    }
  }
}

}  // namespace

constexpr AttentionKernels attention_kernels{write, attend_span, merge, finish};

}  // namespace dragoman::DRAGOMAN_ISA
