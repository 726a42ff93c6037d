// The float32 buffers that operations read and write, and what is in them at each point of the recording.
#pragma once

#include <memory>
#include <vector>

#include "memory/anonymous_memory.h"
#include "program/batch.h"

namespace dragoman {

struct Buffer {
  long width;
  long stride;  // floats between rows: rows start on cache lines
  Rows rows = Rows::unwritten;
  std::shared_ptr<const AnonymousMemory> memory;

  float* data() const { return reinterpret_cast<float*>(memory->data()); }
  float* row(long r) const { return data() + r * stride; }
};

// All of them throw std::invalid_argument on a buffer that is not there. References stay valid.
class Buffers {
 public:
  // rows: of each buffer, the most that a batch needs.
  explicit Buffers(long rows) : rows_(rows) {}

  // A new buffer; `over` (or -1): in the memory of another that is at least as wide.
  int add(long width, int over);

  const Buffer& at(int x) const;
  // A buffer that an operation reads. Throws std::invalid_argument where nothing has been written.
  Buffer& read(int x);
  // A buffer that an operation fills with such rows: what others in the same memory hold is gone.
  Buffer& write(int x, Rows rows);

  // Whether the same memory holds rows of tokens at one time and rows for logits at another.
  bool mix_rows() const { return mix_rows_; }

  // Has the system provide the memory of the buffers of tokens now instead of at first touch.
  void prefault() const;

 private:
  const long rows_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool mix_rows_ = false;
};

}  // namespace dragoman
