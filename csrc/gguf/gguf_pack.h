// Packing of ggml's blocks into the chunked formats, which hold their numbers exactly.
#pragma once

#include <cstdint>

#include "gemm/matrix.h"
#include "gguf/gguf_blocks.h"

namespace dragoman {

// The type of blocks that a chunked format holds.
GgufType gguf_type_of(Precision precision);

// Fills w.data, which is zeros, from rows of whole blocks.
void pack_gguf(const Matrix& w, const std::uint8_t* blocks);

// Whether all scales of `count` blocks of a type that a chunked format holds are finite.
bool gguf_scales_are_finite(GgufType type, const std::uint8_t* blocks, long count);

}  // namespace dragoman
