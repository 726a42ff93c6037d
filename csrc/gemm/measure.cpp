#include "gemm/measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "memory/anonymous_memory.h"
#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

constexpr long kMiB = 1 << 20;
constexpr long kBufferMiB = 256;  // many times the last-level cache of a share of a server

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<double> memory_passes(double seconds) {
  if (!(seconds > 0.0 && seconds <= 60.0)) throw std::invalid_argument("seconds must be in (0, 60]");
  AnonymousMemory memory(static_cast<std::size_t>(kBufferMiB * kMiB));
  auto* const bytes = reinterpret_cast<std::uint8_t*>(memory.data());
  pool().parallel_for(kBufferMiB, 4, [&](long begin, long end) {
    std::memset(bytes + begin * kMiB, 1, static_cast<std::size_t>((end - begin) * kMiB));
  });
  const auto read = kernels().linear.read;
  std::atomic<long> total{0};  // uses the sums, so that the compiler cannot leave out the reading
  std::vector<double> passes;
  const double start = seconds_now();
  while (passes.size() < 3 || seconds_now() - start < seconds) {
    const double before = seconds_now();
    pool().parallel_for(kBufferMiB, 4, [&](long begin, long end) {
      total.fetch_add(static_cast<long>(read(bytes + begin * kMiB, (end - begin) * kMiB)));
    });
    passes.push_back(static_cast<double>(kBufferMiB * kMiB) / (seconds_now() - before));
  }
  return passes;
}

double multiply_peak(Precision precision) {
  const auto run = kernels().linear.multiply_peak;
  const int threads = pool().threads();
  float sink[16];
  // As many rounds as take about 10 ms here.
  long rounds = 1000;
  for (;; rounds *= 2) {
    const double before = seconds_now();
    run(precision, rounds, sink);
    if (seconds_now() - before > 0.005) break;
  }
  const double operations = run(precision, 1, sink) * static_cast<double>(rounds) * threads;
  double best = 0.0;
  for (int repetition = 0; repetition < 7; ++repetition) {
    const double before = seconds_now();
    pool().parallel_for(threads, 1, [&](long begin, long end) {
      float local[16];
      for (long i = begin; i < end; ++i) run(precision, rounds, local);
    });
    best = std::max(best, operations / (seconds_now() - before));
  }
  return best;
}

}  // namespace dragoman
