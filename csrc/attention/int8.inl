// The two products of attention on int8 keys and values, as sums of integers.
namespace dragoman::DRAGOMAN_ISA {
namespace {

class Int8Cache : public ScaledCodes<8> {
 public:
  static constexpr bool kLatent = true;

  template <int R>
  void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s, Fetch& fetch) const {
    const std::int8_t* k = reinterpret_cast<const std::int8_t*>(keys);
    const std::uint16_t* scale = scales(keys, padded_dim);
    const long row = query_row(padded_dim);
    for (long begin = 0; begin < padded_dim; begin += kKVGroup, scale += kBlockTokens) {
      const long end = begin + kKVGroup < padded_dim ? begin + kKVGroup : padded_dim;
      Sums sum[R][2];
      DRAGOMAN_UNROLL
      for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = no_sums();
      for (long d = begin; d < end; d += 2, k += 2 * kBlockTokens) {
        fetch.step<2>();
        const I16Pairs k0 = widen_pairs(k), k1 = widen_pairs(k + 2 * kWidth);
        DRAGOMAN_UNROLL
        for (int r = 0; r < R; ++r) {
          const std::int32_t pair = pair_at(q + r * row + d);
          sum[r][0] = add_pair_products(sum[r][0], k0, pair);
          sum[r][1] = add_pair_products(sum[r][1], k1, pair);
        }
      }
      const Vec s0 = load_bf16(scale), s1 = load_bf16(scale + kWidth);
      DRAGOMAN_UNROLL
      for (int r = 0; r < R; ++r) {
        float* const out = s + r * kStepTokens;
        const Vec factor = broadcast(scale_at(q + r * row + padded_dim));
        const Vec a = to_floats(sum[r][0]) * (s0 * factor), b = to_floats(sum[r][1]) * (s1 * factor);
        store(out, begin == 0 ? a : load(out) + a);
        store(out + kWidth, begin == 0 ? b : load(out + kWidth) + b);
      }
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const Values& values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
    // Neighbouring vectors share a group, and with it their weights. d is a multiple of 16 · V.
    constexpr int shared = kKVGroup / kWidth < V ? kKVGroup / kWidth : V;
    const long row = weight_row(padded_dim), group = d / kKVGroup;
    const Weight* const weights = w + group * kStepTokens;
    Sums sum[R][V];
    DRAGOMAN_UNROLL
    for (int r = 0; r < R; ++r) {
      DRAGOMAN_UNROLL
      for (int j = 0; j < V; ++j) sum[r][j] = no_sums();
    }
    // A token that is not seen has the weight 0.
    for (long t = begin / 2 * 2; t < end;) {
      const long b = t / kBlockTokens, stop = end_in_block(b, end);
      fetch.begin(values.count + b);
      const std::int8_t* v =
          reinterpret_cast<const std::int8_t*>(values.blocks[b]) + 2 * (t % kBlockTokens / 2 * padded_dim + d);
      for (; t < stop; t += 2, v += 2 * padded_dim) {
        fetch.step<2>();
        I16Pairs value[V];
        DRAGOMAN_UNROLL
        for (int j = 0; j < V; ++j) value[j] = widen_pairs(v + 2 * j * kWidth);
        DRAGOMAN_UNROLL
        for (int r = 0; r < R; ++r) {
          DRAGOMAN_UNROLL
          for (int j = 0; j < V; j += shared) {
            const std::int32_t pair = pair_at(weights + r * row + j / shared * kStepTokens + t);
            DRAGOMAN_UNROLL
            for (int i = j; i < j + shared; ++i) sum[r][i] = add_pair_products(sum[r][i], value[i], pair);
          }
        }
      }
    }
    add_scaled<R, V>(w, sum, padded_dim, d, alpha, o, ldo);
  }

  static void write_token(std::uint8_t* keys, std::uint8_t* values, long padded_dim, long n, long slot, const float* k,
                          const float* v) {
    std::int8_t row[kMaxHeadDim + kKVGroup];
    quantize(k, n, padded_dim, row, scales(keys, padded_dim) + slot);
    for (long d = 0; d < padded_dim; d += 2) std::memcpy(keys + d * kBlockTokens + 2 * slot, row + d, 2);
    if (values == nullptr) return;
    quantize(v, n, padded_dim, row, scales(values, padded_dim) + slot);
    std::uint8_t* const value = values + slot / 2 * 2 * padded_dim + slot % 2;
    for (long d = 0; d < padded_dim; ++d) value[2 * d] = static_cast<std::uint8_t>(row[d]);
  }

  static constexpr long turned_bytes(long value_dim) { return kBlockTokens * (value_dim + 2 * kv_groups(value_dim)); }
  static void turn(const std::uint8_t* keys, long padded_dim, long value_dim, std::uint8_t* values) {
    turn_bytes(reinterpret_cast<const std::uint32_t*>(keys), value_dim, reinterpret_cast<std::uint32_t*>(values));
    std::memcpy(scales(values, value_dim), scales(keys, padded_dim),
                static_cast<std::size_t>(kv_groups(value_dim) * kBlockTokens) * sizeof(std::uint16_t));
  }

 private:
  DRAGOMAN_INLINE void quantize(const float* x, long n, long padded_dim, std::int8_t* codes, std::uint16_t* scale) {
    for (long d = 0; d < padded_dim; d += kKVGroup, scale += kBlockTokens) {
      Vec group[2];
      load_group(x + d, n - d, group);
      const std::int32_t most = largest_magnitude(group[0], group[1], 0);
      *scale = bf16_at_least(bits_to_float(static_cast<std::uint32_t>(most)) / 127.0f);
      const float step = bf16_to_float(*scale);
      const Vec factor = broadcast(step > 0.0f ? 1.0f / step : 0.0f);
      store_int8(codes + d, group[0] * factor, group[1] * factor);
    }
  }
};

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
