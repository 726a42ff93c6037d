// The two products of attention on int4 keys and values, as sums of integers.
//
// A code stands for one of 16 levels of a normal distribution (S. Lloyd's), times a scale of 32 neighbours. Keys are
// rotated first by a Hadamard matrix, and queries by the same, which leaves their products as they are and spreads a
// large dimension over the others.
//
// What the keys of a block have in common, such as a large bias, is stored once: the key of slot 0 in int8, the block's
// origin. A group of 32 numbers of a token is coded as the difference to it where that is smaller, which the sign of
// its scale says. Tokens of a block are written in ascending order, so codes depend on the block's tokens alone.
namespace dragoman::DRAGOMAN_ISA {
namespace {

typedef float RotatedLanes __attribute__((vector_size(4 * kWidth)));

// Adds to each lane, or subtracts from it, the one whose number differs in the bit S.
template <long S, std::size_t... J>
DRAGOMAN_INLINE RotatedLanes butterfly(RotatedLanes a, std::index_sequence<J...>) {
  return __builtin_shufflevector(a, a, (J ^ S)...) + a * RotatedLanes{((J & S) != 0 ? -1.0f : 1.0f)...};
}

// x[0:padded_dim] times a Hadamard matrix for each of the powers of two that padded_dim, a multiple of 16, consists of,
// the largest first: 80 = 64 + 16. The matrices are orthogonal and symmetric.
void rotate(float* x, long padded_dim) {
  constexpr std::make_index_sequence<kWidth> lanes;
  while (padded_dim > 0) {
    long size = kWidth;
    while (2 * size <= padded_dim) size *= 2;
    for (long d = 0; d < size; d += kWidth) {
      RotatedLanes a;
      std::memcpy(&a, x + d, sizeof a);
      a = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(a, lanes), lanes), lanes), lanes);
      std::memcpy(x + d, &a, sizeof a);
    }
    for (long half = kWidth; half < size; half *= 2) {
      for (long d = 0; d < size; d += kWidth) {
        if ((d & half) != 0) continue;
        const Vec a = load(x + d), b = load(x + d + half);
        store(x + d, a + b);
        store(x + d + half, a - b);
      }
    }
    const Vec factor = broadcast(1.0f / __builtin_sqrtf(static_cast<float>(size)));
    for (long d = 0; d < size; d += kWidth) store(x + d, load(x + d) * factor);
    x += size, padded_dim -= size;
  }
}

// x[0:n], filled up with zeros, rotated.
DRAGOMAN_INLINE void rotate_row(const float* x, long n, long padded_dim, float* out) {
  for (long d = 0; d < padded_dim; d += kWidth) {
    store(out + d, d < n ? load_up_to(x + d, n - d < kWidth ? n - d : kWidth) : zero());
  }
  rotate(out, padded_dim);
}

class Int4Cache : public ScaledCodes<4> {
 public:
  static constexpr bool kLatent = false;

  static void pack(const float* q, long n, long padded_dim, Query* packed) {
    float row[kMaxHeadDim];
    rotate_row(q, n, padded_dim, row);
    ScaledCodes::pack(row, padded_dim, padded_dim, packed);
  }

  template <int R>
  void scores(const Query* q, long padded_dim, const std::uint8_t* keys, float* s, Fetch& fetch) const {
    const std::uint8_t* k = keys;
    const std::uint16_t* scale = scales(keys, padded_dim);
    const std::int8_t* const origin = origins(keys, padded_dim);
    const long row = query_row(padded_dim);
    for (long begin = 0; begin < padded_dim; begin += kKVGroup, scale += kBlockTokens) {
      const long end = begin + kKVGroup < padded_dim ? begin + kKVGroup : padded_dim;
      Sums sum[R][2];
      DRAGOMAN_UNROLL
      for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = no_sums();
      for (long d = begin; d < end; d += kOctet, k += 4 * kBlockTokens) {
        fetch.step<4>();
        const LevelCodes k0 = load_level_codes(k), k1 = load_level_codes(k + 4 * kWidth);
        const auto pairs = [&]<int J>() __attribute__((always_inline)) {
          const I16Pairs p0 = level_pairs<J>(k0), p1 = level_pairs<J>(k1);
          DRAGOMAN_UNROLL
          for (int r = 0; r < R; ++r) {
            const std::int32_t pair = pair_at(q + r * row + d + 2 * J);
            sum[r][0] = add_pair_products(sum[r][0], p0, pair);
            sum[r][1] = add_pair_products(sum[r][1], p1, pair);
          }
        };
        pairs.template operator()<0>(), pairs.template operator()<1>();
        pairs.template operator()<2>(), pairs.template operator()<3>();
      }
      const Vec s0 = load_bf16(scale), s1 = load_bf16(scale + kWidth);
      const float step = origin_step(*scale);
      DRAGOMAN_UNROLL
      for (int r = 0; r < R; ++r) {
        float* const out = s + r * kStepTokens;
        const Vec base =
            broadcast(static_cast<float>(origin_product(q + r * row + begin, origin + begin, end - begin)) * step);
        const Vec factor = broadcast(scale_at(q + r * row + padded_dim));
        const Vec a = fma(to_floats(sum[r][0]), abs(s0), select_less(s0, zero(), base, zero())) * factor;
        const Vec b = fma(to_floats(sum[r][1]), abs(s1), select_less(s1, zero(), base, zero())) * factor;
        store(out, begin == 0 ? a : load(out) + a);
        store(out + kWidth, begin == 0 ? b : load(out + kWidth) + b);
      }
    }
  }

  template <int R, int V>
  static void weigh(const Weight* w, const Values& values, long padded_dim, long d, long begin, long end,
                    const float* alpha, float* o, long ldo, Fetch& fetch) {
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
    for (long t = begin / kOctet * kOctet; t < end;) {
      const long b = t / kBlockTokens, stop = end_in_block(b, end);
      fetch.begin(values.count + b);
      const std::uint8_t* v = values.blocks[b] + 4 * (t % kBlockTokens / kOctet * padded_dim + d);
      for (; t < stop; t += kOctet, v += 4 * padded_dim) {
        fetch.step<4>();
        LevelCodes value[V];
        DRAGOMAN_UNROLL
        for (int j = 0; j < V; ++j) value[j] = load_level_codes(v + 4 * j * kWidth);
        const auto pairs = [&]<int J>() __attribute__((always_inline)) {
          I16Pairs levels[V];
          DRAGOMAN_UNROLL
          for (int j = 0; j < V; ++j) levels[j] = level_pairs<J>(value[j]);
          DRAGOMAN_UNROLL
          for (int r = 0; r < R; ++r) {
            DRAGOMAN_UNROLL
            for (int j = 0; j < V; j += shared) {
              const std::int32_t pair = pair_at(weights + r * row + j / shared * kStepTokens + t + 2 * J);
              DRAGOMAN_UNROLL
              for (int i = j; i < j + shared; ++i) sum[r][i] = add_pair_products(sum[r][i], levels[i], pair);
            }
          }
        };
        pairs.template operator()<0>(), pairs.template operator()<1>();
        pairs.template operator()<2>(), pairs.template operator()<3>();
      }
    }
    add_scaled<R, V>(w, sum, padded_dim, d, alpha, o, ldo);
  }

  static void write_token(std::uint8_t* keys, std::uint8_t* values, long padded_dim, long n, long slot, const float* k,
                          const float* v) {
    float row[kMaxHeadDim + kKVGroup];
    std::int8_t codes[kMaxHeadDim + kKVGroup];
    rotate_row(k, n, padded_dim, row);
    quantize_key(row, padded_dim, slot, scales(keys, padded_dim), origins(keys, padded_dim), codes);
    for (long d = 0; d < padded_dim; d += kOctet) {
      std::uint32_t word = 0;
      for (long i = 0; i < kOctet; ++i) word |= static_cast<std::uint32_t>(codes[d + i]) << shift_of(i);
      std::memcpy(keys + d / kOctet * 4 * kBlockTokens + 4 * slot, &word, sizeof word);
    }
    for (long d = 0; d < padded_dim; d += kKVGroup) {
      Vec group[2];
      load_group(v + d, n - d, group);
      scales(values, padded_dim)[d + slot] = quantize(group, n - d, scale_candidates(group), codes + d);
    }
    // Only the bits of this slot: those of the octet's other slots may be another token's.
    std::uint8_t* const value = values + slot / kOctet * 4 * padded_dim + shift_of(slot % kOctet) / 8;
    const int shift = shift_of(slot % kOctet) % 8, kept = shift == 0 ? 0xf0 : 0x0f;
    for (long d = 0; d < padded_dim; ++d) {
      value[4 * d] = static_cast<std::uint8_t>((value[4 * d] & kept) | (codes[d] << shift));
    }
  }

 private:
  static constexpr long kOctet = 8;                // neighbours whose codes are a word of 32 bits
  static constexpr float kOriginSteps = 64;        // a step of the origin's codes, in scales of slot 0
  static constexpr int kCandidates = 12;           // scales that are tried
  static constexpr std::uint16_t kLeast = 0x0080;  // the smallest normal bfloat16

  // Of the number i of an octet: pair i / 2 is the bits 4 · (i / 2) of both halves of the word.
  static constexpr int shift_of(long i) { return static_cast<int>(i / 2 * 4 + i % 2 * 16); }

  DRAGOMAN_INLINE std::int8_t* origins(std::uint8_t* keys, long padded_dim) {
    return reinterpret_cast<std::int8_t*>(keys + origin_offset(padded_dim));
  }
  DRAGOMAN_INLINE const std::int8_t* origins(const std::uint8_t* keys, long padded_dim) {
    return reinterpret_cast<const std::int8_t*>(keys + origin_offset(padded_dim));
  }
  static constexpr long origin_offset(long padded_dim) {
    return 2 * (code_bytes(padded_dim) + 2 * kBlockTokens * kv_groups(padded_dim));
  }
  DRAGOMAN_INLINE float origin_step(std::uint16_t scale) { return bf16_to_float(scale & 0x7fff) * kOriginSteps; }
  DRAGOMAN_INLINE std::int32_t origin_product(const Query* q, const std::int8_t* origin, long count) {
    std::int32_t sum = 0;
    for (long i = 0; i < count; ++i) sum += q[i] * static_cast<std::int16_t>(origin[i]);
    return sum;
  }

  struct Candidates {
    std::uint16_t scales[kCandidates];
    int count;
  };

  // Scales with which the largest magnitude is 1.9 to 3.3 standard deviations of the levels' distribution.
  DRAGOMAN_INLINE Candidates scale_candidates(const Vec (&group)[2]) {
    constexpr float kDeviation = 127.0f / 2.7326f;
    const float most = bits_to_float(static_cast<std::uint32_t>(largest_magnitude(group[0], group[1], 0)));
    Candidates found{.scales = {}, .count = kCandidates};
    for (int i = 0; i < kCandidates; ++i)
      found.scales[i] = float_to_bf16(most / ((1.9f + 0.125f * static_cast<float>(i)) * kDeviation));
    return found;
  }

  // The magnitudes' levels, and their numbers.
  struct Level {
    Vec level, number;
  };
  DRAGOMAN_INLINE Level nearest(Vec magnitude) {
    Level found{broadcast(kLevels[7]), broadcast(7.0f)};
    for (int i = 6; i >= 0; --i) {
      const Vec middle = broadcast((kLevels[i] + kLevels[i + 1]) / 2.0f);
      found.level = select_less(magnitude, middle, broadcast(kLevels[i]), found.level);
      found.number = select_less(magnitude, middle, broadcast(static_cast<float>(i)), found.number);
    }
    return found;
  }

  DRAGOMAN_INLINE float inverse(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

  // Writes the codes of a group, of which `left` numbers count, with the scale of the least error. Returns the scale.
  DRAGOMAN_INLINE std::uint16_t quantize(const Vec (&group)[2], long left, const Candidates& candidates,
                                         std::int8_t* codes) {
    const Vec magnitudes[2] = {abs(group[0]), abs(group[1])};
    std::uint16_t best = candidates.scales[0];
    float least = __builtin_inff();
    for (int i = 0; i < candidates.count && candidates.count > 1; ++i) {
      const float scale = bf16_to_float(candidates.scales[i]);
      const Vec factor = broadcast(inverse(scale));
      Vec error = zero();
      for (int half = 0; half < 2; ++half) {
        const Vec scaled = magnitudes[half] * factor;
        const Vec off = (scaled - nearest(scaled).level) * broadcast(scale);
        error = error + seen_only(off * off, half * kWidth, 0, left, 0.0f);
      }
      const float sum = hsum(error);
      if (sum < least) best = candidates.scales[i], least = sum;
    }
    const Vec factor = broadcast(inverse(bf16_to_float(best)));
    Vec numbers[2];
    for (int half = 0; half < 2; ++half) {
      const Vec number = nearest(magnitudes[half] * factor).number;
      numbers[half] = select_less(group[half], zero(), number + broadcast(8.0f), number);
    }
    store_int8(codes, numbers[0], numbers[1]);
    return best;
  }

  // Writes the codes and scales of a rotated key; at slot 0 the block's origin too.
  static void quantize_key(const float* key, long padded_dim, long slot, std::uint16_t* scale, std::int8_t* origin,
                           std::int8_t* codes) {
    for (long d = 0; d < padded_dim; d += kKVGroup, scale += kBlockTokens) {
      Vec group[2], difference[2];
      load_group(key + d, padded_dim - d, group);
      if (slot == 0) {
        const float most = bits_to_float(static_cast<std::uint32_t>(largest_magnitude(group[0], group[1], 0)));
        *scale = bf16_at_least(most / (127.0f * kOriginSteps));
        const Vec factor = broadcast(inverse(origin_step(*scale)));
        store_int8(origin + d, group[0] * factor, group[1] * factor);
      }
      float common[kKVGroup];
      for (long i = 0; i < kKVGroup; ++i) common[i] = static_cast<float>(origin[d + i]) * origin_step(*scale);
      for (int half = 0; half < 2; ++half) difference[half] = group[half] - load(common + half * kWidth);
      if (slot == 0) {
        quantize(difference, padded_dim - d, {.scales = {*scale}, .count = 1}, codes + d);
        *scale |= *scale > 0 ? kDiffers : 0;
        continue;
      }
      const float whole = hsum(fma(group[0], group[0], group[1] * group[1]));
      const float rest = hsum(fma(difference[0], difference[0], difference[1] * difference[1]));
      if (rest < whole) {
        const std::uint16_t found = quantize(difference, padded_dim - d, scale_candidates(difference), codes + d);
        scale[slot] = static_cast<std::uint16_t>((found > 0 ? found : kLeast) | kDiffers);
      } else {
        scale[slot] = quantize(group, padded_dim - d, scale_candidates(group), codes + d);
      }
    }
  }

  static constexpr std::uint16_t kDiffers = 0x8000;  // the sign of a scale: the codes are a difference to the origin
};

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
