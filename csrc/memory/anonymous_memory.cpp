#include "memory/anonymous_memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "memory/nodes.h"

namespace dragoman {

AnonymousMemory::AnonymousMemory(std::size_t bytes) {
  if (bytes == 0) return;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;  // capacity, not need: most of it is never touched
#endif
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::uint8_t*>(address);
  size_ = bytes;
  spread_over_nodes(address, bytes);
#ifdef MADV_HUGEPAGE
  madvise(address, bytes, MADV_HUGEPAGE);  // a hint: some systems refuse it, which is fine
#endif
}

void AnonymousMemory::touch([[maybe_unused]] std::size_t bytes) const {
#ifdef MADV_POPULATE_WRITE
  if (size_ > 0) madvise(data_, bytes < size_ ? bytes : size_, MADV_POPULATE_WRITE);  // older systems refuse it
#endif
}

AnonymousMemory::~AnonymousMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace dragoman
