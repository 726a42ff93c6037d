// One instruction set: all kernel chapters compiled under its flags, and the table of them.
//
// Included by isa_<name>.cpp with DRAGOMAN_ISA defined. Everything here lives in the namespace of that name; nothing may
// be an inline function shared with other translation units (the linker would keep one copy for all instruction sets, and
// it may pick the widest). So: no standard containers or algorithms beyond std::min and std::max on numbers.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "half.h"
#include "kernels.h"

#define DRAGOMAN_STRING_(x) #x
#define DRAGOMAN_STRING(x) DRAGOMAN_STRING_(x)

// clang-format off: the order is that of use
#include "vec.h"
#include "linear.inl"
#include "transform.inl"
#include "attention.inl"
#include "experts.inl"
#include "lora.inl"
#include "sampling.inl"
// clang-format on

namespace dragoman::DRAGOMAN_ISA {

const Kernels& table() {
  static constexpr Kernels kernels{
      DRAGOMAN_STRING(DRAGOMAN_ISA), linear_kernels, transform_kernels, attention_kernels, expert_kernels, lora_kernels, sampling_kernels,
  };
  return kernels;
}

}  // namespace dragoman::DRAGOMAN_ISA
