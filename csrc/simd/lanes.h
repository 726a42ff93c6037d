// What some instruction sets have no faster way for: one lane after the other. Part of the contract in portable.h.
#pragma once

namespace dragoman::DRAGOMAN_ISA {

// Writes the elements that are at least `floor`, and their places counted from `first`, to `values` and `ids`, which
// have room for 16; returns how many there are.
DRAGOMAN_INLINE long append_reaching(Vec a, float floor, long first, std::int32_t* ids, float* values) {
  float all[kWidth];
  store(all, a);
  long count = 0;
  for (int i = 0; i < kWidth; ++i) {
    ids[count] = static_cast<std::int32_t>(first + i);
    values[count] = all[i];
    count += all[i] >= floor;
  }
  return count;
}

// Of 16 elements of ids, a and b at `from`, moves those where low <= x <= high to `to`, which is at most `from`;
// returns how many these are. The rest of the 16 at `to` may be overwritten too.
DRAGOMAN_INLINE long move_between(Vec x, Vec low, Vec high, long from, long to, std::int32_t* ids, float* a, float* b) {
  float all[kWidth], least[kWidth], most[kWidth];
  store(all, x), store(least, low), store(most, high);
  long count = 0;
  for (int i = 0; i < kWidth; ++i) {
    const bool stays = (all[i] >= least[i]) & (all[i] <= most[i]);
    ids[to + count] = ids[from + i], a[to + count] = a[from + i], b[to + count] = b[from + i];
    count += stays;
  }
  return count;
}

// For each element a sum in float64.
struct WideSums {
  typedef float Quad __attribute__((vector_size(16)));
  typedef double WideQuad __attribute__((vector_size(32)));
  WideQuad v[kWidth / 4];
};
DRAGOMAN_INLINE WideSums no_wide_sums() { return {}; }
DRAGOMAN_INLINE void add_widened(WideSums& sums, Vec a) {
  float all[kWidth];
  store(all, a);
#pragma GCC unroll 4
  for (int q = 0; q < kWidth / 4; ++q) {
    WideSums::Quad four;
    std::memcpy(&four, all + q * 4, sizeof four);
    sums.v[q] += __builtin_convertvector(four, WideSums::WideQuad);
  }
}
DRAGOMAN_INLINE void store_wide(double* p, const WideSums& a) { std::memcpy(p, a.v, sizeof a.v); }

// Eight numbers of 64 bits.
struct Longs {
  std::uint64_t v[8];
};
DRAGOMAN_INLINE Longs broadcast_long(std::uint64_t a) { return {{a, a, a, a, a, a, a, a}}; }
DRAGOMAN_INLINE Longs count_from(std::uint64_t a) { return {{a, a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7}}; }
// The first elements of all four, then the second ones, and so on.
DRAGOMAN_INLINE void store_interleaved(std::uint64_t* p, const Longs (&a)[4]) {
  for (int i = 0; i < 32; ++i) p[i] = a[i % 4].v[i / 4];
}
DRAGOMAN_INLINE Longs operator^(Longs a, Longs b) {
  for (int i = 0; i < 8; ++i) a.v[i] ^= b.v[i];
  return a;
}
// The low halves of the products, of 128 bits, and the high ones.
DRAGOMAN_INLINE Longs multiply_wide(Longs a, std::uint64_t factor, Longs& high) {
  for (int i = 0; i < 8; ++i) {
    const auto product = static_cast<unsigned __int128>(a.v[i]) * factor;
    a.v[i] = static_cast<std::uint64_t>(product);
    high.v[i] = static_cast<std::uint64_t>(product >> 64);
  }
  return a;
}

}  // namespace dragoman::DRAGOMAN_ISA
