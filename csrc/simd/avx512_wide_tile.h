// The tile of a wide matrix with 5 to 8 rows, in assembly.
//
// Bytes and sums are multiplied by the same two units. Of a chain's 34 multiplications in an ActGroup, two fold it: 94
// % of the peak are possible, and this order reaches them with weights in the second-level cache. With intrinsics for
// the same arithmetic, the compiler reached 86 to 89 %: it moves sums between registers, and stores all of them after
// every ActGroup.
//
//    zmm0 … zmm15    integer sums of an ActGroup, of two vectors of columns for each row
//    zmm16, zmm17    weights of both vectors, then their scales
//    zmm18, zmm19    four inputs of a row, or its scale
//    zmm20 … zmm31   float sums of rows 2 to 7; those of rows 0 and 1 stay in memory
#pragma once

#include <cstddef>

// clang-format off: the columns of the instructions
namespace dragoman::DRAGOMAN_ISA {

// The layout that the numbers below assume.
static_assert(kBlock == 32 && kGroup == 32 && kWeightGroups == 4 && sizeof(ActGroup) == 192);
static_assert(offsetof(ActGroup, wide_start) == 160 && offsetof(ActGroup, scale) == 164);

// `at` bytes after each row's current input.
#define DRAGOMAN_ROW0(at) #at "(%[x])"
#define DRAGOMAN_ROW1(at) #at "(%[x], %[stride])"
#define DRAGOMAN_ROW2(at) #at "(%[x], %[stride], 2)"
#define DRAGOMAN_ROW3(at) #at "(%[x], %[stride3])"
#define DRAGOMAN_ROW4(at) #at "(%[x], %[stride], 4)"
#define DRAGOMAN_ROW5(at) #at "(%[x], %[stride5])"
#define DRAGOMAN_ROW6(at) #at "(%[x], %[stride3], 2)"
#define DRAGOMAN_ROW7(at) #at "(%[x], %[stride7])"

// step(position in the inputs, integer sums, float sums, their place in memory, register for inputs) of each row.
#define DRAGOMAN_ROWS_0_1(step, at)                    \
  step(DRAGOMAN_ROW0(at), 0, 1, none, none, 0, 64, 18) \
  step(DRAGOMAN_ROW1(at), 2, 3, none, none, 128, 192, 19)
#define DRAGOMAN_ROWS_2_4(step, at)                   \
  step(DRAGOMAN_ROW2(at), 4, 5, 20, 21, 256, 320, 18) \
  step(DRAGOMAN_ROW3(at), 6, 7, 22, 23, 384, 448, 19) \
  step(DRAGOMAN_ROW4(at), 8, 9, 24, 25, 512, 576, 18)
#define DRAGOMAN_ROWS_2_5(step, at) \
  DRAGOMAN_ROWS_2_4(step, at) step(DRAGOMAN_ROW5(at), 10, 11, 26, 27, 640, 704, 19)
#define DRAGOMAN_ROWS_2_6(step, at) \
  DRAGOMAN_ROWS_2_5(step, at) step(DRAGOMAN_ROW6(at), 12, 13, 28, 29, 768, 832, 18)
#define DRAGOMAN_ROWS_2_7(step, at) \
  DRAGOMAN_ROWS_2_6(step, at) step(DRAGOMAN_ROW7(at), 14, 15, 30, 31, 896, 960, 19)

#define DRAGOMAN_LOAD_SUMS(row, a, b, sum_a, sum_b, to_a, to_b, input) \
  "vmovaps " #to_a "(%[sum]), %%zmm" #sum_a "\n vmovaps " #to_b "(%[sum]), %%zmm" #sum_b "\n"
#define DRAGOMAN_STORE_SUMS(row, a, b, sum_a, sum_b, to_a, to_b, input) \
  "vmovaps %%zmm" #sum_a ", " #to_a "(%[sum])\n vmovaps %%zmm" #sum_b ", " #to_b "(%[sum])\n"

#define DRAGOMAN_START(row, a, b, sum_a, sum_b, to_a, to_b, input) \
  "vpbroadcastd " row ", %%zmm" #a "\n vmovdqa64 %%zmm" #a ", %%zmm" #b "\n"
#define DRAGOMAN_MULTIPLY(row, a, b, sum_a, sum_b, to_a, to_b, input) \
  "vpbroadcastd " row ", %%zmm" #input "\n"                           \
  "vpdpbusd %%zmm" #input ", %%zmm16, %%zmm" #a "\n"                  \
  "vpdpbusd %%zmm" #input ", %%zmm17, %%zmm" #b "\n"

// integer sum · weights' scale, rounded; then · inputs' scale + float sum
#define DRAGOMAN_SCALE(row, a, b, input)                                      \
  "vcvtdq2ps %%zmm" #a ", %%zmm" #a "\n vcvtdq2ps %%zmm" #b ", %%zmm" #b "\n" \
  "vbroadcastss " row ", %%zmm" #input "\n"                                   \
  "vmulps %%zmm16, %%zmm" #a ", %%zmm" #a "\n vmulps %%zmm17, %%zmm" #b ", %%zmm" #b "\n"
#define DRAGOMAN_FOLD(row, a, b, sum_a, sum_b, to_a, to_b, input) \
  DRAGOMAN_SCALE(row, a, b, input)                                \
  "vfmadd231ps %%zmm" #input ", %%zmm" #a ", %%zmm" #sum_a "\n"   \
  "vfmadd231ps %%zmm" #input ", %%zmm" #b ", %%zmm" #sum_b "\n"
#define DRAGOMAN_FOLD_IN_MEMORY(row, a, b, sum_a, sum_b, to_a, to_b, input)                                \
  DRAGOMAN_SCALE(row, a, b, input)                                                                         \
  "vfmadd213ps " #to_a "(%[sum]), %%zmm" #input ", %%zmm" #a "\n vmovaps %%zmm" #a ", " #to_a "(%[sum])\n" \
  "vfmadd213ps " #to_b "(%[sum]), %%zmm" #input ", %%zmm" #b "\n vmovaps %%zmm" #b ", " #to_b "(%[sum])\n"

// Four inputs from `at` on times their weights.
#define DRAGOMAN_QUAD(rows, fetch, at, first, second)                            \
  "vmovdqu64 " #first "(%[w]), %%zmm16\n vmovdqu64 " #second "(%[w]), %%zmm17\n" \
  DRAGOMAN_ROWS_0_1(DRAGOMAN_MULTIPLY, at) fetch(first) rows(DRAGOMAN_MULTIPLY, at) fetch(second)

// Prefetches of a tile: some lines for every group, or the line at a distance after each that is read.
#define DRAGOMAN_NO_LINE(line)
#define DRAGOMAN_LINE_AHEAD(line) "prefetcht1 " #line "(%[w], %[fetched])\n"
#define DRAGOMAN_NO_LINES
#define DRAGOMAN_LINES_OF_GROUP                             \
  "mov %[lines], %[left]\n test %[left], %[left]\n jz 4f\n" \
  "3: prefetcht1 (%[fetched])\n"                            \
  "add $64, %[fetched]\n dec %[left]\n jnz 3b\n"            \
  "4:\n"

#define DRAGOMAN_ACT_GROUPS(rows, line_fetch, group_fetch)                                                \
  asm volatile(                                                                                           \
      rows(DRAGOMAN_LOAD_SUMS, 0)                                                                         \
      "1: mov $4, %[groups]\n"                                                                            \
      DRAGOMAN_ROWS_0_1(DRAGOMAN_START, 160) rows(DRAGOMAN_START, 160)                                    \
      "2:\n"                                                                                              \
      group_fetch                                                                                         \
      DRAGOMAN_QUAD(rows, line_fetch, 0, 0, 64) DRAGOMAN_QUAD(rows, line_fetch, 4, 128, 192)              \
      DRAGOMAN_QUAD(rows, line_fetch, 8, 256, 320) DRAGOMAN_QUAD(rows, line_fetch, 12, 384, 448)          \
      DRAGOMAN_QUAD(rows, line_fetch, 16, 512, 576) DRAGOMAN_QUAD(rows, line_fetch, 20, 640, 704)         \
      DRAGOMAN_QUAD(rows, line_fetch, 24, 768, 832) DRAGOMAN_QUAD(rows, line_fetch, 28, 896, 960)         \
      "add $32, %[x]\n add $1024, %[w]\n dec %[groups]\n jnz 2b\n"                                        \
      "vcvtph2ps (%[w]), %%zmm16\n vcvtph2ps 32(%[w]), %%zmm17\n"                                         \
      line_fetch(0) /* of the scales; those of the inputs lie 164 − 4 · 32 bytes after x now */          \
      DRAGOMAN_ROWS_0_1(DRAGOMAN_FOLD_IN_MEMORY, 36) rows(DRAGOMAN_FOLD, 36)                              \
      "add $64, %[x]\n add $64, %[w]\n dec %[acts]\n jnz 1b\n"                                            \
      rows(DRAGOMAN_STORE_SUMS, 0)                                                                        \
      : [w] "+&r"(w), [x] "+&r"(x), [acts] "+&r"(act_groups), [groups] "=&r"(groups), [left] "=&r"(left), \
        [fetched] "+&r"(fetched)                                                                          \
      : [stride] "r"(stride), [stride3] "r"(3 * stride), [stride5] "r"(5 * stride),                       \
        [stride7] "r"(7 * stride), [sum] "r"(&sum), [lines] "r"(lines_per_group)                          \
      : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10",          \
        "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm20",         \
        "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29", "zmm30",         \
        "zmm31", "cc", "memory")
#define DRAGOMAN_ACT_GROUPS_OF(rows)                                      \
  if constexpr (kAhead) {                                                 \
    DRAGOMAN_ACT_GROUPS(rows, DRAGOMAN_LINE_AHEAD, DRAGOMAN_NO_LINES);    \
  } else {                                                                \
    DRAGOMAN_ACT_GROUPS(rows, DRAGOMAN_NO_LINE, DRAGOMAN_LINES_OF_GROUP); \
  }

// Adds `act_groups` (at least one) whole ActGroups to the sums; w, x and the prefetch address advance past them.
template <int M, class Prefetch>
DRAGOMAN_INLINE void add_wide_groups(const std::uint8_t*& w, long act_groups, const std::uint8_t*& x, long stride,
                                    Prefetch& prefetch, Vec (&sum)[M][2]) {
  static_assert(M >= kTuning.assembly_rows && M <= 8);
  constexpr bool kAhead = requires { prefetch.bytes; };
  long groups, left, lines_per_group = 0;
  const std::uint8_t* fetched;
  if constexpr (kAhead) {
    fetched = reinterpret_cast<const std::uint8_t*>(prefetch.bytes);
  } else {
    fetched = prefetch.next;
    lines_per_group = prefetch.lines_per_group;
  }
  if constexpr (M == 5) {
    DRAGOMAN_ACT_GROUPS_OF(DRAGOMAN_ROWS_2_4)
  } else if constexpr (M == 6) {
    DRAGOMAN_ACT_GROUPS_OF(DRAGOMAN_ROWS_2_5)
  } else if constexpr (M == 7) {
    DRAGOMAN_ACT_GROUPS_OF(DRAGOMAN_ROWS_2_6)
  } else {
    DRAGOMAN_ACT_GROUPS_OF(DRAGOMAN_ROWS_2_7)
  }
  if constexpr (!kAhead) prefetch.next = fetched;
}

}  // namespace dragoman::DRAGOMAN_ISA
// clang-format on
