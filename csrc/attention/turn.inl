// Turns the keys of a block, which run over tokens, into values, which run over the head dimension: see kv_pool.h.
namespace dragoman::DRAGOMAN_ISA {
namespace {

// Squares of kTurn x kTurn numbers of 32 bits are transposed in registers: a fifth of the time of moving them one by
// one, and some 10 % of that of the products with 16 queries.
constexpr long kTurn = kTuning.turn_lanes;
typedef std::uint32_t TurnLanes __attribute__((vector_size(4 * kTurn)));

DRAGOMAN_INLINE TurnLanes load_lanes(const std::uint32_t* p) {
  TurnLanes a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
DRAGOMAN_INLINE void store_lanes(std::uint32_t* p, TurnLanes a) { std::memcpy(p, &a, sizeof a); }

// Exchanges the lanes of a with bit S and those of b without it.
template <long S, std::size_t... J>
DRAGOMAN_INLINE void exchange(TurnLanes& a, TurnLanes& b, std::index_sequence<J...>) {
  const TurnLanes low = __builtin_shufflevector(a, b, ((J & S) != 0 ? kTurn + J - S : J)...);
  const TurnLanes high = __builtin_shufflevector(a, b, ((J & S) != 0 ? kTurn + J : J + S)...);
  a = low, b = high;
}

template <long S>
DRAGOMAN_INLINE void exchange_rows(TurnLanes (&rows)[kTurn]) {
  DRAGOMAN_UNROLL
  for (long i = 0; i < kTurn; ++i) {
    if ((i & S) == 0) exchange<S>(rows[i], rows[i + S], std::make_index_sequence<kTurn>());
  }
  if constexpr (2 * S < kTurn) exchange_rows<2 * S>(rows);
}

// rows[i] = lane i of the rows at in, in + ld, …
DRAGOMAN_INLINE void transpose(const std::uint32_t* in, long ld, TurnLanes (&rows)[kTurn]) {
  DRAGOMAN_UNROLL
  for (long i = 0; i < kTurn; ++i) rows[i] = load_lanes(in + i * ld);
  exchange_rows<1>(rows);
}

template <std::size_t... J>
DRAGOMAN_INLINE void store_interleaved(std::uint32_t* out, TurnLanes even, TurnLanes odd, std::index_sequence<J...>) {
  store_lanes(out, __builtin_shufflevector(even, odd, (J / 2 + J % 2 * kTurn)...));
  store_lanes(out + kTurn, __builtin_shufflevector(even, odd, (kTurn / 2 + J / 2 + J % 2 * kTurn)...));
}

// keys [value_dim][32] to values [32][value_dim]
void turn_floats(const std::uint32_t* keys, long value_dim, std::uint32_t* values) {
  TurnLanes rows[kTurn];
  for (long d = 0; d < value_dim; d += kTurn) {
    for (long t = 0; t < kBlockTokens; t += kTurn) {
      transpose(keys + d * kBlockTokens + t, kBlockTokens, rows);
      DRAGOMAN_UNROLL
      for (long i = 0; i < kTurn; ++i) store_lanes(values + (t + i) * value_dim + d, rows[i]);
    }
  }
}

// Of 16 bits each: keys [value_dim / 2][32][2] to values [16][value_dim][2]
void turn_halves(const std::uint32_t* keys, long value_dim, std::uint32_t* values) {
  TurnLanes rows[kTurn];
  for (long pair = 0; pair < value_dim / 2; pair += kTurn) {
    for (long t = 0; t < kBlockTokens; t += kTurn) {
      transpose(keys + pair * kBlockTokens + t, kBlockTokens, rows);
      DRAGOMAN_UNROLL
      for (long i = 0; i < kTurn; i += 2) {
        const TurnLanes even = (rows[i] & 0xffffu) | (rows[i + 1] << 16);
        const TurnLanes odd = (rows[i] >> 16) | (rows[i + 1] & 0xffff0000u);
        store_interleaved(values + (t + i) / 2 * value_dim + 2 * pair, even, odd, std::make_index_sequence<kTurn>());
      }
    }
  }
}

// Of 8 bits each: keys [value_dim / 2][32][2] to values [16][value_dim][2]
[[maybe_unused]] void turn_bytes(const std::uint32_t* keys, long value_dim, std::uint32_t* values) {
  constexpr long tokens = kBlockTokens / 2;  // pairs of them
  TurnLanes rows[kTurn];
  for (long pair = 0; pair < value_dim / 2; pair += kTurn) {
    for (long t = 0; t < tokens; t += kTurn) {
      transpose(keys + pair * tokens + t, tokens, rows);
      DRAGOMAN_UNROLL
      for (long i = 0; i < kTurn; ++i) {
        const TurnLanes a = rows[i];
        store_lanes(values + (t + i) * value_dim / 2 + pair,
                    (a & 0xff0000ffu) | ((a >> 8) & 0xff00u) | ((a << 8) & 0xff0000u));
      }
    }
  }
}

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
