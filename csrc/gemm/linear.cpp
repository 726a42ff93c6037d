// The part of the matrix product that is shared by all instruction sets: memory, and chunks for the thread pool.
#include "gemm/linear.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "gemm/chunks.h"
#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

constexpr std::size_t kAlignment = 64;

// Rows that fill tiles of every instruction set: of 1, 2, 3, 4, 6 and 8 rows.
constexpr long kTileRows = 24;

// So many chunks of a product for each thread make the wait for the last one short.
constexpr long kChunksOfThread = 24;

// A power-of-two distance between rows would put the rows of a tile into the same cache sets.
long padded_stride(long bytes) {
  const long lines = (bytes + 63) / 64;
  return (lines | 1) * 64;
}

// Row `row` of w as k float32, with the inputs in the checkpoint's order.
void unpack_inputs(const Matrix& w, long row, float* out) {
  const auto unpack_row = is_chunked(w.precision) ? unpack_chunked_row : kernels().linear.unpack_row;
  const std::int32_t* const order = w.order();
  if (order == nullptr) return unpack_row(w, row, out);
  thread_local std::vector<float> ordered;
  ordered.resize(static_cast<std::size_t>(w.k));
  unpack_row(w, row, ordered.data());
  for (long i = 0; i < w.k; ++i) out[order[i]] = ordered[static_cast<std::size_t>(i)];
}

}  // namespace

std::uint8_t* Scratch::get(std::size_t bytes) {
  if (bytes > size_) {
    const std::size_t rounded = (bytes + bytes / 4 + kAlignment - 1) / kAlignment * kAlignment;
    void* const memory = std::aligned_alloc(kAlignment, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    memory_.reset(memory);
    size_ = rounded;
  }
  return static_cast<std::uint8_t*>(memory_.get());
}

std::uint8_t* Scratch::next(std::size_t bytes) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::uint8_t* const memory = get(std::max(rounded, turn_bytes_));
  if (next_ + rounded > size_ || turn_bytes_ == 0) next_ = 0;
  std::uint8_t* const piece = memory + next_;
  next_ += rounded;
  return piece;
}

Activations describe_activations(const Matrix& w, long rows) {
  Activations a;
  a.rows = rows;
  a.k = w.k;
  a.precision = w.precision;
  a.bias = bias_of(w.precision, w.minimum);
  switch (w.precision) {
    case Precision::float32: a.stride = padded_stride(w.k_padded() * 4); break;
    case Precision::bfloat16: a.stride = padded_stride(w.k_padded() * 2); break;
    default: {
      const bool fine = is_chunked(w.precision) && chunk_layout(w.precision).width < kGroup;
      a.stride = padded_stride(w.act_groups() * static_cast<long>(fine ? sizeof(FineActGroup) : sizeof(ActGroup)));
    }
  }
  return a;
}

void prepare_rows(const Matrix& w, const Activations& a, const float* x, long ldx, long begin, long end) {
  const std::int32_t* const order = w.order();
  if (order == nullptr) return kernels().linear.prepare(a, x, ldx, begin, end);
  thread_local std::vector<float> ordered;
  ordered.resize(static_cast<std::size_t>(w.k));
  for (long row = begin; row < end; ++row) {
    for (long i = 0; i < w.k; ++i) ordered[static_cast<std::size_t>(i)] = x[row * ldx + order[i]];
    kernels().linear.prepare(a, ordered.data(), 0, row, row + 1);
  }
}

Activations prepare_activations(const Matrix& w, const float* x, long ldx, long rows, Scratch& scratch) {
  Activations a = describe_activations(w, rows);
  const long grain = std::max(1L, 16384 / std::max(1L, w.k));  // below some 10 µs a second thread does not pay off
  if (w.precision == Precision::float32 && w.k == w.k_padded()) {
    a.values = reinterpret_cast<std::uint8_t*>(const_cast<float*>(x));
    a.stride = ldx * 4;
    return a;
  }
  a.values = scratch.next(static_cast<std::size_t>(rows * a.stride));
  pool().parallel_for(rows, pool().fair_grain(rows, grain),
                      [&](long begin, long end) { prepare_rows(w, a, x, ldx, begin, end); });
  return a;
}

// The product in parts of its rows as well as in blocks of its columns, so that there is something for each of many
// threads: the 64 blocks of 2,048 columns are for 64 of them at most. A range begins and ends within a block, or has
// whole ones.
void multiply_by_parts(const Matrix& w, const Activations& a, long parts, float* y, long ldy, const float* bias,
                       bool accumulate) {
  const auto multiply_blocks = kernels().linear.multiply;
  const long tiles = (a.rows + kTileRows - 1) / kTileRows;
  const auto first_row = [&](long part) { return std::min(a.rows, tiles * part / parts * kTileRows); };
  const auto multiply_part = [&](long block, long blocks, long from, long to) {
    const long row = first_row(from);
    Activations some = a;
    some.values += row * a.stride;
    some.rows = first_row(to) - row;
    if (some.rows > 0) multiply_blocks(w, some, block, block + blocks, y + row * ldy, ldy, bias, accumulate);
  };
  pool().parallel_for_guided(w.blocks() * parts, 1, [&](long begin, long end) {
    while (begin < end) {
      const long block = begin / parts, from = begin % parts;
      const long whole = from == 0 ? (end - begin) / parts : 0;
      const long to = whole > 0 ? parts : std::min(parts, from + end - begin);
      multiply_part(block, std::max(1L, whole), from, to);
      begin += whole > 0 ? whole * parts : to - from;
    }
  });
}

void multiply(const Matrix& w, const Activations& a, float* y, long ldy, const float* bias, bool accumulate) {
  if (a.rows <= 0 || w.n <= 0) return;
  const auto multiply_blocks = kernels().linear.multiply;
  // At least a block or 64 KiB of weights at a time; at first many times that, since every start at a new address costs
  // the processor's prefetcher about a microsecond.
  const long blocks = w.blocks();
  const long wanted = (kChunksOfThread * pool().threads() + blocks - 1) / blocks;
  const long parts = std::min(a.rows / kTileRows, wanted);
  if (parts > 1) return multiply_by_parts(w, a, parts, y, ldy, bias, accumulate);
  const long grain = std::max(1L, 65536 / std::max(1L, w.block_bytes()));
  pool().parallel_for_guided(
      blocks, grain, [&](long begin, long end) { multiply_blocks(w, a, begin, end, y, ldy, bias, accumulate); });
}

void linear(const Matrix& w, const float* x, long ldx, long rows, float* y, long ldy, const float* bias,
            bool accumulate, Scratch& scratch) {
  if (rows <= 0) return;
  multiply(w, prepare_activations(w, x, ldx, rows, scratch), y, ldy, bias, accumulate);
}

void head_linear(const Matrix& w, long heads, const float* x, long ldx, long x_head, long rows, float* y, long ldy,
                 long y_head) {
  constexpr long kRows = 64;  // their activations and a head's weights stay in the second-level cache
  const auto multiply_blocks = kernels().linear.multiply;
  const long outputs = w.n / heads, blocks = outputs / kBlock, parts = (rows + kRows - 1) / kRows;
  pool().parallel_for(heads * parts, 1, [&](long begin, long end) {
    thread_local Scratch scratch(0);
    for (long i = begin; i < end; ++i) {
      const long head = i / parts, first = i % parts * kRows, count = std::min(kRows, rows - first);
      const float* const from = x + first * ldx + head * x_head;
      float* const to = y + first * ldy + head * y_head;
      Activations a = describe_activations(w, count);
      a.values = scratch.get(static_cast<std::size_t>(count * a.stride));
      prepare_rows(w, a, from, ldx, 0, count);
      multiply_blocks(w, a, head * blocks, (head + 1) * blocks, to - head * outputs, ldy, nullptr, false);
      for (long r = 0; r < count && w.k < x_head; ++r) {
        std::memcpy(to + r * ldy + outputs, from + r * ldx + w.k,
                    static_cast<std::size_t>(x_head - w.k) * sizeof(float));
      }
    }
  });
}

void pack(const Matrix& w, const void* source, SourceType type) {
  const auto pack_blocks = kernels().linear.pack;
  pool().parallel_for(w.blocks(), 4, [&](long begin, long end) { pack_blocks(w, source, type, begin, end); });
}

void gather_row(const Matrix& w, long row, float* out) { unpack_inputs(w, row, out); }

void gather_rows(const Matrix& w, const std::int32_t* ids, long count, float* out, long ldout) {
  const long grain = std::max(1L, 16384 / std::max(1L, w.k));
  pool().parallel_for(count, grain, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) unpack_inputs(w, ids[i], out + i * ldout);
  });
}

void unpack(const Matrix& w, float* out) {
  pool().parallel_for(w.n, std::max(1L, 16384 / w.k), [&](long begin, long end) {
    for (long row = begin; row < end; ++row) unpack_inputs(w, row, out + row * w.k);
  });
}

}  // namespace dragoman
