// Tiles of chunked matrices: formats differ in how the codes of two quads become bytes, and what scales them.
namespace dragoman::DRAGOMAN_ISA {

// Quads 2p and 2p + 1 of a group of one vector of columns, whose first byte is w.
template <Precision precision>
struct Codes;

struct Nibbles {
  static constexpr bool kSigned = false;  // whether the bytes may be above 127, and their accumulator begins as int8's
  static constexpr long kPlanes = 0;      // bytes before the lower four bits

  DRAGOMAN_INLINE Nibbles load_codes() { return {}; }
  DRAGOMAN_INLINE void load_pair(Nibbles, const std::uint8_t* w, int p, Bytes& first, Bytes& second) {
    const Bytes both = load_bytes(w + p * kQuadBytes);
    first = low_nibbles(both);
    second = high_nibbles(both);
  }
};
template <>
struct Codes<Precision::q4_k> : Nibbles {};

template <bool is_signed>
struct TableCodes {
  static constexpr bool kSigned = is_signed;
  static constexpr long kPlanes = 0;
  Table table;

  DRAGOMAN_INLINE void load_pair(const TableCodes& codes, const std::uint8_t* w, int p, Bytes& first, Bytes& second) {
    const Bytes both = load_bytes(w + p * kQuadBytes);
    first = look_up_low(codes.table, both);
    second = look_up_high(codes.table, both);
  }
};
template <>
struct Codes<Precision::mxfp4> : TableCodes<false> {
  DRAGOMAN_INLINE TableCodes<false> load_codes() { return {load_table(kMxfp4Table)}; }
};
template <>
struct Codes<Precision::iq4_nl> : TableCodes<true> {
  DRAGOMAN_INLINE TableCodes<true> load_codes() { return {load_table(kNonLinearTable)}; }
};
template <>
struct Codes<Precision::iq4_xs> : Codes<Precision::iq4_nl> {};

template <>
struct Codes<Precision::q5_k> : Nibbles {
  static constexpr long kPlanes = kQuadBytes;

  DRAGOMAN_INLINE void load_pair(Nibbles, const std::uint8_t* w, int p, Bytes& first, Bytes& second) {
    const Bytes bits = load_bytes(w), both = load_bytes(w + kPlanes + p * kQuadBytes);
    first = join_bits(low_nibbles(both), bits, 2 * p, 1, 4);
    second = join_bits(high_nibbles(both), bits, 2 * p + 1, 1, 4);
  }
};
template <>
struct Codes<Precision::q6_k> : Nibbles {
  static constexpr long kPlanes = 2 * kQuadBytes;

  DRAGOMAN_INLINE void load_pair(Nibbles, const std::uint8_t* w, int p, Bytes& first, Bytes& second) {
    const Bytes bits = load_bytes(w + p / 2 * kQuadBytes), both = load_bytes(w + kPlanes + p * kQuadBytes);
    first = join_bits(low_nibbles(both), bits, p % 2 * 4, 2, 4);
    second = join_bits(high_nibbles(both), bits, p % 2 * 4 + 2, 2, 4);
  }
};
template <>
struct Codes<Precision::q3_k> {
  static constexpr bool kSigned = false;
  static constexpr long kPlanes = kQuadBytes;

  DRAGOMAN_INLINE ThreeBits load_codes() { return load_three_bits(); }
  DRAGOMAN_INLINE void load_pair(const ThreeBits& codes, const std::uint8_t* w, int p, Bytes& first, Bytes& second) {
    const Bytes high = load_bytes(w), low = load_bytes(w + kPlanes + p / 2 * kQuadBytes);
    open_three_bits(codes, low, high, p, first, second);
  }
};

// Activations with one start for each scale of the weights.
template <long width>
struct ActOf {
  using Group = ActGroup;
};
template <>
struct ActOf<kGroup / 2> {
  using Group = FineActGroup;
};

// Scale number `index` of a chunk, of the vector of columns v.
template <Precision precision>
DRAGOMAN_INLINE Vec load_scale(const std::uint8_t* head, long index, int v, Vec factor) {
  constexpr ChunkLayout kLayout = chunk_layout(precision);
  const std::uint8_t* const scales = head + kLayout.scales_offset() + index * kLayout.scale_bytes();
  if constexpr (kLayout.scales == Scales::halves) {
    return load_fp16(reinterpret_cast<const std::uint16_t*>(scales) + v * kWidth);
  } else if constexpr (kLayout.scales == Scales::exponents) {
    return load_half_powers(scales + v * kWidth);
  } else {
    return load_int8(scales + v * kWidth) * factor;
  }
}

template <Precision precision, int M, class Prefetch>
DRAGOMAN_INLINE void chunked_tile(const std::uint8_t* w, long groups, const std::uint8_t* x, long stride,
                                  Prefetch prefetch, Vec (&sum)[M][kVectors]) {
  constexpr ChunkLayout kLayout = chunk_layout(precision);
  constexpr int kParts = kGroup / kLayout.width, kPairs = 4 / kParts;
  using Act = typename ActOf<kLayout.width>::Group;
  using Format = Codes<precision>;
  const auto codes = Format::load_codes();
  for (int i = 0; i < M; ++i) {
    for (int j = 0; j < kVectors; ++j) sum[i][j] = zero();
  }
  for (long left = groups; left > 0; left -= kLayout.groups) {
    const long count = left < kLayout.groups ? left : kLayout.groups, head_bytes = kLayout.head_bytes(count);
    const std::uint8_t* const head = w;
    // All of them now, in order: read where they are needed, behind the codes before, they misled the processor's own
    // prefetcher, and one row took twice as long.
    for (long line = 0; line < head_bytes; line += 64) __builtin_prefetch(head + line, 0, 3);
    for (long line = 0; line < head_bytes; line += 64) prefetch.fetch(head + line);
    Vec factor[kVectors], least[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const auto* const halves = reinterpret_cast<const std::uint16_t*>(head) + v * kWidth;
      factor[v] = kLayout.halves() > 0 ? load_fp16(halves) : zero();
      least[v] = kLayout.minimum ? load_fp16(halves + kBlock) : zero();
    }
    w += head_bytes;
    for (long first = 0; first < count; first += kWeightGroups) {
      const auto row = [=](int i) -> const Act& { return *reinterpret_cast<const Act*>(x + i * stride); };
      Vec part[M][kVectors];
      for (int i = 0; i < M; ++i) {
        for (int j = 0; j < kVectors; ++j) part[i][j] = zero();
      }
      const long here = count - first < kWeightGroups ? count - first : kWeightGroups;
#pragma GCC unroll 1
      for (long g = 0; g < here; ++g) {
        prefetch.fetch_group();
        for (long line = 0; line < Format::kPlanes; line += 64) prefetch.fetch(w + line);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; v += kTogether<M>) {
#pragma GCC unroll 2
          for (int h = 0; h < kParts; ++h) {
            Ints acc[M][kTogether<M>];
#pragma GCC unroll 8
            for (int i = 0; i < M; ++i) {
              const std::int32_t start = row(i).start[g * kParts + h];
#pragma GCC unroll 2
              for (int j = 0; j < kTogether<M>; ++j) {
                acc[i][j] = broadcast_int(Format::kSigned && kBytesAreSigned ? 0 : start);
              }
            }
#pragma GCC unroll 4
            for (int p = h * kPairs; p < (h + 1) * kPairs; ++p) {
              Bytes low[kTogether<M>], high[kTogether<M>];
#pragma GCC unroll 2
              for (int j = 0; j < kTogether<M>; ++j) Format::load_pair(codes, w + (v + j) * 64, p, low[j], high[j]);
              constexpr bool kThirdRow = precision == Precision::q3_k;
              if (!kThirdRow || p % 2 == 0) {
#pragma GCC unroll 2
                for (int j = 0; j < kTogether<M>; ++j) {
                  prefetch.fetch(w + Format::kPlanes + p / (kThirdRow ? 2 : 1) * kQuadBytes + (v + j) * 64);
                }
              }
#pragma GCC unroll 8
              for (int i = 0; i < M; ++i) {
                const std::uint32_t one = load_u32(row(i).q[g] + p * 8), two = load_u32(row(i).q[g] + p * 8 + 4);
#pragma GCC unroll 2
                for (int j = 0; j < kTogether<M>; ++j) {
                  if constexpr (Format::kSigned) {
                    acc[i][j] = dot_bytes(dot_bytes(acc[i][j], low[j], one), high[j], two);
                  } else {
                    acc[i][j] = dot_codes(dot_codes(acc[i][j], low[j], one), high[j], two);
                  }
                }
              }
            }
#pragma GCC unroll 2
            for (int j = 0; j < kTogether<M>; ++j) {
              const Vec scale = load_scale<precision>(head, (first + g) * kParts + h, v + j, factor[v + j]);
#pragma GCC unroll 8
              for (int i = 0; i < M; ++i) part[i][v + j] = fma(to_float(acc[i][j]), scale, part[i][v + j]);
            }
          }
          if constexpr (kLayout.minimum) {
            const std::uint8_t* const minimums = head + kLayout.minimums_offset(count) + (first + g) * kBlock;
#pragma GCC unroll 2
            for (int j = 0; j < kTogether<M>; ++j) {
              const Vec minimum = load_int8(minimums + (v + j) * kWidth) * least[v + j];
#pragma GCC unroll 8
              for (int i = 0; i < M; ++i) part[i][v + j] = fma(minimum, broadcast(row(i).sum[g]), part[i][v + j]);
            }
          }
        }
        w += numbers_bytes(precision);
      }
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const Vec scale = broadcast(row(i).scale);
#pragma GCC unroll 2
        for (int j = 0; j < kVectors; ++j) sum[i][j] = fma(part[i][j], scale, sum[i][j]);
      }
      x += sizeof(Act);
    }
  }
}

}  // namespace dragoman::DRAGOMAN_ISA
