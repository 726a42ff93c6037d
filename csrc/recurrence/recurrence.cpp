#include "recurrence/recurrence.h"

#include <algorithm>

#include "gemm/linear.h"
#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

// Channels of a sequence that one thread takes at a time, where it has few rows: some µs of work.
constexpr long kChannelChunk = 256;

// Channels of a convolution: so many that each thread has this many parts, and a multiple of a line's, or of those that
// are computed together.
constexpr long kLineChannels = 16;
constexpr long kPartsOfSingleRows = 2, kPartsOfManyRows = 8;

// Channels of a selective scan, each with a state: some µs of work for a single row.
constexpr long kScanChunk = 64;

bool is_single(const StateRows* sequences, long count) {
  return std::all_of(sequences, sequences + count, [](const StateRows& each) { return each.rows == 1; });
}

}  // namespace

void convolve(const Convolution& layer, const StateRows* sequences, long count) {
  // Of a single row most of the time is fetching the state, which is done ahead within a part: parts are as long as
  // they can be. Of many rows it is the rows, and parts are short, so that threads end together.
  const bool single = is_single(sequences, count);
  const long parts = pool().threads() * (single ? kPartsOfSingleRows : kPartsOfManyRows);
  const long least = single ? kLineChannels : kChannelsTogether;
  const long wanted = layer.width * count / parts / least * least;
  const long channels = std::min(std::max(wanted, least), layer.width);
  const long chunks = (layer.width + channels - 1) / channels;
  pool().parallel_for(count * chunks, 1, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      const long first = i % chunks * channels;
      kernels().recurrence.convolve(layer, sequences[i / chunks], first, std::min(first + channels, layer.width));
    }
  });
}

void recur(const LinearRecurrence& layer, const StateRows* sequences, long count) {
  const bool single = is_single(sequences, count);
  const long columns = single ? kColumnsOfOne : kColumnsOfMany;
  const long chunks = (layer.value_dim + columns - 1) / columns, tasks = layer.heads * chunks;
  const auto run = [&](long begin, long end) {
    thread_local Scratch scratch(0);
    const long floats = single ? 0 : layer.key_dim * kColumnsOfMany;
    float* const state = reinterpret_cast<float*>(scratch.get(static_cast<std::size_t>(floats) * sizeof(float)));
    for (long i = begin; i < end; ++i) {
      const long head = i % tasks / chunks, first = i % chunks * columns, last = first + columns;
      kernels().recurrence.recur(layer, sequences[i / tasks], head, first, std::min(last, layer.value_dim), state);
    }
  };
  // States of neighbouring heads are adjacent, and read faster in long pieces.
  if (single) return pool().parallel_for_guided(count * tasks, 1, run);
  pool().parallel_for(count * tasks, 1, run);
}

void scan(const SelectiveScan& layer, const StateRows* sequences, long count) {
  const long chunks = (layer.width + kScanChunk - 1) / kScanChunk;
  pool().parallel_for(count * chunks, 1, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      const long first = i % chunks * kScanChunk;
      kernels().recurrence.scan(layer, sequences[i / chunks], first, std::min(first + kScanChunk, layer.width));
    }
  });
}

void unit(const GatedUnit& layer, const StateRows* sequences, long count) {
  const long chunks = (layer.width + kChannelChunk - 1) / kChannelChunk;
  pool().parallel_for(count * chunks, 1, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      const long first = i % chunks * kChannelChunk;
      kernels().recurrence.unit(layer, sequences[i / chunks], first, std::min(first + kChannelChunk, layer.width));
    }
  });
}

}  // namespace dragoman
