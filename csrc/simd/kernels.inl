// One instruction set: all kernels compiled under its flags, and the table of them.
//
// Included by <name>.cpp, after <name>.h, with DRAGOMAN_ISA defined as the name. Everything here is in the namespace of
// that name; nothing may be an inline function shared with other translation units (the linker would keep one copy for
// all instruction sets, and it may pick the widest). So: no standard containers or algorithms beyond std::min and
// std::max on numbers.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "simd/kernels.h"

#define DRAGOMAN_STRING_(x) #x
#define DRAGOMAN_STRING(x) DRAGOMAN_STRING_(x)

// clang-format off: the order is that of use
#include "simd/math.h"
#include "gemm/tiles.inl"
#include "layers/transform.inl"
#include "attention/attention.inl"
#include "layers/experts.inl"
#include "layers/lora.inl"
#include "layers/streams.inl"
#include "recurrence/linear.inl"
#include "recurrence/recurrence.inl"
#include "sampling/green_list.inl"
#include "sampling/sampling.inl"
// clang-format on

namespace dragoman::DRAGOMAN_ISA {

const Kernels& table() {
  static constexpr Kernels kernels{
      .name = DRAGOMAN_STRING(DRAGOMAN_ISA),
      .linear = linear_kernels,
      .transform = transform_kernels,
      .attention = attention_kernels,
      .experts = expert_kernels,
      .lora = lora_kernels,
      .recurrence = recurrence_kernels,
      .streams = stream_kernels,
      .sampling = sampling_kernels,
  };
  return kernels;
}

}  // namespace dragoman::DRAGOMAN_ISA
