#include "program/interrupt.h"

#include <poll.h>

namespace dragoman {
namespace {

constexpr std::int64_t kLookNs = 100'000;  // between two looks: a look takes about 1 µs, an operation 5 and more

}  // namespace

bool Interrupt::is_raised(std::chrono::steady_clock::time_point now) {
  if (file_ < 0) return false;
  if (raised_.load(std::memory_order_relaxed)) return true;
  const std::int64_t now_ns = std::chrono::nanoseconds(now.time_since_epoch()).count();
  std::int64_t next_ns = next_look_ns_.load(std::memory_order_relaxed);
  if (now_ns < next_ns || !next_look_ns_.compare_exchange_strong(next_ns, now_ns + kLookNs)) return false;
  pollfd look{.fd = file_, .events = POLLIN, .revents = 0};
  if (poll(&look, 1, 0) > 0) raised_.store(true, std::memory_order_relaxed);
  return raised_.load(std::memory_order_relaxed);
}

}  // namespace dragoman
