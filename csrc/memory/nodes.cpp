#include "memory/nodes.h"

#include <atomic>
#include <stdexcept>

#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#if defined(SYS_mbind)
#define DRAGOMAN_SPREADS_MEMORY
#endif
#endif

namespace dragoman {
namespace {

constexpr int kMostNodes = 1024;  // as many as Linux has at most

std::atomic<bool> spread{false};

#if defined(DRAGOMAN_SPREADS_MEMORY)
constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
constexpr int kBits = 8 * sizeof(unsigned long);

struct Nodes {
  unsigned long words[kMostNodes / kBits] = {};
};

std::mutex guard;
Nodes chosen;

// The system call itself, for which the C library has no function: libnuma has.
bool interleave(void* address, std::size_t bytes, const Nodes& nodes) {
  return syscall(SYS_mbind, address, bytes, kInterleave, nodes.words, static_cast<unsigned long>(kMostNodes + 1), 0u) ==
         0;
}
#endif

}  // namespace

bool set_memory_nodes(const std::vector<int>& nodes) {
  for (const int node : nodes) {
    if (node < 0 || node >= kMostNodes) throw std::invalid_argument("there is no such memory node");
  }
  spread.store(false, std::memory_order_release);
  if (nodes.size() < 2) return false;
#if defined(DRAGOMAN_SPREADS_MEMORY)
  Nodes wanted;
  for (const int node : nodes) wanted.words[node / kBits] |= 1ul << node % kBits;
  const long page = sysconf(_SC_PAGESIZE);
  void* const trial =
      mmap(nullptr, static_cast<std::size_t>(page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (trial == MAP_FAILED) return false;
  const bool works = interleave(trial, static_cast<std::size_t>(page), wanted);
  munmap(trial, static_cast<std::size_t>(page));
  if (!works) return false;
  {
    const std::lock_guard lock(guard);
    chosen = wanted;
  }
  spread.store(true, std::memory_order_release);
  return true;
#else
  return false;
#endif
}

bool memory_is_spread() { return spread.load(std::memory_order_acquire); }

void spread_over_nodes([[maybe_unused]] void* address, [[maybe_unused]] std::size_t bytes) {
#if defined(DRAGOMAN_SPREADS_MEMORY)
  if (!memory_is_spread()) return;
  Nodes nodes;
  {
    const std::lock_guard lock(guard);
    nodes = chosen;
  }
  interleave(address, bytes, nodes);  // a hint: without it the pages are those of the thread that touches them
#endif
}

}  // namespace dragoman
