// A recorded operation: a function of the rows to compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "gemm/linear.h"
#include "program/batch.h"

namespace dragoman {

enum class OperationKind : std::uint8_t {
  embed,
  norm,
  linear,
  rotate,
  write_kv,
  attend,
  convolve,
  recur,
  activation,
  experts,
  adapt,
  add,
  scale,
  select_rows,
};

constexpr const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::embed: return "embed";
    case OperationKind::norm: return "norm";
    case OperationKind::linear: return "linear";
    case OperationKind::rotate: return "rotate";
    case OperationKind::write_kv: return "write_kv";
    case OperationKind::attend: return "attend";
    case OperationKind::convolve: return "convolve";
    case OperationKind::recur: return "recur";
    case OperationKind::activation: return "activation";
    case OperationKind::experts: return "experts";
    case OperationKind::adapt: return "adapt";
    case OperationKind::add: return "add";
    case OperationKind::scale: return "scale";
    case OperationKind::select_rows: return "select_rows";
  }
  return "";
}

struct Operation {
  OperationKind kind;
  std::string shape;  // of a matrix, else empty
  std::function<void(const RowPartition&, Scratch&)> run;
  bool is_optional = false;  // left out where no sequence of the batch has another text
  // Of write_kv: the layer that it writes, and the end of the operations that read or write that layer.
  long kv_layer = -1;
  std::size_t reads_end = 0;
};

}  // namespace dragoman
