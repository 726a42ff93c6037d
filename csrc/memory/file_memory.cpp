#include "memory/file_memory.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <string>

#include "memory/nodes.h"

namespace dragoman {
namespace {

constexpr std::size_t kHugePage = 2 << 20;

std::uint8_t* aligned(void* address) {
  return reinterpret_cast<std::uint8_t*>((reinterpret_cast<std::uintptr_t>(address) + kHugePage - 1) / kHugePage *
                                         kHugePage);
}

void* reserve(std::size_t bytes, int protection) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  flags |= MAP_NORESERVE;
#endif
  return mmap(nullptr, bytes, protection, flags, -1, 0);
}

}  // namespace

FileMemory::FileMemory(int file, std::size_t bytes) : reserved_bytes_(bytes + kHugePage), size_(bytes) {
  reserved_ = reserve(reserved_bytes_, PROT_NONE);
  if (reserved_ == MAP_FAILED) throw std::bad_alloc();
  data_ = aligned(reserved_);
  if (mmap(data_, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
    munmap(reserved_, reserved_bytes_);
    throw std::bad_alloc();
  }
#ifdef MADV_HUGEPAGE
  madvise(data_, bytes, MADV_HUGEPAGE);  // a cold file is then read in large pieces, three times as fast
#endif
}

FileMemory::~FileMemory() {
  {
    const std::lock_guard lock(waiting_);
    stopping_ = true;
  }
  stops_.notify_all();
  settled();
  munmap(reserved_, reserved_bytes_);
}

void FileMemory::settle(std::chrono::duration<double> delay, const std::string& mappings) {
  mover_ = std::thread([this, delay, mappings] {
    {
      std::unique_lock lock(waiting_);
      if (stops_.wait_for(lock, delay, [this] { return stopping_.load(); })) return;
    }
    // The pages of a file are on the nodes of those that first read it, in this process or another.
    if (memory_is_spread() || !in_huge_pages(mappings)) move();
  });
}

bool FileMemory::settled() {
  if (mover_.joinable()) mover_.join();
  return moved_ == size_ / kHugePage * kHugePage;
}

bool FileMemory::in_huge_pages(const std::string& described) const {
  std::ifstream mappings(described);
  const auto address = reinterpret_cast<std::uintptr_t>(data_);
  bool ours = false;
  for (std::string line; std::getline(mappings, line);) {
    unsigned long long begin = 0, end = 0, kilobytes = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
      if (ours) break;
      ours = begin <= address && address < end;
    } else if (ours && std::sscanf(line.c_str(), "FilePmdMapped: %llu kB", &kilobytes) == 1) {
      return kilobytes << 10 > size_ / 16 * 15;
    }
  }
  return false;
}

void FileMemory::move() {
#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
  const std::size_t whole = size_ / kHugePage * kHugePage, bytes = whole + kHugePage;
  void* const region = reserve(bytes, PROT_READ | PROT_WRITE);
  if (region == MAP_FAILED) return;
  spread_over_nodes(region, bytes);
#ifdef MADV_HUGEPAGE
  madvise(region, bytes, MADV_HUGEPAGE);
#endif
  std::uint8_t* const copy = aligned(region);
  std::size_t moved = 0;
  for (; moved < whole && !stopping_; moved += kHugePage) {
    std::memcpy(copy + moved, data_ + moved, kHugePage);
    // A thread that reads there meanwhile waits in a page fault for the end of the exchange.
    if (mprotect(copy + moved, kHugePage, PROT_READ) != 0 ||
        mremap(copy + moved, kHugePage, kHugePage, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + moved) == MAP_FAILED) {
      break;
    }
  }
  auto* const begin = static_cast<std::uint8_t*>(region);
  if (copy > begin) munmap(begin, static_cast<std::size_t>(copy - begin));
  if (begin + bytes > copy + moved) munmap(copy + moved, static_cast<std::size_t>(begin + bytes - (copy + moved)));
  moved_ = moved;
#endif
}

}  // namespace dragoman
