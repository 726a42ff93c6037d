#include "gemm/chunks.h"

#include <cstring>

#include "simd/half.h"

namespace dragoman {
namespace {

// Bits of the code of input i of a group that lie in its first plane, and where they begin.
struct Plane {
  long offset;  // of the plane in the group's bytes
  int bits;     // of each code in it
  int shift;    // of these in the code
};
struct Planes {
  Plane of[2];
  int count;
};

Planes planes_of(Precision precision) {
  switch (precision) {
    case Precision::q3_k: return {{{0, 1, 2}, {128, 2, 0}}, 2};
    case Precision::q5_k: return {{{0, 1, 4}, {128, 4, 0}}, 2};
    case Precision::q6_k: return {{{0, 2, 4}, {256, 4, 0}}, 2};
    default: return {{{0, 4, 0}, {}}, 1};
  }
}

// The byte that has the bits of input i of a column, and where in it.
struct Position {
  long byte;
  int shift;
};
Position position_of(const Plane& plane, long column, long i) {
  const long quad = i / 4, per_byte = 8 / plane.bits;
  const long row = quad / per_byte;
  return {plane.offset + (row * kBlock + column) * 4 + i % 4, static_cast<int>(quad % per_byte) * plane.bits};
}

const std::uint8_t* table_of(Precision precision) {
  if (precision == Precision::mxfp4) return kMxfp4Table;
  return precision == Precision::iq4_nl || precision == Precision::iq4_xs ? kNonLinearTable : nullptr;
}

float half_at(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_to_float(bits);
}

}  // namespace

void store_chunk_column(const Matrix& w, long b, long g, long column, const ChunkColumn& numbers) {
  const ChunkLayout layout = chunk_layout(w.precision);
  const long count = w.chunk_groups(g), parts = kGroup / layout.width;
  std::uint8_t* const head = w.chunk(b, g);
  if (layout.halves() > 0) std::memcpy(head + column * 2, &numbers.factor, 2);
  if (layout.minimum) {
    std::memcpy(head + kBlock * 2 + column * 2, &numbers.least, 2);
    for (long i = 0; i < count; ++i) head[layout.minimums_offset(count) + i * kBlock + column] = numbers.minimums[i];
  }
  for (long i = 0; i < count * parts; ++i) {
    std::uint8_t* const scales = head + layout.scales_offset() + i * layout.scale_bytes();
    if (layout.scales == Scales::halves) {
      std::memcpy(scales + column * 2, &numbers.scales[i], 2);
    } else {
      scales[column] = static_cast<std::uint8_t>(numbers.scales[i]);
    }
  }
  const Planes planes = planes_of(w.precision);
  for (long group = 0; group < count; ++group) {
    std::uint8_t* const target = head + layout.head_bytes(count) + group * numbers_bytes(w.precision);
    for (int p = 0; p < planes.count; ++p) {
      const Plane& plane = planes.of[p];
      const int mask = (1 << plane.bits) - 1;
      for (long i = 0; i < kGroup; ++i) {
        const Position at = position_of(plane, column, i);
        const int bits = (numbers.codes[group][i] >> plane.shift) & mask;
        target[at.byte] = static_cast<std::uint8_t>((target[at.byte] & ~(mask << at.shift)) | bits << at.shift);
      }
    }
  }
}

void unpack_chunked_row(const Matrix& w, long row, float* out) {
  const ChunkLayout layout = chunk_layout(w.precision);
  const Planes planes = planes_of(w.precision);
  const std::uint8_t* const table = table_of(w.precision);
  const int bias = bias_of(w.precision, w.minimum);
  const long b = row / kBlock, column = row % kBlock, parts = kGroup / layout.width;
  for (long g = 0; g < w.groups(); g += layout.groups) {
    const long count = w.chunk_groups(g);
    const std::uint8_t* const head = w.chunk(b, g);
    const float factor = layout.halves() > 0 ? half_at(head + column * 2) : 1.0f;
    const float least = layout.minimum ? half_at(head + kBlock * 2 + column * 2) : 0.0f;
    for (long part = 0; part < count * parts; ++part) {
      const std::uint8_t* const scales = head + layout.scales_offset() + part * layout.scale_bytes();
      const float scale = layout.scales == Scales::halves      ? half_at(scales + column * 2)
                          : layout.scales == Scales::exponents ? half_power(scales[column])
                                                               : factor * static_cast<std::int8_t>(scales[column]);
      const long group = part / parts;
      const std::uint8_t* const source = head + layout.head_bytes(count) + group * numbers_bytes(w.precision);
      const float minimum =
          layout.minimum ? least * static_cast<float>(head[layout.minimums_offset(count) + group * kBlock + column])
                         : 0.0f;
      for (long i = part % parts * layout.width; i < (part % parts + 1) * layout.width; ++i) {
        int code = 0;
        for (int p = 0; p < planes.count; ++p) {
          const Position at = position_of(planes.of[p], column, i);
          code |= ((source[at.byte] >> at.shift) & ((1 << planes.of[p].bits) - 1)) << planes.of[p].shift;
        }
        const int number = (table != nullptr ? table[code] : code) - bias;
        const float product = scale * static_cast<float>(number);
        out[(g + group) * kGroup + i] = layout.minimum ? product + minimum : product;
      }
    }
  }
}

}  // namespace dragoman
