// The two products of attention, queries · keys and weights · values, for each precision of the KV pool.
namespace dragoman::DRAGOMAN_ISA {
namespace {

// A cache of one precision defines how queries and weights are stored for it (the elements of a row of each), and the
// two products:
//   scores<R>: s[r][32] = q[r] · keys of a block, for R queries; rows of s are kStepTokens apart
//   turn:        the values of a block, where they are the first numbers of its keys
//   weigh<R, V>: o[r][16·V] = o[r] · alpha[r] + Σ weight[r][t] · value[t], tokens [begin, end) of a step ascending
// Between the two, for each query of a step: 2 to the differences to the maximum, put_weights() for every block, and
// end_weights() with the powers and the largest of them. Before the first query, and whenever the seen tokens differ
// from those of the last one, begin_values() sets them. begin_step() comes before all of a step.
//
// Every accumulator is one chain over ascending d or t, so R and V do not affect the result. With kSplits, neither does
// the cut of [begin, end) in two, between pairs of tokens; without, sums are exact, and tokens with a weight of 0 add
// nothing.

// End of the step that contains block `begin`, where no block from `last` on is read.
DRAGOMAN_INLINE long end_of_step(long begin, long last) {
  const long next = (begin / kStepBlocks + 1) * kStepBlocks;
  return next < last ? next : last;
}

// Prefetching of the next blocks, a few lines with every step of the arithmetic. A block is too short for the processor
// to predict the next one, and memory latency so long that blocks are fetched a whole step ahead; into the second-level
// cache: into the first, a thread reads blocks at 9 GB/s instead of 15. Where few queries leave little arithmetic
// between int8 keys, half a block is fetched at once: its lines arrive sooner, and decoding takes up to a tenth less.
class Fetch {
 public:
  // Blocks [begin, end) are a step of the piece: all their keys are used, then all their values.
  void plan(const AttentionPiece& piece, long begin, long end, bool in_bursts) {
    in_bursts_ = in_bursts;
    lines_of_half_ = static_cast<long>((piece.tile->kv->head_bytes + 127) / 128);
    begun_ = 0, lines_ = 0;
    long count = 0;
    for (const AttentionPiece* p = &piece;;) {
      const AttentionTile& t = *p->tile;
      for (long b = begin; b < end; ++b) blocks_[count++] = t.kv->keys(t.blocks[b], t.kv_head);
      if (count >= 2 * kStepBlocks) return;
      begin = end;
      if (end == p->blocks_end()) {
        p = p->following;
        if (p == nullptr) break;
        begin = p->first_block();
      }
      end = end_of_step(begin, p->blocks_end());
    }
    for (; count < 2 * kStepBlocks; ++count) blocks_[count] = nullptr;
  }

  // The step's keys or values are used from now on, of which `number` were before: half a block is fetched meanwhile.
  void begin(long number) {
    if (number < begun_) return;
    begun_ = number + 1;
    const std::uint8_t* const block = blocks_[number / 2 + kStepBlocks];
    lines_ = 0;
    if (block == nullptr) return;
    lines_ = lines_of_half_;
    next_ = block + number % 2 * 64 * lines_of_half_;
    if (!in_bursts_) return;
    for (; lines_ > 0; --lines_, next_ += 64) __builtin_prefetch(next_, 0, 2);
  }

  template <int lines>
  void step() {
    if (lines_ <= 0) return;
    for (int i = 0; i < lines; ++i, next_ += 64) __builtin_prefetch(next_, 0, 2);
    lines_ -= lines;
  }

 private:
  const std::uint8_t* blocks_[3 * kStepBlocks];  // of the step and the following blocks
  const std::uint8_t* next_ = nullptr;
  long lines_ = 0, lines_of_half_ = 0, begun_ = 0;
  bool in_bursts_ = false;
};

// The values of a step's blocks.
struct Values {
  const std::uint8_t* blocks[kStepBlocks];
  long count;
};

// Rows of the caches whose queries and weights need no scales.
struct PlainRows {
  static constexpr bool kSplits = true;
  static constexpr bool kBursts = false;
  static constexpr bool kLatent = true;
  static constexpr long query_row(long padded_dim) { return padded_dim; }
  static constexpr long weight_row(long) { return kStepTokens; }
  static void begin_step(const Values&, long) {}
  static void begin_values(const Values&, long, long, long) {}
  template <class Weight>
  static void end_weights(Weight*, const float*, long, Vec) {}
};

constexpr float kAscending[kWidth] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The numbers of tokens t, t + 1, …; those outside [from, to) become `other`.
DRAGOMAN_INLINE Vec seen_only(Vec a, long t, long from, long to, float other) {
  const Vec lane = load(kAscending);
  a = select_less(lane, broadcast(static_cast<float>(from - t)), broadcast(other), a);
  return select_less(lane, broadcast(static_cast<float>(to - t)), a, broadcast(other));
}

// End within block b of their step for tokens that end before `end`.
DRAGOMAN_INLINE long end_in_block(long b, long end) {
  const long all = (b + 1) * kBlockTokens;
  return end < all ? end : all;
}

struct Float32Cache : PlainRows {
  using Query = float;
  using Weight = float;

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    for (long d = 0; d < padded_dim; ++d) packed[d] = d < n ? q[d] : 0.0f;
  }
  DRAGOMAN_INLINE void put_weights(Weight* w, float*, Vec p0, Vec p1) {
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
      store(s + r * kStepTokens, sum[r][0]);
      store(s + r * kStepTokens + kWidth, sum[r][1]);
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const Values& values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sum[r][j] = load(o + r * ldo + d + j * kWidth) * broadcast(alpha[r]);
    }
    for (long t = begin; t < end;) {
      const long b = t / kBlockTokens, stop = end_in_block(b, end);
      fetch.begin(values.count + b);
      const float* v = reinterpret_cast<const float*>(values.blocks[b]) + t % kBlockTokens * padded_dim + d;
      for (; t < stop; ++t, v += padded_dim) {
        fetch.step<2>();
        Vec value[V];
        for (int j = 0; j < V; ++j) value[j] = load(v + j * kWidth);
        for (int r = 0; r < R; ++r) {
          const Vec p = broadcast(w[r * kStepTokens + t]);
          for (int j = 0; j < V; ++j) sum[r][j] = fma(p, value[j], sum[r][j]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) store(o + r * ldo + d + j * kWidth, sum[r][j]);
    }
  }

  static void write_token(std::uint8_t* keys, std::uint8_t* values, long padded_dim, long n, long slot, const float* k,
                          const float* v) {
    float* const key = reinterpret_cast<float*>(keys) + slot;
    for (long d = 0; d < n; ++d) key[d * kBlockTokens] = k[d];
    if (values == nullptr) return;
    std::memcpy(reinterpret_cast<float*>(values) + slot * padded_dim, v, static_cast<std::size_t>(n) * sizeof(float));
  }

  static constexpr long turned_bytes(long value_dim) { return kBlockTokens * value_dim * 4; }
  static void turn(const std::uint8_t* keys, long, long value_dim, std::uint8_t* values) {
    turn_floats(reinterpret_cast<const std::uint32_t*>(keys), value_dim, reinterpret_cast<std::uint32_t*>(values));
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
    if (values == nullptr) return;
    round_row(v, n, padded_dim, row);
    std::uint16_t* const value = reinterpret_cast<std::uint16_t*>(values) + (slot / 2) * 2 * padded_dim + slot % 2;
    for (long d = 0; d < padded_dim; ++d) value[2 * d] = row[d];
  }

  static constexpr long turned_bytes(long value_dim) { return kBlockTokens * value_dim * 2; }
  static void turn(const std::uint8_t* keys, long, long value_dim, std::uint8_t* values) {
    turn_halves(reinterpret_cast<const std::uint32_t*>(keys), value_dim, reinterpret_cast<std::uint32_t*>(values));
  }
};

// Pairs are multiplied directly: queries and weights are rounded to bfloat16, products and sums are float32.
template <class Arithmetic>
struct MultipliedPairs : PairedLayout {
  using Query = std::uint16_t;
  using Weight = std::uint16_t;
  using Pairs = typename Arithmetic::Pairs;

  static void pack(const float* q, long n, long padded_dim, Query* packed) { round_row(q, n, padded_dim, packed); }
  DRAGOMAN_INLINE void put_weights(Weight* w, float*, Vec p0, Vec p1) { Arithmetic::store_both(w, p0, p1); }

  template <int R>
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s, Fetch& fetch) {
    const std::uint16_t* k = reinterpret_cast<const std::uint16_t*>(keys);
    Vec sum[R][2];
    DRAGOMAN_UNROLL
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
    for (long d = 0; d < padded_dim; d += 2, k += 2 * kBlockTokens) {
      fetch.step<2>();
      const Pairs k0 = Arithmetic::load(k), k1 = Arithmetic::load(k + 2 * kWidth);
      DRAGOMAN_UNROLL
      for (int r = 0; r < R; ++r) {
        const Pairs b = Arithmetic::repeat(q + r * padded_dim + d);
        sum[r][0] = Arithmetic::dot(sum[r][0], b, k0);
        sum[r][1] = Arithmetic::dot(sum[r][1], b, k1);
      }
    }
    DRAGOMAN_UNROLL
    for (int r = 0; r < R; ++r) {
      store(s + r * kStepTokens, sum[r][0]);
      store(s + r * kStepTokens + kWidth, sum[r][1]);
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const Values& values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
    Vec sum[R][V];
    DRAGOMAN_UNROLL
    for (int r = 0; r < R; ++r) {
      const Vec factor = broadcast(alpha[r]);
      DRAGOMAN_UNROLL
      for (int j = 0; j < V; ++j) sum[r][j] = load(o + r * ldo + d + j * kWidth) * factor;
    }
    for (long t = begin; t < end;) {
      const long b = t / kBlockTokens, stop = end_in_block(b, end);
      fetch.begin(values.count + b);
      const std::uint16_t* v =
          reinterpret_cast<const std::uint16_t*>(values.blocks[b]) + 2 * (t % kBlockTokens / 2 * padded_dim + d);
      const Weight* p = w + t / 2 * 2;
      const auto step = [&](int mask) __attribute__((always_inline)) {
        Pairs value[V];
        DRAGOMAN_UNROLL
        for (int j = 0; j < V; ++j) value[j] = Arithmetic::load_masked(v + 2 * j * kWidth, mask);
        DRAGOMAN_UNROLL
        for (int r = 0; r < R; ++r) {
          const Pairs b = Arithmetic::repeat(p + r * kStepTokens);
          DRAGOMAN_UNROLL
          for (int j = 0; j < V; ++j) sum[r][j] = Arithmetic::dot(sum[r][j], b, value[j]);
        }
        v += 2 * padded_dim, p += 2;
      };
      // A pair with one token that is not seen: the other's weight is 0, but its value may be anything, so it is
      // masked.
      if (t % 2 != 0) {
        step(static_cast<int>(0xffff0000u));
        ++t;
      }
      for (; t + 2 <= stop; t += 2) {
        fetch.step<4>();
        step(-1);
      }
      if (t < stop) {
        step(0x0000ffff);
        ++t;
      }
    }
    DRAGOMAN_UNROLL
    for (int r = 0; r < R; ++r) {
      DRAGOMAN_UNROLL
      for (int j = 0; j < V; ++j) store(o + r * ldo + d + j * kWidth, sum[r][j]);
    }
  }
};

// Keys and values are widened to float32, queries and weights stay float32.
template <class Arithmetic>
struct WidenedPairs : PairedLayout {
  using Query = float;
  using Weight = float;

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    Float32Cache::pack(q, n, padded_dim, packed);
  }
  DRAGOMAN_INLINE void put_weights(Weight* w, float* s, Vec p0, Vec p1) { Float32Cache::put_weights(w, s, p0, p1); }

  template <int R>
  static void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s, Fetch& fetch) {
    const std::uint16_t* k = reinterpret_cast<const std::uint16_t*>(keys);
    Vec sum[R][2];
    for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = zero();
    for (long d = 0; d < padded_dim; d += 2, k += 2 * kBlockTokens) {
      fetch.step<2>();
      for (int half = 0; half < 2; ++half) {
        const std::uint16_t* const p = k + half * 2 * kWidth;
        const Vec k0 = Arithmetic::even(p), k1 = Arithmetic::odd(p);
        for (int r = 0; r < R; ++r) {
          sum[r][half] = fma(broadcast(q[r * padded_dim + d]), k0, sum[r][half]);
          sum[r][half] = fma(broadcast(q[r * padded_dim + d + 1]), k1, sum[r][half]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      store(s + r * kStepTokens, sum[r][0]);
      store(s + r * kStepTokens + kWidth, sum[r][1]);
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const Values& values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
    Vec sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) sum[r][j] = load(o + r * ldo + d + j * kWidth) * broadcast(alpha[r]);
    }
    for (long t = begin; t < end;) {
      const long b = t / kBlockTokens, stop = end_in_block(b, end);
      fetch.begin(values.count + b);
      const std::uint16_t* const block = reinterpret_cast<const std::uint16_t*>(values.blocks[b]) + 2 * d;
      for (; t < stop; ++t) {
        fetch.step<2>();
        const std::uint16_t* const v = block + t % kBlockTokens / 2 * 2 * padded_dim;
        Vec value[V];
        for (int j = 0; j < V; ++j) {
          const std::uint16_t* const pairs = v + 2 * j * kWidth;
          value[j] = t % 2 == 0 ? Arithmetic::even(pairs) : Arithmetic::odd(pairs);
        }
        for (int r = 0; r < R; ++r) {
          const Vec p = broadcast(w[r * kStepTokens + t]);
          for (int j = 0; j < V; ++j) sum[r][j] = fma(p, value[j], sum[r][j]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < V; ++j) store(o + r * ldo + d + j * kWidth, sum[r][j]);
    }
  }
};

using BFloat16Cache =
    std::conditional_t<BF16Arithmetic::kMultipliesPairs, MultipliedPairs<BF16Arithmetic>, WidenedPairs<BF16Arithmetic>>;

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
