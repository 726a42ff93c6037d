// The layouts of ggml's types: those of ggml-common.h and of the `gguf` package.
//
// Every type is read as groups of small integers with a scale and, in some, a minimum: w = scale * q (+ minimum). A
// type is defined by its `read`; everything else is shared.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "gemm/chunks.h"
#include "gguf/gguf_blocks.h"
#include "simd/half.h"

namespace dragoman::ggml {

constexpr long kMostValues = 256;

// One block. minimums are used where the type has them.
struct Groups {
  float scales[16];
  float minimums[16];
  std::int8_t q[kMostValues];
};

inline float half_at(const std::uint8_t* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, 2);
  return half_to_float(bits);
}

inline std::uint32_t word_at(const std::uint8_t* p) {
  std::uint32_t bits;
  std::memcpy(&bits, p, 4);
  return bits;
}

// 16 bytes: the low halves are the numbers 0 … 15, the high halves 16 … 31.
inline void read_nibbles(const std::uint8_t* p, int offset, std::int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<std::int8_t>((p[i] & 15) - offset);
    q[16 + i] = static_cast<std::int8_t>((p[i] >> 4) - offset);
  }
}

// The same with the fifth bits of all 32 in a word before them.
inline void read_five_bits(const std::uint8_t* p, int offset, std::int8_t* q) {
  const std::uint32_t high = word_at(p);
  for (int i = 0; i < 16; ++i) {
    q[i] = static_cast<std::int8_t>(((p[4 + i] & 15) | ((high >> i) & 1) << 4) - offset);
    q[16 + i] = static_cast<std::int8_t>(((p[4 + i] >> 4) | ((high >> (16 + i)) & 1) << 4) - offset);
  }
}

// The same as places in a table.
constexpr std::int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::int8_t kMxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice the numbers

template <const std::int8_t (&table)[16]>
void read_nibbles(const std::uint8_t* p, std::int8_t* q) {
  for (int i = 0; i < 16; ++i) {
    q[i] = table[p[i] & 15];
    q[16 + i] = table[p[i] >> 4];
  }
}

struct Q4_0 {
  static constexpr long values = 32, bytes = 18, width = 32;
  static constexpr bool minimum = false;
  static void read(const std::uint8_t* p, Groups& g) {
    g.scales[0] = half_at(p);
    read_nibbles(p + 2, 8, g.q);
  }
};

struct Q4_1 {
  static constexpr long values = 32, bytes = 20, width = 32;
  static constexpr bool minimum = true;
  static void read(const std::uint8_t* p, Groups& g) {
    g.scales[0] = half_at(p);
    g.minimums[0] = half_at(p + 2);
    read_nibbles(p + 4, 0, g.q);
  }
};

struct Q5_0 {
  static constexpr long values = 32, bytes = 22, width = 32;
  static constexpr bool minimum = false;
  static void read(const std::uint8_t* p, Groups& g) {
    g.scales[0] = half_at(p);
    read_five_bits(p + 2, 16, g.q);
  }
};

struct Q5_1 {
  static constexpr long values = 32, bytes = 24, width = 32;
  static constexpr bool minimum = true;
  static void read(const std::uint8_t* p, Groups& g) {
    g.scales[0] = half_at(p);
    g.minimums[0] = half_at(p + 2);
    read_five_bits(p + 4, 0, g.q);
  }
};

struct Q8_0 {
  static constexpr long values = 32, bytes = 34, width = 32;
  static constexpr bool minimum = false;
  static void read(const std::uint8_t* p, Groups& g) {
    g.scales[0] = half_at(p);
    std::memcpy(g.q, p + 2, 32);
  }
};

struct IQ4_NL {
  static constexpr long values = 32, bytes = 18, width = 32;
  static constexpr bool minimum = false;
  static void read(const std::uint8_t* p, Groups& g) {
    g.scales[0] = half_at(p);
    read_nibbles<kNonLinear>(p + 2, g.q);
  }
};

struct MXFP4 {
  static constexpr long values = 32, bytes = 17, width = 32;
  static constexpr bool minimum = false;
  static void read(const std::uint8_t* p, Groups& g) {
    g.scales[0] = half_power(p[0]);
    read_nibbles<kMxfp4>(p + 1, g.q);
  }
};

struct IQ4_XS {  // scale; high two bits of eight scales; low four; numbers
  static constexpr long values = 256, bytes = 136, width = 32;
  static constexpr bool minimum = false;
  static int scale(const std::uint8_t* p, int i) {
    const int low = (p[4 + i / 2] >> (i % 2 * 4)) & 15, high = ((p[2] | p[3] << 8) >> (2 * i)) & 3;
    return (low | high << 4) - 32;
  }
  static void read(const std::uint8_t* p, Groups& g) {
    const float factor = half_at(p);
    for (int i = 0; i < 8; ++i) {
      g.scales[i] = factor * static_cast<float>(scale(p, i));
      read_nibbles<kNonLinear>(p + 8 + 16 * i, g.q + 32 * i);
    }
  }
};

struct Q2_K {  // 16 bytes of a scale and a minimum of four bits each; numbers; the factors of both
  static constexpr long values = 256, bytes = 84, width = 16;
  static constexpr bool minimum = true;
  static void read(const std::uint8_t* p, Groups& g) {
    const float scale = half_at(p + 80), least = half_at(p + 82);
    for (int i = 0; i < 16; ++i) {
      g.scales[i] = scale * static_cast<float>(p[i] & 15);
      g.minimums[i] = -(least * static_cast<float>(p[i] >> 4));
    }
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < 4; ++part) {
        for (int i = 0; i < 32; ++i) {
          g.q[half * 128 + part * 32 + i] = static_cast<std::int8_t>((p[16 + half * 32 + i] >> (part * 2)) & 3);
        }
      }
    }
  }
};

struct Q3_K {  // the third bits, inverted; numbers; 16 scales of six bits; their factor
  static constexpr long values = 256, bytes = 110, width = 16;
  static constexpr bool minimum = false;
  static int scale(const std::uint8_t* p, int i) {
    const std::uint8_t* const packed = p + 96;
    const int low = (packed[i % 8] >> (i / 8 * 4)) & 15, high = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
    return (low | high << 4) - 32;
  }
  static void read_numbers(const std::uint8_t* p, std::int8_t* q) {
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < 4; ++part) {
        for (int i = 0; i < 32; ++i) {
          const int low = (p[32 + half * 32 + i] >> (part * 2)) & 3, set = (p[i] >> (half * 4 + part)) & 1;
          q[half * 128 + part * 32 + i] = static_cast<std::int8_t>(low + set * 4 - 4);
        }
      }
    }
  }
  static void read(const std::uint8_t* p, Groups& g) {
    const float factor = half_at(p + 108);
    for (int i = 0; i < 16; ++i) g.scales[i] = factor * static_cast<float>(scale(p, i));
    read_numbers(p, g.q);
  }
};

// Eight scales and eight minimums of six bits each in twelve bytes: of the first four of each the six bits lie
// together, of the others the high two bits are in the two that those leave.
inline int six_bit_scale(const std::uint8_t* packed, int i) {
  return i < 4 ? packed[i] & 63 : (packed[4 + i] & 15) | (packed[i - 4] >> 6) << 4;
}
inline int six_bit_minimum(const std::uint8_t* packed, int i) {
  return i < 4 ? packed[4 + i] & 63 : packed[4 + i] >> 4 | (packed[i] >> 6) << 4;
}
inline void read_six_bit_scales(const std::uint8_t* p, Groups& g) {
  const float scale = half_at(p), least = half_at(p + 2);
  for (int i = 0; i < 8; ++i) {
    g.scales[i] = scale * static_cast<float>(six_bit_scale(p + 4, i));
    g.minimums[i] = -(least * static_cast<float>(six_bit_minimum(p + 4, i)));
  }
}

struct Q4_K {
  static constexpr long values = 256, bytes = 144, width = 32;
  static constexpr bool minimum = true;
  static void read(const std::uint8_t* p, Groups& g) {
    read_six_bit_scales(p, g);
    for (int part = 0; part < 8; ++part) {
      for (int i = 0; i < 32; ++i) {
        g.q[part * 32 + i] = static_cast<std::int8_t>((p[16 + part / 2 * 32 + i] >> (part % 2 * 4)) & 15);
      }
    }
  }
};

struct Q5_K {
  static constexpr long values = 256, bytes = 176, width = 32;
  static constexpr bool minimum = true;
  static void read(const std::uint8_t* p, Groups& g) {
    read_six_bit_scales(p, g);
    for (int part = 0; part < 8; ++part) {
      for (int i = 0; i < 32; ++i) {
        const int low = (p[48 + part / 2 * 32 + i] >> (part % 2 * 4)) & 15, high = (p[16 + i] >> part) & 1;
        g.q[part * 32 + i] = static_cast<std::int8_t>(low | high << 4);
      }
    }
  }
};

struct Q6_K {
  static constexpr long values = 256, bytes = 210, width = 16;
  static constexpr bool minimum = false;
  static void read(const std::uint8_t* p, Groups& g) {
    const float factor = half_at(p + 208);
    for (int i = 0; i < 16; ++i) g.scales[i] = factor * static_cast<float>(static_cast<std::int8_t>(p[192 + i]));
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < 4; ++part) {
        for (int i = 0; i < 32; ++i) {
          const int low = (p[half * 64 + part % 2 * 32 + i] >> (part / 2 * 4)) & 15;
          const int high = (p[128 + half * 32 + i] >> (part * 2)) & 3;
          g.q[half * 128 + part * 32 + i] = static_cast<std::int8_t>((low | high << 4) - 32);
        }
      }
    }
  }
};

// Blocks of -1, 0 and 1 with one scale, which is that of all eight groups of 32.
inline void share_scale(const std::uint8_t* p, Groups& g) {
  const float scale = half_at(p);
  for (int i = 0; i < 8; ++i) g.scales[i] = scale;
}

struct TQ1_0 {  // five numbers in a byte, four in each of the last four; scale
  static constexpr long values = 256, bytes = 54, width = 32;
  static constexpr bool minimum = false;
  // A byte is a fraction of 256: times a power of three, its whole part after the next factor of three is a number.
  static std::int8_t number(std::uint8_t stored, int digit) {
    constexpr std::uint8_t kPowers[5] = {1, 3, 9, 27, 81};
    const auto rest = static_cast<std::uint8_t>(stored * kPowers[digit]);
    return static_cast<std::int8_t>((rest * 3 >> 8) - 1);
  }
  static void read(const std::uint8_t* p, Groups& g) {
    share_scale(p + 52, g);
    const int starts[3] = {0, 32, 48}, counts[3] = {32, 16, 4}, digits[3] = {5, 5, 4};
    std::int8_t* q = g.q;
    for (int part = 0; part < 3; ++part) {
      for (int digit = 0; digit < digits[part]; ++digit) {
        for (int i = 0; i < counts[part]; ++i) *q++ = number(p[starts[part] + i], digit);
      }
    }
  }
};

struct TQ2_0 {  // four numbers in a byte; scale
  static constexpr long values = 256, bytes = 66, width = 32;
  static constexpr bool minimum = false;
  static void read(const std::uint8_t* p, Groups& g) {
    share_scale(p + 64, g);
    for (int half = 0; half < 2; ++half) {
      for (int part = 0; part < 4; ++part) {
        for (int i = 0; i < 32; ++i) {
          g.q[half * 128 + part * 32 + i] = static_cast<std::int8_t>(((p[half * 32 + i] >> (part * 2)) & 3) - 1);
        }
      }
    }
  }
};

// Calls `visit` with a value of the type's class.
template <class Visit>
auto with_type(GgufType type, Visit&& visit) {
  switch (type) {
    case GgufType::q4_0: return visit(Q4_0{});
    case GgufType::q4_1: return visit(Q4_1{});
    case GgufType::q5_0: return visit(Q5_0{});
    case GgufType::q5_1: return visit(Q5_1{});
    case GgufType::q8_0: return visit(Q8_0{});
    case GgufType::q2_k: return visit(Q2_K{});
    case GgufType::q3_k: return visit(Q3_K{});
    case GgufType::q4_k: return visit(Q4_K{});
    case GgufType::q5_k: return visit(Q5_K{});
    case GgufType::q6_k: return visit(Q6_K{});
    case GgufType::iq4_nl: return visit(IQ4_NL{});
    case GgufType::iq4_xs: return visit(IQ4_XS{});
    case GgufType::tq1_0: return visit(TQ1_0{});
    case GgufType::tq2_0: return visit(TQ2_0{});
    case GgufType::mxfp4: return visit(MXFP4{});
  }
  throw std::invalid_argument("unknown GGUF block type " + std::to_string(static_cast<int>(type)));
}

}  // namespace dragoman::ggml
