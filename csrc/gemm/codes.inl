// Formats of chunked matrices: they differ in how the codes of two quads become bytes, and what scales them.
namespace dragoman::DRAGOMAN_ISA {

constexpr long kQuadBytes = kBlock * 4;  // of a quad of each column

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

}  // namespace dragoman::DRAGOMAN_ISA
