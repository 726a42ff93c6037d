// A fast checksum of large buffers, for the packed cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

// CRC-32C (Castagnoli) of the sequence of: the CRC-32C of every 1 MiB chunk as 4 bytes little endian, then the length
// as 8 bytes little endian. The chunks run on the thread pool. The same value on every machine.
std::uint32_t checksum(const std::uint8_t* bytes, std::size_t length);

}  // namespace dragoman
