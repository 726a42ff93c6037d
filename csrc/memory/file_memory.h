// A file's bytes in memory: mapped at once, and moved into private huge pages while they are being read.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace dragoman {

class FileMemory {
 public:
  // Maps the first `bytes` of an open file, read-only, at an address that huge pages can replace. The file must keep
  // its length. Throws std::bad_alloc when the system does not allow it.
  FileMemory(int file, std::size_t bytes);
  ~FileMemory();
  FileMemory(const FileMemory&) = delete;
  FileMemory& operator=(const FileMemory&) = delete;

  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

  // Starts, after `delay`, to copy the bytes into huge pages and to put these in place of the file's, one after the
  // other, invisibly to readers: neither address nor bytes change. Does nothing where kernel and file system have given
  // the file huge pages already, according to the file `mappings` of this process (proc(5), smaps), unless memory is
  // spread over nodes. A thread does it,
  // of normal priority: steps take up to twice their time meanwhile, but with a lower one it lasted several times as
  // long. To be called once.
  void settle(std::chrono::duration<double> delay, const std::string& mappings);

  // Waits for the end of the move. Returns whether everything moved except the rest of the last page; unmoved parts
  // stay mapped.
  bool settled();

 private:
  // Whether nearly all of the bytes read so far are. Nearly: with a fifth of 1.3 GB in small pages, one int8 stream was
  // 4 to 8 % slower. Takes 20 to 70 ms, as the system walks through all pages.
  bool in_huge_pages(const std::string& described) const;
  void move();

  void* reserved_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
  std::atomic<std::size_t> moved_{0};
  std::mutex waiting_;
  std::condition_variable stops_;
  std::atomic<bool> stopping_{false};
  std::thread mover_;
};

}  // namespace dragoman
