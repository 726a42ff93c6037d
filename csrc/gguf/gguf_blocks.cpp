#include "gguf/gguf_blocks.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "gguf/gguf_types.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

using namespace ggml;

template <class Type>
void dequantize_block(const std::uint8_t* p, float* out) {
  Groups g;
  Type::read(p, g);
  for (long group = 0; group < Type::values / Type::width; ++group) {
    const float scale = g.scales[group], least = g.minimums[group];
    for (long i = 0; i < Type::width; ++i) {
      const float product = scale * static_cast<float>(g.q[group * Type::width + i]);
      out[group * Type::width + i] = Type::minimum ? product + least : product;
    }
  }
}

// To the nearest integer, halves away from zero. Exact: subtracting the truncated value from |a| < 2²³ loses nothing.
int round_half_away(float a) {
  const int whole = static_cast<int>(a);
  const float rest = a - static_cast<float>(whole);
  return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

// Quantizes 32 floats to int8, as packing does. Returns false where one is not finite, or too large for a scale in half
// precision.
bool quantize_group(const float* values, std::int8_t* q, std::uint16_t* scale_bits) {
  float most = 0.0f;
  bool finite = true;
  for (int i = 0; i < 32; ++i) {
    const float magnitude = std::fabs(values[i]);
    finite &= magnitude <= 127.0f * 65504.0f;
    most = magnitude > most ? magnitude : most;
  }
  if (!finite) return false;
  const float scale = most / 127.0f, inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < 32; ++i) q[i] = static_cast<std::int8_t>(round_half_away(values[i] * inverse));
  *scale_bits = float_to_half(scale);
  return true;
}

bool store_half(float value, std::uint16_t* bits) {
  *bits = float_to_half(value);
  return (*bits & 0x7c00u) != 0x7c00u;
}

// Groups of 32 as stored: exact where a scale is a half already, and with a rounded scale where it is a product.
template <class Type>
bool copy_block(const std::uint8_t* p, bool minimum, std::int8_t* q, std::uint16_t* scales, std::uint16_t* minimums) {
  Groups g;
  Type::read(p, g);
  std::memcpy(q, g.q, Type::values);
  bool finite = true;
  for (long group = 0; group < Type::values / 32; ++group) {
    finite &= store_half(g.scales[group], scales + group);
    if (minimum) finite &= store_half(g.minimums[group], minimums + group);
  }
  return finite;
}

// A scale, -32 … 31, times a number, -4 … 3, fits 8 bits once its sign is inverted; the common factor is a half.
bool copy_q3_k(const std::uint8_t* p, std::int8_t* q, std::uint16_t* scales) {
  std::int8_t numbers[256];
  Q3_K::read_numbers(p, numbers);
  for (int i = 0; i < 256; ++i) q[i] = static_cast<std::int8_t>(-Q3_K::scale(p, i / 16) * numbers[i]);
  const float factor = -half_at(p + 108);
  bool finite = true;
  for (int group = 0; group < 8; ++group) finite &= store_half(factor, scales + group);
  return finite;
}

template <class Type>
bool quantize_block(const std::uint8_t* p, std::int8_t* q, std::uint16_t* scales) {
  float values[kMostValues];
  dequantize_block<Type>(p, values);
  bool finite = true;
  for (long group = 0; group < Type::values / 32; ++group) {
    finite &= quantize_group(values + group * 32, q + group * 32, scales + group);
  }
  return finite;
}

// As stored where float16 holds the power of two.
bool copy_mxfp4(const std::uint8_t* p, std::int8_t* q, std::uint16_t* scales) {
  if (p[0] == 255) return false;
  const float scale = half_power(p[0]);
  *scales = float_to_half(scale);
  if (half_to_float(*scales) != scale) return quantize_block<MXFP4>(p, q, scales);
  read_nibbles<kMxfp4>(p + 1, q);
  return true;
}

template <class Type>
bool block_codes(const std::uint8_t* p, bool minimum, std::int8_t* q, std::uint16_t* scales, std::uint16_t* minimums) {
  if constexpr (std::is_same_v<Type, Q3_K>) return copy_q3_k(p, q, scales);
  if constexpr (std::is_same_v<Type, MXFP4>) return copy_mxfp4(p, q, scales);
  if constexpr (Type::width == 32) {
    if (Type::minimum == minimum) return copy_block<Type>(p, minimum, q, scales, minimums);
  }
  return quantize_block<Type>(p, q, scales);
}

}  // namespace

GgufBlock gguf_block(int type) {
  return with_type(static_cast<GgufType>(type),
                   [](auto t) { return GgufBlock{.values = decltype(t)::values, .bytes = decltype(t)::bytes}; });
}

void dequantize_gguf(GgufType type, const std::uint8_t* blocks, long count, float* out) {
  with_type(type, [&](auto t) {
    using Type = decltype(t);
    pool().parallel_for(count, 1024, [&](long begin, long end) {
      for (long i = begin; i < end; ++i) dequantize_block<Type>(blocks + i * Type::bytes, out + i * Type::values);
    });
  });
}

bool gguf_has_codes(GgufType type, Precision precision, bool minimum) {
  if (precision == Precision::int8) return !minimum;
  if (precision != Precision::int4) return false;
  if (minimum) return type == GgufType::q4_1 || type == GgufType::q4_k;
  return type == GgufType::q4_0 || type == GgufType::tq1_0 || type == GgufType::tq2_0;
}

bool gguf_codes(GgufType type, const std::uint8_t* blocks, long rows, long k, Precision precision, bool minimum,
                std::int8_t* values, std::uint16_t* scales, std::uint16_t* minimums) {
  if (!gguf_has_codes(type, precision, minimum)) throw std::invalid_argument("no codes of this precision");
  std::atomic<bool> finite{true};
  with_type(type, [&](auto t) {
    using Type = decltype(t);
    constexpr long groups = Type::values / 32;
    const long count = rows * (k / Type::values);
    pool().parallel_for(count, 1024, [&](long begin, long end) {
      bool fine = true;
      for (long i = begin; i < end; ++i) {
        fine &= block_codes<Type>(blocks + i * Type::bytes, minimum, values + i * Type::values, scales + i * groups,
                                  minimum ? minimums + i * groups : nullptr);
      }
      if (!fine) finite = false;
    });
  });
  return finite;
}

}  // namespace dragoman
