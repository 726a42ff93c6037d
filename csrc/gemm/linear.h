// y = x · Wᵀ on packed matrices: the functions for callers, and the table of kernels that an instruction set fills.
#pragma once

#include <cstdlib>
#include <memory>

#include "gemm/matrix.h"

namespace dragoman {

enum class SourceType : std::uint8_t { float32, bfloat16, float16 };

// 128 activations of one row, quantized: x ≈ scale · q. They share a scale over four groups of weights, so that the
// product of two scales is not needed for every group of every element of y. Rows of tiles are read in whole lines.
struct alignas(64) ActGroup {
  std::int8_t q[kWeightGroups][kGroup];
  std::int32_t start[kWeightGroups];  // −bias · Σq: initial value of a group's accumulator, because weights are
                                      // unsigned
  float sum[kWeightGroups];           // Σq: factor of a weight minimum
  std::int32_t wide_start;            // the sum of the starts, for groups that share an accumulator
  float scale;                        // largest magnitude / 127
};

// The same for weights whose scales are of 16 inputs.
struct alignas(64) FineActGroup {
  std::int8_t q[kWeightGroups][kGroup];
  std::int32_t start[2 * kWeightGroups];
  float scale;
};

// Rows of activations in the form that matrices of one precision multiply with. Row r begins at values + r · stride.
//   float32   k_padded floats           bfloat16   k_padded bfloat16
//   others    ActGroup, or FineActGroup, for 4 groups each
struct Activations {
  std::uint8_t* values = nullptr;
  long stride = 0;  // bytes
  long rows = 0;
  long k = 0;
  Precision precision = Precision::float32;
  int bias = 0;  // offset of the unsigned weights
};

struct LinearKernels {
  // Rows [begin, end) of x into `a`.
  void (*prepare)(const Activations& a, const float* x, long ldx, long begin, long end);
  // Columns of blocks [begin, end) of y, all rows.
  void (*multiply)(const Matrix& w, const Activations& a, long begin, long end, float* y, long ldy, const float* bias,
                   bool accumulate);
  // Blocks [begin, end) of w from the row-major [n, k] matrix `source`.
  void (*pack)(const Matrix& w, const void* source, SourceType type, long begin, long end);
  // Rows [begin, end) of a row-major [n, k] matrix as blocks of IQ4_NL, whole rows of them from `blocks` on.
  void (*quantize_iq4_nl)(const void* source, SourceType type, long k, long begin, long end, std::uint8_t* blocks);
  // Row `row` of w as k float32.
  void (*unpack_row)(const Matrix& w, long row, float* out);
  // Runs `rounds` rounds of register-only multiplications and returns the operations done; `sink` keeps them from being
  // optimized away.
  double (*multiply_peak)(Precision precision, long rounds, float* sink);
  // Reads `length` bytes (a multiple of 256) as floats and returns their sum.
  float (*read)(const std::uint8_t* bytes, long length);
};

// A growing piece of 64-byte aligned memory that a caller keeps between calls, so that a step allocates nothing.
class Scratch {
 public:
  // turn_bytes: size of the memory that next() cycles through; 0 where only one thread uses the result.
  explicit Scratch(std::size_t turn_bytes = 2 << 20) : turn_bytes_(turn_bytes) {}
  // At least `bytes` bytes, contents undefined; invalidates earlier results. Throws std::bad_alloc.
  std::uint8_t* get(std::size_t bytes);
  // The same, but cycling through turn_bytes or more, so that it was last used some products ago. Lines that another
  // core has just read cost the one that writes them 40 ns each where the two share no cache: of a step of 8 rows, 4 %.
  std::uint8_t* next(std::size_t bytes);

 private:
  struct Free {
    void operator()(void* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<void, Free> memory_;
  const std::size_t turn_bytes_;
  std::size_t size_ = 0;
  std::size_t next_ = 0;  // offset of the next result of next()
};

// y[r, :n] (+)= x[r, :k] · Wᵀ (+ bias) for r < rows; ldx and ldy are the distances between rows in floats; bias may be
// null. Every element is the sum over k in one fixed order, whatever the number of rows, then + bias, then + the old y.
void linear(const Matrix& w, const float* x, long ldx, long rows, float* y, long ldy, const float* bias,
            bool accumulate, Scratch& scratch);

// The same for each of `heads` neighbouring parts of x, of x_head numbers each, with the w.n / heads outputs of W that
// follow each other, a multiple of kBlock: y[r, h · y_head + i] = x[r, h · x_head :][:k] · W[h · w.n / heads + i]. What
// a part of x has beyond its first k numbers is copied after its outputs, y_head numbers in all.
void head_linear(const Matrix& w, long heads, const float* x, long ldx, long x_head, long rows, float* y, long ldy,
                 long y_head);

// The two halves of linear(), for several matrices that multiply the same x. The result of prepare_activations fits
// every matrix of the same k, precision, minimum and order of inputs; it lives in `scratch`, or in x itself for
// float32.
Activations prepare_activations(const Matrix& w, const float* x, long ldx, long rows, Scratch& scratch);
void multiply(const Matrix& w, const Activations& a, float* y, long ldy, const float* bias, bool accumulate);

// Prepared activations without their memory, which is to be rows · stride bytes; and rows [begin, end) of x into it, in
// the order of w's inputs, by this thread.
Activations describe_activations(const Matrix& w, long rows);
void prepare_rows(const Matrix& w, const Activations& a, const float* x, long ldx, long begin, long end);

// Fills w.data (w.bytes() bytes) from the row-major [n, k] matrix `source`.
void pack(const Matrix& w, const void* source, SourceType type);

// A row-major [n, k] matrix as integers of int8 or int4: `values` with fp16 scales, and minimums where the packed
// matrix has them, of each row's groups, [n, groups].
struct GroupCodes {
  const std::int8_t* values;
  const std::uint16_t* scales;
  const std::uint16_t* minimums;
  const std::int32_t* order;  // [k]: the input of each column, where w is reordered
};

// Fills w.data from integers that are in its format's range. Not of chunked formats: see gguf/gguf_pack.h.
void pack_codes(const Matrix& w, const GroupCodes& codes);

// out[i, :k] = W[ids[i], :] as float32. Every id must be in [0, n).
void gather_rows(const Matrix& w, const std::int32_t* ids, long count, float* out, long ldout);

// out[:k] = W[row, :] as float32, in the calling thread.
void gather_row(const Matrix& w, long row, float* out);

// All of W as float32, row-major [n, k].
void unpack(const Matrix& w, float* out);

}  // namespace dragoman
