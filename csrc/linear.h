// y = x · Wᵀ on packed matrices.
#pragma once

#include <cstdlib>
#include <memory>

#include "matrix.h"

namespace dragoman {

struct LinearKernels {};

// A growing piece of 64-byte aligned memory that a caller keeps between calls, so that a step allocates nothing.
class Scratch {
 public:
  // At least `bytes` bytes, contents undefined; invalidates what was got before.
  void* get(std::size_t bytes);

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t size_ = 0;
};

// y[r, :n] (+)= x[r, :k] · Wᵀ (+ bias) for r < rows; ldx and ldy are the distances between rows in floats. bias may be null.
void linear(const Matrix& w, const float* x, long ldx, int rows, float* y, long ldy, const float* bias, bool accumulate,
            Scratch& scratch);

// out[i, :k] = W[ids[i], :] as float32. Every id must be in [0, n).
void gather_rows(const Matrix& w, const std::int32_t* ids, long count, float* out, long ldout);

}  // namespace dragoman
