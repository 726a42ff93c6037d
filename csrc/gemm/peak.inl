// Limits of the machine: multiplications on registers only, and reading.
namespace dragoman::DRAGOMAN_ISA {

// Independent chains of one multiply instruction on registers only: an upper limit of every tile.
template <Precision precision>
double multiply_rounds(long rounds, float* sink) {
  constexpr int kChains = kTuning.peak_chains;
  constexpr double kOperations = precision == Precision::float32 ? 32 : precision == Precision::bfloat16 ? 64 : 128;
  alignas(64) std::uint8_t unknown[64];  // unknown to the compiler
  for (int i = 0; i < 64; ++i) unknown[i] = static_cast<std::uint8_t>(rounds & 1);
  const std::uint32_t x = load_u32(unknown);
  Vec total = zero();
  if constexpr (precision == Precision::float32 || precision == Precision::bfloat16) {
    const Vec value = load(reinterpret_cast<const float*>(unknown));
    const BF16Pairs pairs = load_bf16_pairs(unknown);
    Vec sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = value;
    for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) {
        sums[c] = precision == Precision::float32 ? fma(value, sums[c], value) : dot_bf16_pairs(sums[c], pairs, x);
      }
    }
    for (int c = 0; c < kChains; ++c) total = total + sums[c];
  } else {
    const Bytes bytes = load_bytes(unknown);
    Ints sums[kChains];
    for (int c = 0; c < kChains; ++c) sums[c] = broadcast_int(c);
    for (long r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) {
        sums[c] = precision == Precision::int8 ? dot_bytes(sums[c], bytes, x) : dot_nibbles(sums[c], bytes, x);
      }
    }
    for (int c = 0; c < kChains; ++c) total = total + to_float(sums[c]);
  }
  store(sink, total);
  return static_cast<double>(rounds) * kChains * kOperations;
}

inline double multiply_peak(Precision precision, long rounds, float* sink) {
  switch (precision) {
    case Precision::bfloat16:  // without an instruction for it, it is widened and multiplied as float32
      return multiply_rounds<BF16Arithmetic::kMultipliesPairs ? Precision::bfloat16 : Precision::float32>(rounds, sink);
    case Precision::float32: return multiply_rounds<Precision::float32>(rounds, sink);
    case Precision::int8: return multiply_rounds<Precision::int8>(rounds, sink);
    default: return multiply_rounds<Precision::int4>(rounds, sink);
  }
  return 0.0;
}

inline float read_floats(const std::uint8_t* bytes, long length) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  for (long i = 0; i < length; i += 256) {
    for (int c = 0; c < 4; ++c) sums[c] = sums[c] + load(reinterpret_cast<const float*>(bytes + i + c * 64));
  }
  return hsum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace dragoman::DRAGOMAN_ISA
