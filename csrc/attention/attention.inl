// Attention of one tile of queries over one split of a sequence's KV blocks.
// clang-format off: the order is that of use
#include "attention/split.inl"
#include "attention/scaled_codes.inl"
#include "attention/int8.inl"
#include "attention/int4.inl"
// clang-format on

namespace dragoman::DRAGOMAN_ISA {
namespace {

void attend_split(const AttentionPiece& piece, float* states, float* workspace) {
  switch (piece.tile->kv->precision) {
    case KVPrecision::float32: return SplitAttention<Float32Cache>(piece, states, workspace).run();
    case KVPrecision::bfloat16: return SplitAttention<BFloat16Cache>(piece, states, workspace).run();
    case KVPrecision::int8: return SplitAttention<Int8Cache>(piece, states, workspace).run();
    case KVPrecision::int4: return SplitAttention<Int4Cache>(piece, states, workspace).run();
  }
}

void merge(long value_dim, long count, float* total, const float* states) {
  const long stride = state_floats(value_dim);
  for (long i = 0; i < count; ++i, total += stride, states += stride) {
    const float next = states[value_dim + kWidth], before = maximum_of(total, value_dim);
    if (next == -__builtin_inff()) continue;  // nothing seen in this split
    if (before == -__builtin_inff()) {        // nothing seen before
      std::memcpy(total, states, static_cast<std::size_t>(stride) * sizeof(float));
      continue;
    }
    const float now = next > before ? next : before;
    const Vec a = broadcast(exp2_one(before - now)), b = broadcast(exp2_one(next - now));
    for (long d = 0; d < value_dim + kWidth; d += kWidth) {  // values, then sums
      store(total + d, fma(load(total + d), a, load(states + d) * b));
    }
    maximum_of(total, value_dim) = now;
  }
}

void finish(const AttentionTile& tile, const float* total) {
  const long dim = tile.kv->value_dim, padded_dim = tile.kv->padded_value_dim;
  QueryCursor cursor(tile);
  for (long i = 0; i < tile.count; ++i, cursor.advance(), total += state_floats(padded_dim)) {
    float* const out = cursor.result();
    float all = hsum(load(total + padded_dim));
    if (tile.terms.sinks != nullptr) {
      const float sink = tile.terms.sinks[(tile.first + i) % tile.group];
      all = all + exp2_one(sink * kLog2E - total[padded_dim + kWidth]);
    }
    const Vec sum = broadcast(all);
    for_each_vector(dim, [&](long d, long k) { store_up_to(out + d, load_up_to(total + d, k) / sum, k); });
  }
}

void write(const KVLayer& kv, long block, long head, long slot, long count, const float* k, const float* v, long ld) {
  std::uint8_t* const keys = kv.keys(block, head);
  std::uint8_t* const values = kv.latent ? nullptr : kv.values(block, head);
  void (*write_token)(std::uint8_t*, std::uint8_t*, long, long, long, const float*, const float*) =
      kv.precision == KVPrecision::float32    ? Float32Cache::write_token
      : kv.precision == KVPrecision::bfloat16 ? PairedLayout::write_token
      : kv.precision == KVPrecision::int8     ? Int8Cache::write_token
                                              : Int4Cache::write_token;
  for (long i = 0; i < count; ++i, k += ld, v += ld) {
    write_token(keys, values, kv.padded_dim, kv.head_dim, slot + i, k, v);
  }
}

}  // namespace

constexpr AttentionKernels attention_kernels{
    .write = write, .attend_split = attend_split, .merge = merge, .finish = finish};

}  // namespace dragoman::DRAGOMAN_ISA
