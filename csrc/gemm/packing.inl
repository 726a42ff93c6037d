// Packing of a checkpoint's rows into blocks, and unpacking. The same bytes on every instruction set.
namespace dragoman::DRAGOMAN_ISA {

DRAGOMAN_INLINE Vec load_source(const void* source, SourceType type, long index, long width) {
  if (width <= 0) return zero();
  if (type == SourceType::float32) {
    const float* const p = static_cast<const float*>(source) + index;
    return width >= kWidth ? load(p) : load_partial(p, width);
  }
  const std::uint16_t* p = static_cast<const std::uint16_t*>(source) + index;
  std::uint16_t part[kWidth] = {};
  if (width < kWidth) {
    std::memcpy(part, p, static_cast<std::size_t>(width) * 2);
    p = part;
  }
  return type == SourceType::bfloat16 ? load_bf16(p) : load_fp16(p);
}

// To the nearest integer, halves away from zero. Exact: subtracting the truncated value from |a| < 2²³ loses nothing.
DRAGOMAN_INLINE float round_half_away(float a) {
  const auto whole = static_cast<float>(static_cast<std::int32_t>(a));
  const float rest = a - whole;
  return whole + (rest >= 0.5f ? 1.0f : 0.0f) - (rest <= -0.5f ? 1.0f : 0.0f);
}

// The scale of weights in int8, largest magnitude / 127, and the codes of a group of them.
DRAGOMAN_INLINE float int8_scale(const float* values, long count) {
  float most = 0.0f;
  for (long i = 0; i < count; ++i) {
    const float magnitude = values[i] < 0.0f ? -values[i] : values[i];
    most = magnitude > most ? magnitude : most;
  }
  return most / 127.0f;
}
DRAGOMAN_INLINE void quantize_int8(const float* values, float scale, std::uint8_t* codes) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    codes[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(round_half_away(values[i] * inverse)) + 128);
  }
}

// The codes of 32 weights and the group's scale (and minimum), by the formulas of GGUF's reference quantizers.
DRAGOMAN_INLINE void quantize_weights(const Matrix& w, const float* values, std::uint8_t* codes, float* scale,
                                      float* minimum) {
  if (w.precision == Precision::int8) {
    *scale = int8_scale(values, kGroup);
    quantize_int8(values, *scale, codes);
    return;
  }
  float least = values[0], most = values[0];
  for (int i = 1; i < kGroup; ++i) {
    least = values[i] < least ? values[i] : least;
    most = values[i] > most ? values[i] : most;
  }
  float shift;
  if (w.minimum) {
    *scale = (most - least) / 15.0f;
    *minimum = least;
    shift = 0.5f;
  } else {
    // The value of largest magnitude becomes code 0, that is −8: the side with one more code. Of two equally large
    // ones the first in the group decides.
    float extreme = 0.0f, magnitude = 0.0f;
    for (int i = 0; i < kGroup; ++i) {
      const float size = values[i] < 0.0f ? -values[i] : values[i];
      extreme = size > magnitude ? values[i] : extreme;
      magnitude = size > magnitude ? size : magnitude;
    }
    *scale = extreme / -8.0f;
    least = 0.0f;
    shift = 8.5f;
  }
  const float inverse = *scale != 0.0f ? 1.0f / *scale : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const auto code = static_cast<std::int32_t>((values[i] - least) * inverse + shift);
    codes[i] = static_cast<std::uint8_t>(code < 15 ? code : 15);
  }
}

// The numbers of IQ4_NL's table (ggml), and what lies halfway between each and the next.
inline constexpr float kNonLinearLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int kSearchSteps = 4;
inline constexpr float kSearchStep = 0.045f;

DRAGOMAN_INLINE float halfway(int place) { return 0.5f * (kNonLinearLevels[place] + kNonLinearLevels[place + 1]); }

// The numbers of the table that are nearest to 32 weights at a scale, given as its inverse.
DRAGOMAN_INLINE void nearest_levels(const float* values, float inverse, float* levels) {
  for (int i = 0; i < kGroup; ++i) levels[i] = kNonLinearLevels[0];
  for (int place = 0; place < 15; ++place) {
    const float border = halfway(place), level = kNonLinearLevels[place + 1];
    for (int i = 0; i < kGroup; ++i) levels[i] = values[i] * inverse > border ? level : levels[i];
  }
}

// The scale of 32 weights as numbers of the table: the least sum of squared errors that a search finds. For fixed
// numbers q that is a scale of Σxq / Σq², which takes (Σxq)² / Σq² off Σx². Tried are the numbers for scales that put
// the value of largest magnitude near either end of the table. Of equally good ones the first wins.
//
// Σxq has sixteen lanes, added in pairs: the same bits whatever the width of the vectors. Σq² is exact.
DRAGOMAN_INLINE float search_scale(const float* values) {
  constexpr int kLanes = 16;
  float extreme = 0.0f, magnitude = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float size = values[i] < 0.0f ? -values[i] : values[i];
    extreme = size > magnitude ? values[i] : extreme;
    magnitude = size > magnitude ? size : magnitude;
  }
  float best = 0.0f, scale = 0.0f;
  for (int end = 0; extreme != 0.0f && end < 16; end += 15) {
    for (int step = -kSearchSteps; step <= kSearchSteps; ++step) {
      alignas(64) float levels[kGroup], sums[kLanes], norms[kLanes];
      nearest_levels(values, kNonLinearLevels[end] * (1.0f + kSearchStep * static_cast<float>(step)) / extreme, levels);
      for (int i = 0; i < kLanes; ++i) {
        sums[i] = values[i] * levels[i] + values[i + kLanes] * levels[i + kLanes];
        norms[i] = levels[i] * levels[i] + levels[i + kLanes] * levels[i + kLanes];
      }
      for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
          sums[i] += sums[i + half];
          norms[i] += norms[i + half];
        }
      }
      const float won = sums[0] * sums[0] / norms[0];
      scale = won > best ? sums[0] / norms[0] : scale;
      best = won > best ? won : best;
    }
  }
  return scale;
}

// Rows of weights as blocks of IQ4_NL: a scale in fp16, and the places of 32 numbers in the table, those of the second
// half in the high bits. k is a multiple of 32.
inline void quantize_iq4_nl(const void* source, SourceType type, long k, long begin, long end, std::uint8_t* blocks) {
  constexpr long kBytes = 18;
  for (long row = begin; row < end; ++row) {
    std::uint8_t* block = blocks + row * (k / kGroup) * kBytes;
    for (long first = row * k; first < (row + 1) * k; first += kGroup, block += kBytes) {
      alignas(64) float values[kGroup];
      for (long i = 0; i < kGroup; i += kWidth) store(values + i, load_source(source, type, first + i, kGroup - i));
      const std::uint16_t half = float_to_half(search_scale(values));
      std::memcpy(block, &half, 2);
      const float scale = half_to_float(half), inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
      std::int32_t places[kGroup] = {};
      for (int place = 0; place < 15; ++place) {
        const float border = halfway(place);
        for (int i = 0; i < kGroup; ++i) places[i] += values[i] * inverse > border ? 1 : 0;
      }
      for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<std::uint8_t>(places[i] | places[16 + i] << 4);
    }
  }
}

// 32 rows × 32 weights of one group into the block's bytes.
DRAGOMAN_INLINE void pack_group(const Matrix& w, long block, long g, const float (&tile)[kBlock][kGroup]) {
  std::uint8_t* const target = w.group(block, g);
  if (w.precision == Precision::float32) {
    auto* out = reinterpret_cast<float*>(target);
    for (int k = 0; k < kGroup; ++k) {
      for (int c = 0; c < kBlock; ++c) *out++ = tile[c][k];
    }
    return;
  }
  if (w.precision == Precision::bfloat16) {
    std::uint16_t rounded[kBlock][kGroup];
    for (int c = 0; c < kBlock; ++c) {
      store_bf16(rounded[c], load(tile[c]));
      store_bf16(rounded[c] + 16, load(tile[c] + 16));
    }
    for (int k = 0; k < kGroup; k += 2) {
      for (int c = 0; c < kBlock; ++c) std::memcpy(target + (k / 2 * kBlock + c) * 4, &rounded[c][k], 4);
    }
    return;
  }
  std::uint8_t codes[kBlock][kGroup];
  float scales[kBlock], minimums[kBlock] = {};
  for (int c = 0; c < kBlock; ++c) quantize_weights(w, tile[c], codes[c], &scales[c], &minimums[c]);
  for (int c = 0; c < kBlock; c += kWidth) {
    store_fp16(w.scales(block, g) + c, load(scales + c));
    if (w.minimum) store_fp16(w.minimums(block, g) + c, load(minimums + c));
  }
  if (w.precision == Precision::int8) {
    for (int q = 0; q < 8; ++q) {
      for (int c = 0; c < kBlock; ++c) std::memcpy(target + (q * kBlock + c) * 4, &codes[c][q * 4], 4);
    }
  } else {
    for (int q = 0; q < 4; ++q) {
      for (int c = 0; c < kBlock; ++c) {
        const std::uint32_t low = load_u32(&codes[c][q * 8]), high = load_u32(&codes[c][q * 8 + 4]);
        const std::uint32_t both = low | (high << 4);
        std::memcpy(target + (q * kBlock + c) * 4, &both, 4);
      }
    }
  }
}

// Four groups of a wide block: rows × 128 weights.
DRAGOMAN_INLINE void pack_wide_groups(const Matrix& w, const void* source, SourceType type, long block, long first) {
  const long count = w.groups() - first < kWeightGroups ? w.groups() - first : kWeightGroups;
  alignas(64) float scales[kBlock];
  for (long c = 0; c < kBlock; ++c) {
    alignas(64) float values[kActGroup];
    const long row = block * kBlock + c;
    for (long i = 0; i < count * kGroup; i += kWidth) {
      const long k = first * kGroup + i;
      store(values + i, load_source(source, type, row * w.k + k, row < w.n ? w.k - k : 0));
    }
    scales[c] = int8_scale(values, count * kGroup);
    for (long g = 0; g < count; ++g) {
      std::uint8_t codes[kGroup];
      quantize_int8(values + g * kGroup, scales[c], codes);
      for (int q = 0; q < 8; ++q) std::memcpy(w.group(block, first + g) + (q * kBlock + c) * 4, codes + q * 4, 4);
    }
  }
  for (int c = 0; c < kBlock; c += kWidth) store_fp16(w.scales(block, first) + c, load(scales + c));
}

inline void pack_blocks(const Matrix& w, const void* source, SourceType type, long begin, long end) {
  for (long block = begin; block < end; ++block) {
    if (w.wide) {
      for (long g = 0; g < w.groups(); g += kWeightGroups) pack_wide_groups(w, source, type, block, g);
      continue;
    }
    for (long g = 0; g < w.groups(); ++g) {
      alignas(64) float tile[kBlock][kGroup];
      for (long c = 0; c < kBlock; ++c) {
        const long row = block * kBlock + c, left = row < w.n ? w.k - g * kGroup : 0;
        const long index = row * w.k + g * kGroup;
        store(tile[c], load_source(source, type, index, left));
        store(tile[c] + 16, load_source(source, type, index + 16, left - 16));
      }
      pack_group(w, block, g, tile);
    }
  }
}

// Group g of one row of w as 32 floats.
DRAGOMAN_INLINE void unpack_group(const Matrix& w, long block, long column, long g, float* out) {
  const std::uint8_t* const source = w.group(block, g);
  if (w.precision == Precision::float32) {
    for (int k = 0; k < kGroup; ++k) std::memcpy(out + k, source + (k * kBlock + column) * 4, 4);
    return;
  }
  if (w.precision == Precision::bfloat16) {
    for (int k = 0; k < kGroup; k += 2) {
      const std::uint32_t pair = load_u32(source + (k / 2 * kBlock + column) * 4);
      out[k] = bits_to_float(pair << 16);
      out[k + 1] = bits_to_float(pair & 0xffff0000u);
    }
    return;
  }
  std::uint8_t codes[kGroup];
  const int quads = w.precision == Precision::int8 ? 8 : 4;
  for (int q = 0; q < quads; ++q) {
    const std::uint32_t quad = load_u32(source + (q * kBlock + column) * 4);
    if (w.precision == Precision::int8) {
      std::memcpy(codes + q * 4, &quad, 4);
    } else {
      const std::uint32_t low = quad & 0x0f0f0f0fu, high = (quad >> 4) & 0x0f0f0f0fu;
      std::memcpy(codes + q * 8, &low, 4);
      std::memcpy(codes + q * 8 + 4, &high, 4);
    }
  }
  const long vector = column / kWidth * kWidth;
  float scale[kWidth], minimum[kWidth] = {};
  store(scale, load_fp16(w.scales(block, g) + vector));
  if (w.minimum) store(minimum, load_fp16(w.minimums(block, g) + vector));
  const int bias = w.precision == Precision::int8 ? 128 : w.minimum ? 0 : 8;
  for (int k = 0; k < kGroup; ++k) {
    out[k] = scale[column - vector] * static_cast<float>(codes[k] - bias) + minimum[column - vector];
  }
}

inline void unpack_row(const Matrix& w, long row, float* out) {
  const long block = row / kBlock, column = row % kBlock;
  for (long g = 0; g < w.groups(); ++g, out += kGroup) {
    const long left = w.k - g * kGroup;
    if (left >= kGroup) {
      unpack_group(w, block, column, g, out);
    } else {
      float whole[kGroup];
      unpack_group(w, block, column, g, whole);
      std::memcpy(out, whole, static_cast<std::size_t>(left) * 4);
    }
  }
}

}  // namespace dragoman::DRAGOMAN_ISA
