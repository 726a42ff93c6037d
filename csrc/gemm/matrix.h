// A packed weight matrix W[n, k] for y = x · Wᵀ: the layout of its bytes.
//
// Columns of y (rows of W) are padded to blocks of 32 and k to groups of 32 with zeros. Blocks follow each other; a
// block is its groups one after the other, and a group holds, in the order in which a product reads it:
//
//   float32    [32][32] float32: for each k the block's columns
//   bfloat16   [16][32][2] bfloat16: pairs along k, as VDPBF16PS wants
//   int8       [8][32][4] uint8: the number + 128, quads along k, as VPDPBUSD wants; then [32] fp16 scales
//   int4       [4][32][4] uint8: the number + 8 of quad 2i in the low and of quad 2i + 1 in the high half of byte
//              row i; then [32] fp16 scales; with minimum, the codes are 0 … 15 and [32] fp16 minimums follow
//
// In a wide matrix (int8 only) the four groups of 128 inputs share their scales, which follow the numbers of the last:
// for every product of 32 bytes there is less to read and a quarter of the sums to fold.
//
// So a matrix is one stream of bytes, and the processor's prefetcher has an easy task: scales apart from their numbers,
// or columns side by side that lie a page apart, cost a quarter of the bandwidth with one row and half of it with
// eight.
//
// Inputs may have another order than in the checkpoint, so that those which share a scale are neighbours: then the
// blocks are followed by [k] int32, for each place the input that stands there.
//
// int8 numbers are those of GGUF's Q8_0, but for the width: w ≈ scale · q. int4 those of Q4_0, w ≈ scale · (code − 8),
// or with minimum of Q4_1, w ≈ scale · code + minimum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

enum class Precision : std::uint8_t { float32, bfloat16, int8, int4 };

constexpr long kBlock = 32;        // output columns of a block: two vectors of float32
constexpr long kGroup = 32;        // inputs that share a scale
constexpr long kWeightGroups = 4;  // groups whose activations share a scale; in a wide matrix their weights do too
constexpr long kActGroup = kWeightGroups * kGroup;

// Bytes of the numbers of one group of one block.
constexpr long numbers_bytes(Precision precision) {
  switch (precision) {
    case Precision::float32: return kGroup * kBlock * 4;
    case Precision::bfloat16: return kGroup * kBlock * 2;
    case Precision::int8: return kGroup * kBlock;
    case Precision::int4: return kGroup * kBlock / 2;
  }
  return 0;
}

// Bytes of all of it: numbers, scales, minimums.
constexpr long group_bytes(Precision precision, bool minimum) {
  const long parts = precision < Precision::int8 ? 0 : minimum ? 2 : 1;
  return numbers_bytes(precision) + parts * kBlock * 2;
}

struct Matrix {
  std::uint8_t* data = nullptr;
  long n = 0;  // outputs, rows of W
  long k = 0;  // inputs, columns of W
  Precision precision = Precision::float32;
  bool minimum = false;  // int4 only: each group has a minimum and a scale
  bool wide = false;     // int8 only: four groups share their scales
  bool ordered = false;  // inputs have another order than in the checkpoint

  long blocks() const { return (n + kBlock - 1) / kBlock; }
  long groups() const { return (k + kGroup - 1) / kGroup; }
  long k_padded() const { return groups() * kGroup; }
  long act_groups() const { return (groups() + kWeightGroups - 1) / kWeightGroups; }
  long block_bytes() const {
    return wide ? groups() * numbers_bytes(precision) + act_groups() * kBlock * 2
                : groups() * group_bytes(precision, minimum);
  }
  std::size_t bytes() const { return order_offset() + (ordered ? static_cast<std::size_t>(k) * 4 : 0); }
  std::int32_t* order() const { return ordered ? reinterpret_cast<std::int32_t*>(data + order_offset()) : nullptr; }

  std::uint8_t* block(long b) const { return data + b * block_bytes(); }
  std::uint8_t* group(long b, long g) const {
    return block(b) +
           (wide ? g * numbers_bytes(precision) + g / kWeightGroups * kBlock * 2 : g * group_bytes(precision, minimum));
  }
  std::uint16_t* scales(long b, long g) const {
    const long next = g / kWeightGroups * kWeightGroups + kWeightGroups;
    const long last = !wide ? g : (next < groups() ? next : groups()) - 1;
    return reinterpret_cast<std::uint16_t*>(group(b, last) + numbers_bytes(precision));
  }
  std::uint16_t* minimums(long b, long g) const { return scales(b, g) + kBlock; }

 private:
  std::size_t order_offset() const {
    return static_cast<std::size_t>(blocks()) * static_cast<std::size_t>(block_bytes());
  }
};

}  // namespace dragoman
