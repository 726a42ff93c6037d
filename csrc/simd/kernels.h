// The table of kernels that every instruction set fills once, and the choice among the tables.
#pragma once

#include <string>
#include <vector>

#include "attention/attention.h"
#include "gemm/linear.h"
#include "layers/experts.h"
#include "layers/lora.h"
#include "layers/streams.h"
#include "layers/transform.h"
#include "recurrence/recurrence.h"
#include "sampling/sampling.h"

namespace dragoman {

struct Kernels {
  const char* name;  // "avx512", "avx2", "portable" …
  LinearKernels linear;
  TransformKernels transform;
  AttentionKernels attention;
  ExpertKernels experts;
  LoraKernels lora;
  RecurrenceKernels recurrence;
  StreamKernels streams;
  SamplingKernels sampling;
};

// The table in use: the best one this processor and its operating system allow, or the one DRAGOMAN_KERNELS names.
// Throws std::invalid_argument when that name is unknown or unsupported here.
const Kernels& kernels();

// Names of the tables that work on this machine, best first; the first one is chosen.
std::vector<std::string> supported_kernels();

// Whether the processor is Intel's, whose prefetcher is helped from one row on.
bool is_intel();

// Makes `name` the table in use from now on. For tests; not while a kernel is running.
void force_kernels(const std::string& name);

}  // namespace dragoman
