// Codes of three bits, two quads at a time, by shifts and masks: for instruction sets without a faster way. Part of the
// contract in portable.h.
#pragma once

namespace dragoman::DRAGOMAN_ISA {

struct ThreeBits {};

DRAGOMAN_INLINE ThreeBits load_three_bits() { return {}; }
// The codes of quads 2p and 2p + 1 of a group: two bits of each stand at bits 4 · (p mod 2) … of `low`, the third ones
// at bits 2p and 2p + 1 of `high`.
DRAGOMAN_INLINE void open_three_bits(ThreeBits, Bytes low, Bytes high, int p, Bytes& first, Bytes& second) {
  first = join_bits(join_bits(no_bytes(), low, p % 2 * 4, 2, 0), high, 2 * p, 1, 2);
  second = join_bits(join_bits(no_bytes(), low, p % 2 * 4 + 2, 2, 0), high, 2 * p + 1, 1, 2);
}

}  // namespace dragoman::DRAGOMAN_ISA
