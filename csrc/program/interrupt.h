// A file that becomes readable while a step runs, and ends it early.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>

namespace dragoman {

// Thrown by a run that was ended early. What it wrote of its own rows, and its result, may be anything.
struct Interrupted : std::exception {
  const char* what() const noexcept override { return "the step was interrupted"; }
};

class Interrupt {
 public:
  // file: a file descriptor; negative: nothing interrupts.
  explicit Interrupt(int file) : file_(file) {}

  // Returns whether the step is to end now. From any thread, between two operations: it asks the system now and then.
  bool is_raised(std::chrono::steady_clock::time_point now);

 private:
  const int file_;
  std::atomic<bool> raised_{false};
  std::atomic<std::int64_t> next_look_ns_{INT64_MIN};
};

}  // namespace dragoman
