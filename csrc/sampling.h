// The sampling chapter: its table of kernels.
#pragma once

namespace dragoman {

struct SamplingKernels {};

}  // namespace dragoman
