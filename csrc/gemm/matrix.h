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
//
// The other formats hold the numbers of ggml's types exactly, in chunks: four groups, or eight where 256 inputs share a
// factor. A chunk begins with what scales it, of each column, in whole cache lines:
//
//   halves     [32] fp16 factor of the scales; with minimums, [32] fp16 factor of the minimums, negative
//   scales     for each group, or half of one, [32]: fp16, a power of two as its exponent, or an integer of 8 bits
//   minimums   for each group [32] uint8
//
// and goes on with the codes of its groups: first the bits above the fourth (q3_k: the second), then the others.
//
//   4 bits     [4][32][4] uint8, as int4
//   2 bits     [2][32][4] uint8: those of quad 4i + j at bit 2j of byte row i
//   1 bit      [32][4] uint8: that of quad j at bit j
//
// Codes of mxfp4, iq4_nl and iq4_xs are places in a table of sixteen numbers; those of the others are the number + a
// bias.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

enum class Precision : std::uint8_t {
  float32,
  bfloat16,
  int8,
  int4,
  mxfp4,
  iq4_nl,
  iq4_xs,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
};
constexpr int kPrecisions = 11;

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
    case Precision::int4:
    case Precision::mxfp4:
    case Precision::iq4_nl:
    case Precision::iq4_xs:
    case Precision::q4_k: return kGroup * kBlock / 2;
    case Precision::q3_k: return kGroup * kBlock * 3 / 8;
    case Precision::q5_k: return kGroup * kBlock * 5 / 8;
    case Precision::q6_k: return kGroup * kBlock * 6 / 8;
  }
  return 0;
}

// How a chunk is scaled.
enum class Scales : std::uint8_t { exponents, halves, integers };
struct ChunkLayout {
  long groups;    // in a whole chunk; the last one of a row of groups may have fewer
  long width;     // inputs that share a scale: a group, or half of one
  Scales scales;  // integers have a factor
  bool minimum;

  constexpr long halves() const { return scales == Scales::integers ? 1 + minimum : 0; }
  constexpr long scale_bytes() const { return kBlock * (scales == Scales::halves ? 2 : 1); }
  constexpr long scales_offset() const { return halves() * kBlock * 2; }
  constexpr long minimums_offset(long count) const {
    return scales_offset() + count * (kGroup / width) * scale_bytes();
  }
  // Bytes before the codes of a chunk of so many groups.
  constexpr long head_bytes(long count) const {
    return (minimums_offset(count) + (minimum ? count * kBlock : 0) + 63) / 64 * 64;
  }
};
constexpr bool is_chunked(Precision precision) { return precision > Precision::int4; }
constexpr ChunkLayout chunk_layout(Precision precision) {
  switch (precision) {
    case Precision::mxfp4: return {.groups = 4, .width = 32, .scales = Scales::exponents, .minimum = false};
    case Precision::iq4_xs: return {.groups = 8, .width = 32, .scales = Scales::integers, .minimum = false};
    case Precision::q3_k:
    case Precision::q6_k: return {.groups = 8, .width = 16, .scales = Scales::integers, .minimum = false};
    case Precision::q4_k:
    case Precision::q5_k: return {.groups = 8, .width = 32, .scales = Scales::integers, .minimum = true};
    default: return {.groups = 4, .width = 32, .scales = Scales::halves, .minimum = false};  // iq4_nl
  }
}

// What codes have above the numbers that they are; of tables, what their unsigned entries have.
constexpr int bias_of(Precision precision, bool minimum) {
  switch (precision) {
    case Precision::int8:
    case Precision::iq4_nl:
    case Precision::iq4_xs: return 128;
    case Precision::int4: return minimum ? 0 : 8;
    case Precision::mxfp4: return 12;
    case Precision::q3_k: return 4;
    case Precision::q6_k: return 32;
    default: return 0;
  }
}

// The numbers of the tables, and of mxfp4 twice its numbers, plus bias.
constexpr std::uint8_t kMxfp4Table[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr std::uint8_t kNonLinearTable[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

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
    if (is_chunked(precision)) return chunk_offset(groups());
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

  // Of a chunked matrix: the chunk that begins with group g, and how many groups it has.
  std::uint8_t* chunk(long b, long g) const { return block(b) + chunk_offset(g); }
  long chunk_groups(long g) const {
    const long whole = chunk_layout(precision).groups, left = groups() - g;
    return left < whole ? left : whole;
  }

 private:
  // Bytes of so many groups, of which only the last chunk may not be whole.
  long chunk_offset(long count) const {
    const ChunkLayout layout = chunk_layout(precision);
    const long whole = count / layout.groups, rest = count % layout.groups;
    return whole * layout.head_bytes(layout.groups) + (rest > 0 ? layout.head_bytes(rest) : 0) +
           count * numbers_bytes(precision);
  }
  std::size_t order_offset() const {
    return static_cast<std::size_t>(blocks()) * static_cast<std::size_t>(block_bytes());
  }
};

}  // namespace dragoman
