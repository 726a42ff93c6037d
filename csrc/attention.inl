// Attention of one tile of queries over one span of a sequence's KV blocks.
// clang-format off: the order is that of use
#include "attention_products.inl"
#include "attention_int8.inl"
// clang-format on

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

constexpr float kAscending[kWidth] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The entries of a head's bias table [2 · reach + 1] for 16 keys, the first of which is `distance` behind the query.
DRAGOMAN_INLINE Vec biases(const float* table, long reach, long distance) {
  if (distance >= reach) return broadcast(table[2 * reach]);
  if (distance + kWidth - 1 <= -reach) return broadcast(table[0]);
  if (distance >= -reach && distance + kWidth - 1 <= reach) return load(table + reach + distance);
  float entries[kWidth];
  for (long i = 0; i < kWidth; ++i) {
    const long d = distance + i;
    entries[i] = table[reach + (d < -reach ? -reach : d > reach ? reach : d)];
  }
  return load(entries);
}

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
        with_terms_(tile.terms.any()),
        states_(states),
        scores_(workspace),
        weights_(reinterpret_cast<Weight*>(workspace + kTileQueries * kBlockTokens)),
        queries_(reinterpret_cast<Query*>(weights_ + kTileQueries * Cache::weight_row(dim_))) {
    for (long i = 0; i < tile.count; ++i) {
      const long n = tile.first + i;
      seen_begin_[i] = tile.first_seen(n);
      seen_end_[i] = tile.seen_end(n);
      const float* const q = tile.q + (n / tile.group) * tile.ldq + (n % tile.group) * tile.kv->head_dim;
      Cache::pack(q, tile.kv->head_dim, dim_, queries_ + i * Cache::query_row(dim_));
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
  // Neighbouring queries that see the same tokens of the block are taken together.
  void block(long number) {
    const bool last = number == tile_.last_position() / kBlockTokens;
    fetch_.start(last ? tile_.following : tile_.kv->keys(tile_.blocks[number + 1], tile_.kv_head), tile_.kv->head_bytes);
    long begin = 0, from = 0, to = 0;
    for (long i = 0; i < tile_.count; ++i) {
      const long before = seen_begin_[i] - number * kBlockTokens, after = seen_end_[i] - number * kBlockTokens;
      const long first = before > 0 ? before : 0, end = after < kBlockTokens ? after : kBlockTokens;
      if (first == from && end == to) continue;
      if (from < to) attend(begin, i, number, from, to);
      begin = i, from = first, to = end;
    }
    if (from < to) attend(begin, tile_.count, number, from, to);
  }

  // Queries [begin, end) to tokens [from, to) of block `number` of the sequence.
  void attend(long begin, long end, long number, long from, long to) {
    const long block = tile_.blocks[number];
    score_rows<kScoreRows>(begin, end, tile_.kv->keys(block, tile_.kv_head));
    const std::uint8_t* const values = tile_.kv->values(block, tile_.kv_head);
    cache_.begin_values(values, dim_, from, to);
    const Vec scale = broadcast(with_terms_ ? 1.0f : tile_.scale);
    for (long i = begin; i < end; ++i) {
      float* const s = scores_ + i * kBlockTokens;
      if (with_terms_) apply_terms(i, number, s);
      for (long t = 0; t < from; ++t) s[t] = -__builtin_inff();
      for (long t = to; t < kBlockTokens; ++t) s[t] = -__builtin_inff();
      soften(i, load(s) * scale, load(s + kWidth) * scale);
    }
    weigh_rows<kWeighRows>(begin, end, values, from, to);
  }

  template <int R>
  void score_rows(long begin, long end, const std::uint8_t* keys) {
    for (; begin + R <= end; begin += R) {
      const Query* const q = queries_ + begin * Cache::query_row(dim_);
      cache_.template scores<R>(q, dim_, keys, scores_ + begin * kBlockTokens, fetch_);
    }
    if constexpr (R > 1) score_rows<R / 2>(begin, end, keys);
  }

  template <int R>
  void weigh_rows(long begin, long end, const std::uint8_t* values, long from, long to) {
    for (; begin + R <= end; begin += R) {
      const Weight* const w = weights_ + begin * Cache::weight_row(dim_);
      float* const o = states_ + begin * stride_;
      long d = 0;
      for (; d + kWeighVectors * kWidth <= dim_; d += kWeighVectors * kWidth) {
        cache_.template weigh<R, kWeighVectors>(w, values, dim_, d, from, to, alpha_ + begin, o, stride_, fetch_);
      }
      for (; d < dim_; d += kWidth) {
        cache_.template weigh<R, 1>(w, values, dim_, d, from, to, alpha_ + begin, o, stride_, fetch_);
      }
    }
    if constexpr (R > 1) weigh_rows<R / 2>(begin, end, values, from, to);
  }

  // Scales the scores of a block and does to them what ScoreTerms says.
  void apply_terms(long i, long number, float* s) {
    const ScoreTerms& terms = tile_.terms;
    const long n = tile_.first + i, head = n % tile_.group;
    for (long t = 0; t < kBlockTokens; t += kWidth) {
      const long distance = number * kBlockTokens + t - (tile_.position + n / tile_.group);
      Vec score = load(s + t) * broadcast(tile_.scale);
      if (terms.softcap > 0) score = broadcast(terms.softcap) * tanh(score / broadcast(terms.softcap));
      if (terms.slopes != nullptr) {
        const Vec distances = broadcast(static_cast<float>(distance)) + load(kAscending);
        score = fma(broadcast(terms.slopes[head]), distances, score);
      }
      if (terms.bias != nullptr) {
        score = score + biases(terms.bias + head * (2 * terms.reach + 1), terms.reach, distance);
      }
      store(s + t, score);
    }
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
    cache_.put_weights(weights_ + i * Cache::weight_row(dim_), p0, p1);
  }

  const AttentionTile& tile_;
  const long dim_, stride_;
  const bool with_terms_;
  Cache cache_;
  Fetch fetch_;  // of the next block: one is too short for the processor to guess where the next one is
  float* const states_;
  float* const scores_;
  Weight* const weights_;
  Query* const queries_;
  long seen_begin_[kTileQueries], seen_end_[kTileQueries];  // the positions each query sees
  float alpha_[kTileQueries];
};

void attend_span(const AttentionTile& tile, long span, float* states, float* workspace) {
  switch (tile.kv->precision) {
    case KVPrecision::float32: return Span<Float32Cache>(tile, states, workspace).run(span);
    case KVPrecision::bfloat16: return Span<BFloat16Cache>(tile, states, workspace).run(span);
    case KVPrecision::int8: return Span<Int8Cache>(tile, states, workspace).run(span);
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
  void (*write_token)(std::uint8_t*, std::uint8_t*, long, long, long, const float*, const float*) =
      kv.precision == KVPrecision::float32    ? Float32Cache::write_token
      : kv.precision == KVPrecision::bfloat16 ? PairedLayout::write_token
                                              : Int8Cache::write_token;
  for (long i = 0; i < count; ++i, k += ld, v += ld) {
    write_token(keys, values, kv.padded_dim, kv.head_dim, slot + i, k, v);
  }
}

}  // namespace

constexpr AttentionKernels attention_kernels{write, attend_span, merge, finish};

}  // namespace dragoman::DRAGOMAN_ISA
