#include "gguf/gguf_pack.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "gemm/chunks.h"
#include "gguf/gguf_types.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

using namespace ggml;

std::uint16_t bits_at(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  return bits;
}

bool is_finite(std::uint16_t half) { return (half & 0x7c00u) != 0x7c00u; }

std::uint16_t integer(int scale) { return static_cast<std::uint8_t>(scale); }

// The places in a table of 32 numbers.
void read_places(const std::uint8_t* p, std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = p[i] & 15;
    codes[16 + i] = p[i] >> 4;
  }
}

// The numbers of a block as codes with a bias.
template <class Type>
void read_codes(const std::uint8_t* p, int bias, ChunkColumn& column) {
  Groups g;
  Type::read(p, g);
  for (long i = 0; i < Type::values; ++i) {
    column.codes[i / kGroup][i % kGroup] = static_cast<std::uint8_t>(g.q[i] + bias);
  }
}

void read_six_bits(const std::uint8_t* p, ChunkColumn& column) {
  column.factor = bits_at(p);
  column.least = bits_at(p + 2) ^ 0x8000u;
  for (int i = 0; i < 8; ++i) {
    column.scales[i] = integer(six_bit_scale(p + 4, i));
    column.minimums[i] = static_cast<std::uint8_t>(six_bit_minimum(p + 4, i));
  }
}

// The blocks of a chunk of one column: one of 256 numbers, or up to four of 32.
void read_column(Precision precision, const std::uint8_t* p, long groups, ChunkColumn& column) {
  const int bias = bias_of(precision, false);
  switch (precision) {
    case Precision::mxfp4:
      for (long g = 0; g < groups; ++g, p += MXFP4::bytes) {
        column.scales[g] = p[0];
        read_places(p + 1, column.codes[g]);
      }
      return;
    case Precision::iq4_nl:
      for (long g = 0; g < groups; ++g, p += IQ4_NL::bytes) {
        column.scales[g] = bits_at(p);
        read_places(p + 2, column.codes[g]);
      }
      return;
    case Precision::iq4_xs:
      column.factor = bits_at(p);
      for (int i = 0; i < 8; ++i) {
        column.scales[i] = integer(IQ4_XS::scale(p, i));
        read_places(p + 8 + 16 * i, column.codes[i]);
      }
      return;
    case Precision::q3_k:
      column.factor = bits_at(p + 108);
      for (int i = 0; i < 16; ++i) column.scales[i] = integer(Q3_K::scale(p, i));
      return read_codes<Q3_K>(p, bias, column);
    case Precision::q4_k: read_six_bits(p, column); return read_codes<Q4_K>(p, bias, column);
    case Precision::q5_k: read_six_bits(p, column); return read_codes<Q5_K>(p, bias, column);
    case Precision::q6_k:
      column.factor = bits_at(p + 208);
      for (int i = 0; i < 16; ++i) column.scales[i] = p[192 + i];
      return read_codes<Q6_K>(p, bias, column);
    default: throw std::invalid_argument("this format does not hold blocks");
  }
}

}  // namespace

GgufType gguf_type_of(Precision precision) {
  switch (precision) {
    case Precision::mxfp4: return GgufType::mxfp4;
    case Precision::iq4_nl: return GgufType::iq4_nl;
    case Precision::iq4_xs: return GgufType::iq4_xs;
    case Precision::q3_k: return GgufType::q3_k;
    case Precision::q4_k: return GgufType::q4_k;
    case Precision::q5_k: return GgufType::q5_k;
    case Precision::q6_k: return GgufType::q6_k;
    default: throw std::invalid_argument("this format does not hold blocks");
  }
}

void pack_gguf(const Matrix& w, const std::uint8_t* blocks) {
  const GgufBlock type = gguf_block(static_cast<int>(gguf_type_of(w.precision)));
  const long row_bytes = w.k / type.values * type.bytes, step = chunk_layout(w.precision).groups;
  pool().parallel_for(w.blocks(), 1, [&](long begin, long end) {
    for (long b = begin; b < end; ++b) {
      const long columns = std::min(kBlock, w.n - b * kBlock);
      for (long g = 0; g < w.groups(); g += step) {
        for (long c = 0; c < columns; ++c) {
          ChunkColumn column;
          const std::uint8_t* const row = blocks + (b * kBlock + c) * row_bytes;
          read_column(w.precision, row + g * kGroup / type.values * type.bytes, w.chunk_groups(g), column);
          store_chunk_column(w, b, g, c, column);
        }
      }
    }
  });
}

bool gguf_scales_are_finite(GgufType type, const std::uint8_t* blocks, long count) {
  const long bytes = gguf_block(static_cast<int>(type)).bytes;
  bool finite = true;
  for (const std::uint8_t* p = blocks; p < blocks + count * bytes; p += bytes) {
    switch (type) {
      case GgufType::mxfp4: finite &= p[0] != 255; break;
      case GgufType::iq4_nl:
      case GgufType::iq4_xs: finite &= is_finite(bits_at(p)); break;
      case GgufType::q3_k: finite &= is_finite(bits_at(p + 108)); break;
      case GgufType::q4_k:
      case GgufType::q5_k: finite &= is_finite(bits_at(p)) && is_finite(bits_at(p + 2)); break;
      case GgufType::q6_k: finite &= is_finite(bits_at(p + 208)); break;
      default: throw std::invalid_argument("no packed format has blocks of this type");
    }
  }
  return finite;
}

}  // namespace dragoman
