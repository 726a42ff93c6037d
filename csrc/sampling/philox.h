// Counter-based random numbers: Philox4x64-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
// 3" (SC 2011). The number of a token is a function of its seed and place, so that any step can be computed again
// alone.
#pragma once

#include <array>
#include <cstdint>

namespace dragoman {

inline std::array<std::uint64_t, 4> philox4x64(std::array<std::uint64_t, 4> counter, std::array<std::uint64_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto a = static_cast<unsigned __int128>(counter[0]) * 0xd2e7470ee14c6c93u;
    const auto b = static_cast<unsigned __int128>(counter[2]) * 0xca5a826395121157u;
    counter = {static_cast<std::uint64_t>(b >> 64) ^ counter[1] ^ key[0], static_cast<std::uint64_t>(b),
               static_cast<std::uint64_t>(a >> 64) ^ counter[3] ^ key[1], static_cast<std::uint64_t>(a)};
    key = {key[0] + 0x9e3779b97f4a7c15u, key[1] + 0xbb67ae8584caa73bu};
  }
  return counter;
}

// The leading 24 bits as a float32 in [0, 1).
inline float uniform_of(std::uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1p-24f; }

}  // namespace dragoman
