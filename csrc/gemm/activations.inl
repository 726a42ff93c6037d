// Activations in the form that a matrix is multiplied with: rounded to bfloat16, or quantized in groups of 128.
namespace dragoman::DRAGOMAN_ISA {

// 32 activations of a row that ends after `left` ones, the rest zero.
DRAGOMAN_INLINE void load_group(const float* x, long left, Vec (&out)[2]) {
  out[0] = left >= 16 ? load(x) : load_partial(x, left > 0 ? left : 0);
  out[1] = left >= 32 ? load(x + 16) : left > 16 ? load_partial(x + 16, left - 16) : zero();
}

// scale = largest magnitude / 127, q = round(x · (1 / scale)) to nearest even.
DRAGOMAN_INLINE void quantize_act_group(const float* x, long left, int bias, ActGroup* out) {
  ActGroupVecs groups;
  for (long g = 0; g < kWeightGroups; ++g) load_group(x + g * kGroup, left - g * kGroup, groups[g]);
  const float scale = bits_to_float(static_cast<std::uint32_t>(largest_of_act_group(groups))) / 127.0f;
  store_act_group(groups, broadcast(scale > 0.0f ? 1.0f / scale : 0.0f), bias, out);
  out->scale = scale;
}

// The same with a start for each 16 activations.
DRAGOMAN_INLINE void quantize_fine_group(const float* x, long left, int bias, FineActGroup* out) {
  ActGroup group;
  quantize_act_group(x, left, 0, &group);
  std::memcpy(out->q, group.q, sizeof out->q);
  const std::int8_t* const q = group.q[0];
  for (int part = 0; part < 2 * kWeightGroups; ++part) {
    std::int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += q[part * 16 + i];
    out->start[part] = -bias * sum;
  }
  out->scale = group.scale;
}

inline void prepare_rows(const Activations& a, const float* x, long ldx, long begin, long end) {
  for (long row = begin; row < end; ++row) {
    const float* const source = x + row * ldx;
    std::uint8_t* const target = a.values + row * a.stride;
    if (is_chunked(a.precision) && chunk_layout(a.precision).width < kGroup) {
      auto* group = reinterpret_cast<FineActGroup*>(target);
      for (long k = 0; k < a.k; k += kActGroup) quantize_fine_group(source + k, a.k - k, a.bias, group++);
      continue;
    }
    if (a.precision >= Precision::int8) {
      auto* group = reinterpret_cast<ActGroup*>(target);
      for (long k = 0; k < a.k; k += kActGroup) quantize_act_group(source + k, a.k - k, a.bias, group++);
      continue;
    }
    for (long k = 0; k < a.k; k += kGroup) {
      Vec group[2];
      load_group(source + k, a.k - k, group);
      for (int half = 0; half < 2; ++half) {
        if (a.precision == Precision::float32) {
          store(reinterpret_cast<float*>(target) + k + half * kWidth, group[half]);
        } else {
          store_bf16(reinterpret_cast<std::uint16_t*>(target) + k + half * kWidth, group[half]);
        }
      }
    }
  }
}

}  // namespace dragoman::DRAGOMAN_ISA
