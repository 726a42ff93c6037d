// Chooses the table of kernels once, at load: one declaration and one row of kCandidates for each instruction set.
#include <atomic>
#include <cstdlib>
#include <stdexcept>

#include "simd/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__)
#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

namespace dragoman {
namespace portable {
const Kernels& table();
}
#if defined(__x86_64__)
namespace avx2 {
const Kernels& table();
}
namespace avx_vnni {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}
namespace avx512_vnni {
const Kernels& table();
}
namespace amx {
const Kernels& table();
}
namespace amx_plain {
const Kernels& table();
}
#elif defined(__aarch64__)
namespace armv8 {
const Kernels& table();
}
namespace neon {
const Kernels& table();
}
namespace neon_i8mm {
const Kernels& table();
}
#endif

namespace {

// One row for each instruction set, best first.
struct Candidate {
  const char* name;
  const Kernels& (*table)();
  bool (*is_supported)();
  bool for_tests = false;  // which alone name it
  // What has to be asked of the system first; whether it agrees. Null: nothing.
  bool (*request)() = nullptr;

  bool is_agreed() const { return request == nullptr || request(); }
  bool is_offered() const { return !for_tests && is_supported() && is_agreed(); }
};

#if defined(__x86_64__)
// AVX2 with fused multiply-adds and conversions of half floats: CPUID's own bit, whose name Clang 14 does not know.
bool has_avx2() {
  constexpr unsigned kHalfFloats = 1u << 29;
  unsigned a, b, c, d;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
         (c & kHalfFloats) != 0;
}

// AVX2 with products of bytes in its own encoding (CPUID leaf 7, subleaf 1), as Intel's Core has without AVX-512.
bool has_avx_vnni() {
  constexpr unsigned kAvxVnni = 1u << 4;
  unsigned a, b, c, d;
  return has_avx2() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && a >= 1 &&
         __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kAvxVnni) != 0;
}

// AVX-512 with VNNI.
bool has_avx512_vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

// The same with BF16 and VBMI.
bool has_avx512() {
  return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}

// Tiles, their products of bytes and of bfloat16 (CPUID leaf 7), and a system that saves them (XCR0).
bool has_amx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kSavesStates = 1u << 27;
  constexpr unsigned kConfiguration = 1u << 17, kData = 1u << 18;
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSavesStates) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0 || (d & kInt8) == 0) {
    return false;
  }
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kConfiguration) != 0 && (low & kData) != 0;
}

// Linux gives a process the 8 KiB of tiles when it asks for them, which all of its threads then have.
bool request_tiles() {
#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA of asm/prctl.h
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

#if defined(__aarch64__)
// What an ARM processor may have beyond ARMv8.0: dot products of bytes; and of ARMv8.6 those of which one factor alone
// is signed, and bfloat16. Where the system tells neither, what the compiler was told to assume.
struct ArmFeatures {
  bool dot_products, matrices;
};
#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
ArmFeatures arm_features() {
  // Of Linux's asm/hwcap.h, whose older releases lack the second two.
  constexpr unsigned long kDotProducts = 1ul << 20, kI8mm = 1ul << 13, kBf16 = 1ul << 14;
  const unsigned long second = getauxval(AT_HWCAP2);
  return {(getauxval(AT_HWCAP) & kDotProducts) != 0, (second & kI8mm) != 0 && (second & kBf16) != 0};
}
#elif defined(__APPLE__)
bool has(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
ArmFeatures arm_features() {
  return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM") && has("hw.optional.arm.FEAT_BF16")};
}
#else
ArmFeatures arm_features() {
  ArmFeatures features{false, false};
#if defined(__ARM_FEATURE_DOTPROD)
  features.dot_products = true;
#if defined(__ARM_FEATURE_MATMUL_INT8) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  features.matrices = true;
#endif
#endif
  return features;
}
#endif
#endif

// __builtin_cpu_supports checks CPUID and, for the wide registers, whether the operating system saves them (XGETBV).
const Candidate kCandidates[] = {
#if defined(__x86_64__)
    {.name = "amx",
     .table = amx::table,
     .is_supported = [] { return has_avx512() && has_amx(); },
     .request = request_tiles},
    {.name = "avx512", .table = avx512::table, .is_supported = has_avx512},
    {.name = "amx_plain", .table = amx_plain::table, .is_supported = has_avx512, .for_tests = true},
    {.name = "avx512_vnni", .table = avx512_vnni::table, .is_supported = has_avx512_vnni},
    {.name = "avx_vnni", .table = avx_vnni::table, .is_supported = has_avx_vnni},
    {.name = "avx2", .table = avx2::table, .is_supported = has_avx2},
#elif defined(__aarch64__)
    {.name = "neon_i8mm",
     .table = neon_i8mm::table,
     .is_supported = [] { return arm_features().dot_products && arm_features().matrices; }},
    {.name = "neon", .table = neon::table, .is_supported = [] { return arm_features().dot_products; }},
    {.name = "armv8", .table = armv8::table, .is_supported = [] { return true; }},
#endif
    {.name = "portable", .table = portable::table, .is_supported = [] { return true; }},
};

const Kernels& choose(const std::string& name) {
  std::string known;
  for (const Candidate& candidate : kCandidates) {
    if (name == candidate.name) {
      if (!candidate.is_supported()) {
        throw std::invalid_argument("this processor does not support the kernels \"" + name + "\"");
      }
      if (!candidate.is_agreed()) {
        throw std::invalid_argument("the system refuses this process the registers of the kernels \"" + name + "\"");
      }
      return candidate.table();
    }
    if (candidate.for_tests) continue;
    known += known.empty() ? candidate.name : std::string(", ") + candidate.name;
  }
  throw std::invalid_argument("unknown kernels \"" + name + "\": choose one of " + known);
}

const Kernels& choose_at_load() {
  const char* const wanted = std::getenv("DRAGOMAN_KERNELS");
  if (wanted != nullptr && *wanted != '\0') {
    try {
      return choose(wanted);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("DRAGOMAN_KERNELS: ") + error.what());
    }
  }
  for (const Candidate& candidate : kCandidates) {
    if (candidate.is_offered()) return choose(candidate.name);
  }
  return portable::table();
}

std::atomic<const Kernels*> current{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* table = current.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = &choose_at_load();
    current.store(table, std::memory_order_release);
  }
  return *table;
}

std::vector<std::string> supported_kernels() {
  std::vector<std::string> names;
  for (const Candidate& candidate : kCandidates) {
    if (candidate.is_offered()) names.emplace_back(candidate.name);
  }
  return names;
}

bool is_intel() {
#if defined(__x86_64__)
  static const bool intel = __builtin_cpu_is("intel") != 0;
  return intel;
#else
  return false;
#endif
}

void force_kernels(const std::string& name) { current.store(&choose(name), std::memory_order_release); }

}  // namespace dragoman
