// One tile of queries against the blocks of a split: the loops, which are the same for each precision of the pool.
// clang-format off: the order is that of use
#include "attention/turn.inl"
#include "attention/products.inl"
// clang-format on

namespace dragoman::DRAGOMAN_ISA {
namespace {

// Numbers of queries and value vectors in a register tile.
constexpr int kScoreRows = kTuning.score_rows, kWeighRows = kTuning.weigh_rows, kWeighVectors = kTuning.weigh_vectors;

// A state's fields within its state_floats(value_dim) floats: [values][sums 16][maximum][padding].
DRAGOMAN_INLINE float* sums_of(float* state, long value_dim) { return state + value_dim; }
DRAGOMAN_INLINE float& maximum_of(float* state, long value_dim) { return state[value_dim + kWidth]; }

DRAGOMAN_INLINE float exp2_one(float x) {
  float lanes[kWidth];
  store(lanes, exp2(broadcast(x)));
  return lanes[0];
}

constexpr float kLog2E = 1.44269504f;

// The entries of a head's bias table [2 · reach + 1] for 16 keys, the first of which is `distance` after the query.
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

// Positions of a tile's queries, one after the other: dividing each one's number by the group took as long as rounding
// it.
struct QueryCursor {
  const AttentionTile& tile;
  long row, head;

  explicit QueryCursor(const AttentionTile& t) : tile(t), row(t.first / t.group), head(t.first % t.group) {}
  void advance() {
    if (++head < tile.group) return;
    head = 0;
    ++row;
  }
  const float* query() const { return tile.q + row * tile.ldq + head * tile.kv->head_dim; }
  float* result() const { return tile.out + row * tile.ldout + head * tile.kv->value_dim; }
};

// Whether a cache multiplies all queries of a tile at once: score() and weigh() (simd/amx_attention.h).
template <class Cache>
constexpr bool kInTiles = requires { Cache::begin_tiles(); };

// One tile against the blocks of a split.
template <class Cache>
class SplitAttention {
 public:
  using Query = typename Cache::Query;
  using Weight = typename Cache::Weight;

  SplitAttention(const AttentionPiece& piece, float* states, float* workspace)
      : tile_(*piece.tile),
        piece_(piece),
        dim_(tile_.kv->padded_dim),
        value_dim_(tile_.kv->padded_value_dim),
        stride_(state_floats(value_dim_)),
        with_terms_(tile_.terms.any()),
        states_(states),
        scores_(workspace),
        weights_(reinterpret_cast<Weight*>(workspace + kTileQueries * kStepTokens)),
        queries_(reinterpret_cast<Query*>(weights_ + kTileQueries * Cache::weight_row(value_dim_))),
        turned_(reinterpret_cast<std::uint8_t*>(queries_ + kTileQueries * Cache::query_row(dim_))) {
    const AttentionTile* const next = piece_.following == nullptr ? nullptr : piece_.following->tile;
    QueryCursor cursor(tile_), next_cursor(next == nullptr ? tile_ : *next);
    for (long i = 0; i < tile_.count; ++i, cursor.advance(), next_cursor.advance()) {
      seen_begin_[i] = tile_.first_seen(cursor.row);
      seen_end_[i] = tile_.seen_end(cursor.row);
      Cache::pack(cursor.query(), tile_.kv->head_dim, dim_, queries_ + i * Cache::query_row(dim_));
      // Rows of many heads are too far apart for the hardware prefetcher: the rows of the results, and the queries of
      // the next tile.
      fetch_row(cursor.result(), tile_.kv->value_dim);
      if (next != nullptr && next != &tile_ && i < next->count) fetch_row(next_cursor.query(), next->kv->head_dim);
      float* const state = states_ + i * stride_;
      std::memset(state, 0, static_cast<std::size_t>(stride_) * sizeof(float));
      maximum_of(state, value_dim_) = -__builtin_inff();
    }
  }

  void run() {
    const long last = piece_.blocks_end();
    if constexpr (kInTiles<Cache>) Cache::begin_tiles();
    for (long b = piece_.first_block(); b < last;) {
      const long end = end_of_step(b, last);
      step(b, end);
      b = end;
    }
    if constexpr (kInTiles<Cache>) Cache::end_tiles();
  }

 private:
  static void fetch_row(const float* row, long width) {
    for (long d = 0; d < width; d += 64 / sizeof(float)) __builtin_prefetch(row + d, 0, 2);
  }

  // Blocks [first, end) of the sequence.
  void step(long first, long end) {
    fetch_.plan(piece_, first, end, kInTiles<Cache> || (Cache::kBursts && tile_.count <= kScoreRows));
    tokens_ = (end - first) * kBlockTokens;
    values_.count = end - first;
    long begin = tile_.count, after = 0;  // the queries that see any of these blocks
    for (long i = 0; i < tile_.count; ++i) {
      const long from = seen_begin_[i] - first * kBlockTokens, to = seen_end_[i] - first * kBlockTokens;
      from_[i] = from > 0 ? from : 0;
      to_[i] = to < tokens_ ? to : tokens_;
      if (from_[i] >= to_[i]) continue;
      begin = i < begin ? i : begin;
      after = i + 1;
    }
    for (long b = 0; b < values_.count; ++b) {
      values_.blocks[b] = tile_.kv->values(tile_.blocks[first + b], tile_.kv_head);
      if constexpr (Cache::kLatent) {
        if (tile_.kv->latent) values_.blocks[b] = turned_ + b * Cache::turned_bytes(value_dim_);
      }
    }
    if (!tile_.kv->latent) cache_.begin_step(values_, value_dim_);
    for (long b = 0; b < values_.count; ++b) {
      const std::uint8_t* const keys = tile_.kv->keys(tile_.blocks[first + b], tile_.kv_head);
      fetch_.begin(b);
      if constexpr (kInTiles<Cache>) {
        Cache::score(queries_, begin, after, dim_, keys, scores_ + b * kBlockTokens);
      } else {
        score_rows<kScoreRows>(begin, after, keys, scores_ + b * kBlockTokens);
      }
      if constexpr (Cache::kLatent) {
        if (tile_.kv->latent) Cache::turn(keys, dim_, value_dim_, turned_ + b * Cache::turned_bytes(value_dim_));
      }
    }
    for (long i = begin; i < after; ++i) {
      if (with_terms_) apply_terms(i, first * kBlockTokens);
      raise_maximum(i);
    }
    for (long i = begin / kWidth * kWidth; i < after; i += kWidth) store(alpha_ + i, exp2(load(alpha_ + i)));
    for (long i = begin; i < after; ++i) {
      if (i == begin || from_[i] != from_[i - 1] || to_[i] != to_[i - 1]) {
        cache_.begin_values(values_, value_dim_, from_[i], to_[i]);
      }
      soften(i);
    }
    if constexpr (kInTiles<Cache>) {
      fetch_.begin(values_.count);
      Cache::weigh(weights_, values_, value_dim_, begin, after, from_, to_, alpha_, states_, stride_);
    } else {
      weigh_all(begin, after);
    }
  }

  void weigh_all(long begin, long after) {
    long d = 0;
    for (; d + kWeighVectors * kWidth <= value_dim_; d += kWeighVectors * kWidth) {
      weigh_rows<kWeighRows, kWeighVectors>(begin, after, d);
    }
    if constexpr (kWeighVectors > 2) {
      for (; d + 2 * kWidth <= value_dim_; d += 2 * kWidth) weigh_rows<kWeighRows, 2>(begin, after, d);
    }
    for (; d < value_dim_; d += kWidth) weigh_rows<kWeighRows, 1>(begin, after, d);
  }

  // Queries [begin, end) to the tokens of one block.
  template <int R>
  void score_rows(long begin, long end, const std::uint8_t* keys, float* scores) {
    for (; begin + R <= end; begin += R) {
      const Query* const q = queries_ + begin * Cache::query_row(dim_);
      cache_.template scores<R>(q, dim_, keys, scores + begin * kStepTokens, fetch_);
    }
    if constexpr (R > 1) score_rows<R - 1>(begin, end, keys, scores);
  }

  template <int R, int V>
  void weigh_rows(long begin, long end, long d) {
    for (; begin + R <= end; begin += R) weigh_seen<R, V>(begin, d);
    if constexpr (R > 1) weigh_rows<R - 1, V>(begin, end, d);
  }

  // Queries [i, i + R): the tokens that all of them see together, the rest one by one.
  template <int R, int V>
  void weigh_seen(long i, long d) {
    const long last = i + R - 1;
    if (!Cache::kSplits || R == 1 || (from_[i] == from_[last] && to_[i] == to_[last])) {
      return weigh<R, V>(i, d, from_[i], to_[last], alpha_ + i);
    }
    const long begin = (from_[last] + 1) / 2 * 2, end = to_[i] / 2 * 2;
    const bool any = begin < end;
    float alpha[R];
    for (int r = 0; r < R; ++r) {
      alpha[r] = alpha_[i + r];
      const long before = any ? begin : to_[i + r];
      if (from_[i + r] >= before) continue;
      weigh<1, V>(i + r, d, from_[i + r], before, alpha + r);
      alpha[r] = 1.0f;
    }
    if (!any) return;
    weigh<R, V>(i, d, begin, end, alpha);
    alpha[0] = 1.0f;
    for (int r = 0; r < R; ++r) {
      if (end < to_[i + r]) weigh<1, V>(i + r, d, end, to_[i + r], alpha);
    }
  }

  template <int R, int V>
  void weigh(long i, long d, long from, long to, const float* alpha) {
    const Weight* const w = weights_ + i * Cache::weight_row(value_dim_);
    cache_.template weigh<R, V>(w, values_, value_dim_, d, from, to, alpha, states_ + i * stride_, stride_, fetch_);
  }

  // Scales the scores of a step whose first token is at `position`, and applies ScoreTerms.
  void apply_terms(long i, long position) {
    const ScoreTerms& terms = tile_.terms;
    float* const s = scores_ + i * kStepTokens;
    const long n = tile_.first + i, head = n % tile_.group;
    for (long t = 0; t < tokens_; t += kWidth) {
      const long distance = position + t - (tile_.position + n / tile_.group);
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

  float factor() const { return with_terms_ ? kLog2E : tile_.scale * kLog2E; }

  // Masks the scores of tokens that are not seen. Updates the maximum, and sets alpha_ to the difference of the old
  // one, both / ln 2.
  void raise_maximum(long i) {
    float* const s = scores_ + i * kStepTokens;
    const long from = from_[i], to = to_[i];
    for (long t = 0; t < from; t += kWidth) store(s + t, seen_only(load(s + t), t, from, to, -__builtin_inff()));
    for (long t = to / kWidth * kWidth; t < tokens_; t += kWidth) {
      store(s + t, seen_only(load(s + t), t, from, to, -__builtin_inff()));
    }
    Vec highest = max(load(s), load(s + kWidth));
    for (long t = kBlockTokens; t < tokens_; t += kBlockTokens) {
      highest = max(highest, max(load(s + t), load(s + t + kWidth)));
    }
    float& maximum = maximum_of(states_ + i * stride_, value_dim_);
    const float here = hmax(highest) * factor(), now = here > maximum ? here : maximum;
    alpha_[i] = maximum - now;
    maximum = now;
  }

  // Turns the scores of a step into weights; the sums are rescaled and extended.
  void soften(long i) {
    float* const s = scores_ + i * kStepTokens;
    float* const state = states_ + i * stride_;
    float* const sums = sums_of(state, value_dim_);
    const Vec factors = broadcast(factor()), offset = broadcast(-maximum_of(state, value_dim_));
    Weight* const w = weights_ + i * Cache::weight_row(value_dim_);
    Vec sum = load(sums) * broadcast(alpha_[i]), most = zero();
    for (long t = 0; t < tokens_; t += kBlockTokens) {
      const Vec p0 = exp2(fma(load(s + t), factors, offset));
      const Vec p1 = exp2(fma(load(s + t + kWidth), factors, offset));
      sum = sum + (p0 + p1);
      most = max(most, max(p0, p1));
      cache_.put_weights(w + t, s + t, p0, p1);
    }
    store(sums, sum);
    cache_.end_weights(w, s, tokens_, most);
  }

  const AttentionTile& tile_;
  const AttentionPiece& piece_;
  const long dim_, value_dim_, stride_;
  const bool with_terms_;
  Cache cache_;
  Fetch fetch_;
  float* const states_;
  float* const scores_;
  Weight* const weights_;
  Query* const queries_;
  std::uint8_t* const turned_;                              // the values of a step of a latent pool
  long seen_begin_[kTileQueries], seen_end_[kTileQueries];  // the positions each query sees
  // The step in progress: its tokens and values, the tokens each query sees, and the factor of its earlier state.
  long tokens_ = 0;
  Values values_;
  long from_[kTileQueries], to_[kTileQueries];
  alignas(64) float alpha_[kTileQueries];
};

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
