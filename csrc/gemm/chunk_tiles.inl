// Tiles of chunked matrices: the formats of codes.inl, a few rows at a time.
namespace dragoman::DRAGOMAN_ISA {

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
