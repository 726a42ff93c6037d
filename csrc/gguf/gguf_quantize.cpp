#include "gguf/gguf_quantize.h"

#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {

void quantize_iq4_nl(const void* source, SourceType type, long n, long k, std::uint8_t* blocks) {
  const auto quantize = kernels().linear.quantize_iq4_nl;
  pool().parallel_for(n, 4, [&](long begin, long end) { quantize(source, type, k, begin, end, blocks); });
}

}  // namespace dragoman
