// What instructions cost beside multiplications of bytes, on processors with AVX-512 VNNI and VBMI.
//
//     g++ -std=c++20 -O2 -mavx512f benchmarks/multiplier_slots.cpp -o build/multiplier_slots && build/multiplier_slots
//
// Twelve VPDPBUSD on registers, with four other instructions between them, in units of one VPDPBUSD: 12 where the
// others take units that multiplications leave free, 16 where they take their place. The least of some runs, in
// processor time.
#include <time.h>

#include <algorithm>
#include <cstdio>

namespace {

double processor_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <class Body>
double least_seconds(Body body) {
  constexpr int kRuns = 9;
  constexpr long kRounds = 300000;
  double least = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const double start = processor_seconds();
    for (long i = 0; i < kRounds; ++i) body();
    least = std::min(least, processor_seconds() - start);
  }
  return least;
}

}  // namespace

#define DOT(to) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #to "\n"
#define THREE_DOTS(a, b, c) DOT(a) DOT(b) DOT(c)
#define CLOBBERED                                                                                                     \
  "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm16", "zmm17", \
      "zmm18", "zmm19"
#define SECONDS_WITH(other)                                                                                            \
  least_seconds([] {                                                                                                   \
    asm volatile(THREE_DOTS(0, 1, 2) other "%%zmm16\n" THREE_DOTS(3, 4, 5) other "%%zmm17\n" THREE_DOTS(6, 7, 8) other \
                 "%%zmm18\n" THREE_DOTS(9, 10, 11) other "%%zmm19\n" ::                                                \
                     : CLOBBERED);                                                                                     \
  })

int main() {
  const double alone = least_seconds([] {
    asm volatile(THREE_DOTS(0, 1, 2) THREE_DOTS(3, 4, 5) THREE_DOTS(6, 7, 8) THREE_DOTS(9, 10, 11)::: CLOBBERED);
  });
  const auto show = [&](const char* name, double seconds) { std::printf("%-40s %.2f\n", name, 12 * seconds / alone); };
  show("open a code: VPERMB", SECONDS_WITH("vpermb %%zmm28, %%zmm29, "));
  show("open a code: VPSRLW", SECONDS_WITH("vpsrlw $4, %%zmm28, "));
  show("fold a sum: VCVTDQ2PS", SECONDS_WITH("vcvtdq2ps %%zmm28, "));
  show("fold a sum: VFMADD231PS", SECONDS_WITH("vfmadd231ps %%zmm28, %%zmm29, "));
  show("multiply otherwise: VPMADDUBSW", SECONDS_WITH("vpmaddubsw %%zmm28, %%zmm29, "));
}
