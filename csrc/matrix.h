// A packed weight matrix W[n, k] for y = x · Wᵀ: the layout of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dragoman {

enum class Precision : std::uint8_t { float32, bfloat16, int8, int4 };

constexpr long kBlock = 16;  // output columns of a block: one vector of float32
constexpr long kGroup = 32;  // inputs that share a scale

struct Matrix {
  const std::uint8_t* data = nullptr;
  long n = 0;  // outputs, rows of W
  long k = 0;  // inputs, columns of W
  Precision precision = Precision::float32;
  bool minimum = false;  // int4 only: each group has a minimum beside its scale

  long blocks() const { return (n + kBlock - 1) / kBlock; }
  long groups() const { return (k + kGroup - 1) / kGroup; }
  long k_padded() const { return groups() * kGroup; }
};

}  // namespace dragoman
