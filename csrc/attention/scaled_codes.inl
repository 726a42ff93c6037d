// Queries and weights for keys and values that are integer codes with scales.
//
// A query is quantized to 16 bits with one scale, a block's weights to 16 bits with one scale for each query: their
// errors (2⁻¹⁶ of the largest) are far below those of the keys and values. The integer sums are exact, so every
// instruction set has the same ones.
namespace dragoman::DRAGOMAN_ISA {
namespace {

DRAGOMAN_INLINE std::int32_t pair_at(const std::int16_t* p) {
  std::int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return pair;
}

// The smallest bfloat16 that is not below x: 127 codes of it reach as far as x · 127.
DRAGOMAN_INLINE std::uint16_t bf16_at_least(float x) {
  const std::uint32_t bits = float_to_bits(x);
  return bits < 0x7f800000u ? static_cast<std::uint16_t>((bits + 0xffffu) >> 16) : float_to_bf16(x);
}

// Codes of kBits bits, each block's followed by bfloat16 scales [groups][32].
template <long kBits>
class ScaledCodes {
 public:
  using Query = std::int16_t;
  using Weight = std::int16_t;

  static constexpr bool kSplits = false;
  static constexpr bool kBursts = true;

  // A query ends with its scale, a float; weights are [groups][kStepTokens], then a float for each group.
  static constexpr long query_row(long padded_dim) { return padded_dim + 2; }
  static constexpr long weight_row(long padded_dim) { return kv_groups(padded_dim) * (kStepTokens + 2); }

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    std::int32_t most = 0;
    Vec group[2];
    for (long d = 0; d < n; d += kKVGroup) {
      load_group(q + d, n - d, group);
      most = largest_magnitude(group[0], group[1], most);
    }
    const float largest = bits_to_float(static_cast<std::uint32_t>(most));
    const Vec factor = broadcast(steps(largest));
    for (long d = 0; d < padded_dim; d += kWidth) {
      store_int16(packed + d, (d < n ? load_up_to(q + d, n - d < kWidth ? n - d : kWidth) : zero()) * factor);
    }
    put_scale(packed + padded_dim, largest / kSteps);
  }

  // The scales of values are needed long before the values.
  static void begin_step(const Values& values, long padded_dim) {
    for (long b = 0; b < values.count; ++b) {
      const std::uint16_t* const scale = scales(values.blocks[b], padded_dim);
      for (long g = 0; g < kv_groups(padded_dim); ++g) __builtin_prefetch(scale + g * kBlockTokens);
    }
  }

  // Before the weights of a step's tokens [from, to): the scales of their values, divided by the largest of each group.
  void begin_values(const Values& values, long padded_dim, long from, long to) {
    groups_ = kv_groups(padded_dim);
    for (long g = 0; g < groups_; ++g) {
      std::int32_t most = 0;
      for (long b = 0; b < values.count; ++b) {
        const std::uint16_t* const scale = scales(values.blocks[b], padded_dim) + g * kBlockTokens;
        float* const seen = relative_[g] + b * kBlockTokens;
        const Vec s0 = seen_only(load_bf16(scale), b * kBlockTokens, from, to, 0.0f);
        const Vec s1 = seen_only(load_bf16(scale + kWidth), b * kBlockTokens + kWidth, from, to, 0.0f);
        store(seen, s0);
        store(seen + kWidth, s1);
        most = largest_magnitude(s0, s1, most);
      }
      largest_[g] = bits_to_float(static_cast<std::uint32_t>(most));
      const Vec factor = broadcast(largest_[g] > 0.0f ? 1.0f / largest_[g] : 0.0f);
      for (long t = 0; t < values.count * kBlockTokens; t += kWidth) {
        store(relative_[g] + t, load(relative_[g] + t) * factor);
      }
    }
  }

  DRAGOMAN_INLINE void put_weights(Weight*, float* s, Vec p0, Vec p1) {
    store(s, p0);
    store(s + kWidth, p1);
  }
  // A NaN among the weights is in their sum too, which the result is divided by.
  void end_weights(Weight* w, const float* p, long count, Vec most) const {
    const float largest = hmax(most);
    const Vec factor = broadcast(steps(largest));
    for (long g = 0; g < groups_; ++g) {
      for (long t = 0; t < count; t += kWidth) {
        store_int16(w + g * kStepTokens + t, load(p + t) * factor * load(relative_[g] + t));
      }
      put_scale(w + groups_ * kStepTokens + 2 * g, largest / kSteps * largest_[g]);
    }
  }

 protected:
  static constexpr float kSteps = 32767.0f;

  // kSteps / largest. Weights below 1e-30 of the largest so far are negligible, and their inverse may overflow a float.
  DRAGOMAN_INLINE float steps(float largest) { return largest > 1e-30f ? kSteps / largest : 0.0f; }

  DRAGOMAN_INLINE void put_scale(std::int16_t* p, float scale) { std::memcpy(p, &scale, sizeof scale); }
  DRAGOMAN_INLINE float scale_at(const std::int16_t* p) {
    float scale;
    std::memcpy(&scale, p, sizeof scale);
    return scale;
  }

  // o = o · alpha + the sums of products, of R queries and V vectors from d on, with the scales of their weights.
  template <int R, int V>
  DRAGOMAN_INLINE void add_scaled(const Weight* w, const Sums (&sum)[R][V], long padded_dim, long d, const float* alpha,
                                  float* o, long ldo) {
    constexpr int shared = kKVGroup / kWidth < V ? kKVGroup / kWidth : V;
    const long row = weight_row(padded_dim), group = d / kKVGroup;
    const Weight* const factors = w + kv_groups(padded_dim) * kStepTokens + 2 * group;
    DRAGOMAN_UNROLL
    for (int r = 0; r < R; ++r) {
      DRAGOMAN_UNROLL
      for (int j = 0; j < V; ++j) {
        float* const out = o + r * ldo + d + j * kWidth;
        const Vec factor = broadcast(scale_at(factors + r * row + 2 * (j / shared)));
        store(out, fma(load(out), broadcast(alpha[r]), to_floats(sum[r][j]) * factor));
      }
    }
  }

  // Bytes of the codes of a block's keys, or of its values.
  static constexpr long code_bytes(long padded_dim) { return kBlockTokens * padded_dim * kBits / 8; }

  // After the codes: [groups][32] bfloat16.
  DRAGOMAN_INLINE std::uint16_t* scales(std::uint8_t* codes, long padded_dim) {
    return reinterpret_cast<std::uint16_t*>(codes + code_bytes(padded_dim));
  }
  DRAGOMAN_INLINE const std::uint16_t* scales(const std::uint8_t* codes, long padded_dim) {
    return reinterpret_cast<const std::uint16_t*>(codes + code_bytes(padded_dim));
  }

 private:
  float relative_[kMaxHeadDim / kKVGroup][kStepTokens];  // of the step's values: scales / largest_, 0 if not seen
  float largest_[kMaxHeadDim / kKVGroup];
  long groups_ = 0;
};

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
