#include "gguf/gguf_quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "gguf/gguf_types.h"
#include "simd/half.h"
#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

using ggml::kNonLinear;

constexpr long kInputs = 32, kOutputs = 16;  // of a block, and of a piece whose lanes are computed together
constexpr long kBlockBytes = 18;
constexpr int kScaleSteps = 4;  // on either side of that which puts the largest value at an end of the table
constexpr float kScaleStep = 0.045f;

// The place of the number that is nearest to x, at [2 · (x + 128)]: borders between numbers are multiples of a half.
std::array<std::uint8_t, 512> nearest_places() {
  std::array<std::uint8_t, 512> places{};
  for (int i = 0; i < 512; ++i) {
    const int twice = i - 256;
    int place = 0;
    while (place < 15 && twice >= kNonLinear[place] + kNonLinear[place + 1]) ++place;
    places[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(place);
  }
  return places;
}

using Lanes = std::array<float, kOutputs>;

struct Group {
  std::array<Lanes, kInputs> values;
};

// Rounds the inputs of a piece with these scales. Returns the sum of squared errors of each output, or a part of it
// that is not less than `least` in any of them. `rounded(i, lane, place, error)` is told of each.
template <class Rounded>
Lanes round_group(Group group, const float* factor, const Lanes& scales, const Lanes& least, Rounded&& rounded) {
  static const std::array<std::uint8_t, 512> places = nearest_places();
  Lanes inverse, lost{}, errors;
  for (long c = 0; c < kOutputs; ++c) inverse[c] = scales[c] != 0.0f ? 1.0f / scales[c] : 0.0f;
  for (long i = 0; i < kInputs; ++i) {
    const Lanes& values = group.values[i];
    const float weight = 1.0f / factor[i * kInputs + i];
    for (long c = 0; c < kOutputs; ++c) {
      const float scaled = values[c] * inverse[c];  // whatever it is, NaN too, there is a place
      const int at = scaled >= 127.5f ? 511 : scaled > -128.0f ? static_cast<int>(2.0f * scaled + 256.0f) : 0;
      const std::uint8_t place = places[static_cast<std::size_t>(at)];
      errors[c] = (values[c] - static_cast<float>(kNonLinear[place]) * scales[c]) * weight;
      rounded(i, c, place, errors[c]);
    }
    for (long c = 0; c < kOutputs; ++c) lost[c] += errors[c] * errors[c];
    for (long j = i + 1; j < kInputs; ++j) {
      const float share = factor[i * kInputs + j];
      for (long c = 0; c < kOutputs; ++c) group.values[j][c] -= share * errors[c];
    }
    if (i % 4 != 3) continue;
    bool may_win = false;
    for (long c = 0; c < kOutputs; ++c) may_win = may_win || lost[c] < least[c];
    if (!may_win) break;
  }
  return lost;
}

// The scales in fp16, as floats, of which rounding loses least.
Lanes search_scales(const Group& group, const float* factor) {
  Lanes extremes{}, magnitudes{}, found{}, least;
  for (const Lanes& values : group.values) {
    for (long c = 0; c < kOutputs; ++c) {
      const float size = std::fabs(values[c]);
      extremes[c] = size > magnitudes[c] ? values[c] : extremes[c];
      magnitudes[c] = std::max(size, magnitudes[c]);
    }
  }
  least.fill(std::numeric_limits<float>::infinity());
  for (int step = 0; step <= 2 * kScaleSteps; ++step) {
    for (const int end : {0, 15}) {
      // From the middle outwards: what comes later is then often given up early.
      const int from_middle = (step + 1) / 2 * (step % 2 == 0 ? 1 : -1);
      const float factor_of_end = kNonLinear[end] * (1.0f + kScaleStep * static_cast<float>(from_middle));
      Lanes scales;
      for (long c = 0; c < kOutputs; ++c) {
        const float scale = half_to_float(float_to_half(extremes[c] / factor_of_end));
        scales[c] = std::isfinite(scale) ? scale : 0.0f;
      }
      const Lanes lost = round_group(group, factor, scales, least, [](long, long, std::uint8_t, float) {});
      for (long c = 0; c < kOutputs; ++c) {
        found[c] = lost[c] < least[c] ? scales[c] : found[c];
        least[c] = std::min(lost[c], least[c]);
      }
    }
  }
  return found;
}

}  // namespace

void quantize_iq4_nl(const void* source, SourceType type, long n, long k, std::uint8_t* blocks) {
  const auto quantize = kernels().linear.quantize_iq4_nl;
  pool().parallel_for(n, 4, [&](long begin, long end) { quantize(source, type, k, begin, end, blocks); });
}

void round_iq4_nl_with_feedback(const float* values, long n, const float* factor, std::uint8_t* blocks, float* errors) {
  const long pieces = (n + kOutputs - 1) / kOutputs;
  pool().parallel_for(pieces, 4, [&](long begin, long end) {
    for (long first = begin * kOutputs; first < std::min(end * kOutputs, n); first += kOutputs) {
      const long count = std::min(kOutputs, n - first);
      Group group{};
      for (long i = 0; i < kInputs; ++i) {
        std::copy_n(values + i * n + first, count, group.values[i].begin());
      }
      const Lanes scales = search_scales(group, factor);
      std::uint8_t places[kInputs][kOutputs];
      Lanes never;
      never.fill(std::numeric_limits<float>::infinity());
      round_group(group, factor, scales, never, [&](long i, long c, std::uint8_t place, float error) {
        places[i][c] = place;
        if (c < count) errors[i * n + first + c] = error;
      });
      for (long c = 0; c < count; ++c) {
        std::uint8_t* const block = blocks + (first + c) * kBlockBytes;
        const std::uint16_t half = float_to_half(scales[c]);
        std::memcpy(block, &half, 2);
        for (long i = 0; i < 16; ++i) block[2 + i] = static_cast<std::uint8_t>(places[i][c] | places[16 + i][c] << 4);
      }
    }
  });
}

}  // namespace dragoman
