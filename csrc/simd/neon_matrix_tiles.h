// Tiles of several rows by the instructions of i8mm and bfloat16 that multiply matrices of 2 × 8 bytes, or 2 × 4
// numbers, with each other: twice the products of a dot product.
//
// Two quads (or pairs) of a column are brought beside each other, so that a register has eight bytes of each of two
// columns; another has the same inputs of two rows, and a sum is {column 0 · row 0, column 0 · row 1, column 1 · row 0,
// column 1 · row 1}. Sums of bytes are exact. BFMMLA adds the products of its first pairs to a sum, rounds, and then
// those of its second pairs, as two BFDOT do (Arm's manual, BFMatMulAdd), so a row has the same bits as in tiles of dot
// products. Eight columns of up to eight rows are 16 sums, with 4 registers of columns and 4 of rows.
#pragma once

namespace dragoman::DRAGOMAN_ISA {

constexpr int kOctets = kBlock / 8;  // of the columns of a block
constexpr long kOctetBytes = 8 * 4;  // of a quad or pair of each of its columns
constexpr long kRowBytes = kBlock * 4;

// An odd number of rows has its last one twice.
template <int M>
constexpr int kRowPairs = (M + 1) / 2;

// Eight bytes of both rows of each pair in one register, in memory: all four octets of columns read them.
template <int M, int bytes>
struct RowPairs {
  alignas(16) std::uint8_t of[kRowPairs<M>][bytes / 8][16];
};
template <int M, int bytes>
DRAGOMAN_INLINE void pair_rows(const std::uint8_t* x, long stride, RowPairs<M, bytes>& pairs) {
#pragma GCC unroll 4
  for (int p = 0; p < kRowPairs<M>; ++p) {
    const std::uint8_t* const first = x + 2 * p * stride;
    const std::uint8_t* const second = 2 * p + 1 < M ? first + stride : first;
#pragma GCC unroll 8
    for (int i = 0; i < bytes / 16; ++i) {
      const uint64x2_t a = vreinterpretq_u64_u8(vld1q_u8(first + 16 * i));
      const uint64x2_t b = vreinterpretq_u64_u8(vld1q_u8(second + 16 * i));
      vst1q_u8(pairs.of[p][2 * i], vreinterpretq_u8_u64(vzip1q_u64(a, b)));
      vst1q_u8(pairs.of[p][2 * i + 1], vreinterpretq_u8_u64(vzip2q_u64(a, b)));
    }
  }
}

// Eight bytes of two columns in each register, of eight columns.
struct ColumnPairs {
  uint32x4_t of[4];
};
DRAGOMAN_INLINE ColumnPairs load_column_pairs(const std::uint8_t* w) {
  const auto quarter = [](const std::uint8_t* p)
                           __attribute__((always_inline)) { return vreinterpretq_u32_u8(vld1q_u8(p)); };
  const uint32x4_t a = quarter(w), b = quarter(w + 16), c = quarter(w + kRowBytes), d = quarter(w + kRowBytes + 16);
  return {{vzip1q_u32(a, c), vzip2q_u32(a, c), vzip1q_u32(b, d), vzip2q_u32(b, d)}};
}

// Four lanes of the 16 columns of a vector.
DRAGOMAN_INLINE float32x4_t& quarter_of(Vec& v, int quarter) {
  return quarter == 0 ? v.a : quarter == 1 ? v.b : quarter == 2 ? v.c : v.d;
}

template <int M, class Prefetch>
DRAGOMAN_INLINE void add_wide_groups(const std::uint8_t*& w, long act_groups, const std::uint8_t*& x, long stride,
                                     Prefetch& prefetch, Vec (&sum)[M][2]) {
  constexpr int kPairs = kRowPairs<M>;
  constexpr long kNumbers = kWeightGroups * numbers_bytes(Precision::int8);
#pragma GCC unroll 1
  for (; act_groups > 0; --act_groups) {
    for (int g = 0; g < kWeightGroups; ++g) prefetch.fetch_group();
    const auto row = [=](int i) -> const ActGroup& { return *reinterpret_cast<const ActGroup*>(x + i * stride); };
    const auto* const scales = reinterpret_cast<const std::uint16_t*>(w + kNumbers);
    const Vec scale[2] = {load_fp16(scales), load_fp16(scales + kWidth)};
    RowPairs<M, kActGroup> pairs;
    pair_rows(x, stride, pairs);
#pragma GCC unroll 4
    for (int octet = 0; octet < kOctets; ++octet) {
      int32x4_t acc[kPairs][4];
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
        const int second = 2 * p + 1 < M ? 2 * p + 1 : 2 * p;
        const int32x2_t starts = {row(2 * p).wide_start, row(second).wide_start};
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) acc[p][c] = vcombine_s32(starts, starts);
      }
      const std::uint8_t* numbers = w + octet * kOctetBytes;
#pragma GCC unroll 2
      for (int eight = 0; eight < kActGroup / 8; ++eight) {
        const ColumnPairs columns = load_column_pairs(numbers);
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          const int8x16_t rows = vreinterpretq_s8_u8(vld1q_u8(pairs.of[p][eight]));
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) {
            acc[p][c] = vusmmlaq_s32(acc[p][c], vreinterpretq_u8_u32(columns.of[c]), rows);
          }
        }
        numbers += 2 * kRowBytes;
      }
      const int v = octet / 2, first = octet % 2 * 2;
      Vec factors[2] = {scale[0], scale[1]};
#pragma GCC unroll 8
      for (int i = 0; i < M; ++i) {
        const float32x4_t of_row = vdupq_n_f32(row(i).scale);
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const int32x4_t low = acc[i / 2][2 * half], high = acc[i / 2][2 * half + 1];
          const int32x4_t whole = i % 2 == 0 ? vuzp1q_s32(low, high) : vuzp2q_s32(low, high);
          float32x4_t& total = quarter_of(sum[i][v], first + half);
          total = vfmaq_f32(total, vmulq_f32(vcvtq_f32_s32(whole), quarter_of(factors[v], first + half)), of_row);
        }
      }
    }
    w += kNumbers + kBlock * 2;
    x += sizeof(ActGroup);
  }
}

// All groups of a bfloat16 matrix.
template <int M, class Prefetch>
DRAGOMAN_INLINE void add_bfloat16_groups(const std::uint8_t* w, long groups, const std::uint8_t* x, long stride,
                                         Prefetch prefetch, Vec (&sum)[M][2]) {
  constexpr int kPairs = kRowPairs<M>;
  float32x4_t sums[kOctets][kPairs][4] = {};
#pragma GCC unroll 1
  for (long g = 0; g < groups; ++g) {
    prefetch.fetch_group();
    RowPairs<M, kGroup * 2> pairs;
    pair_rows(x, stride, pairs);
#pragma GCC unroll 1
    for (int octet = 0; octet < kOctets; ++octet) {
      float32x4_t acc[kPairs][4];
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) acc[p][c] = sums[octet][p][c];
      }
      const std::uint8_t* numbers = w + octet * kOctetBytes;
#pragma GCC unroll 2
      for (int four = 0; four < kGroup / 4; ++four) {
        const ColumnPairs columns = load_column_pairs(numbers + four * 2 * kRowBytes);
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          const bfloat16x8_t rows = vreinterpretq_bf16_u8(vld1q_u8(pairs.of[p][four]));
#pragma GCC unroll 4
          for (int c = 0; c < 4; ++c) {
            acc[p][c] = vbfmmlaq_f32(acc[p][c], vreinterpretq_bf16_u32(columns.of[c]), rows);
          }
        }
      }
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) sums[octet][p][c] = acc[p][c];
      }
    }
    w += numbers_bytes(Precision::bfloat16);
    x += kGroup * 2;
  }
  for (int octet = 0; octet < kOctets; ++octet) {
    for (int i = 0; i < M; ++i) {
      for (int half = 0; half < 2; ++half) {
        const float32x4_t low = sums[octet][i / 2][2 * half], high = sums[octet][i / 2][2 * half + 1];
        quarter_of(sum[i][octet / 2], octet % 2 * 2 + half) =
            i % 2 == 0 ? vuzp1q_f32(low, high) : vuzp2q_f32(low, high);
      }
    }
  }
}

}  // namespace dragoman::DRAGOMAN_ISA
