// The recorder's operations with a state: see recurrence/recurrence.h.

#include "program/for_rows.h"
#include "program/recorder.h"
#include "program/require.h"
#include "simd/kernels.h"

namespace dragoman {
namespace {

void require_columns(const Buffer& x, long offset, long width, const char* operation) {
  require(offset >= 0 && width > 0 && offset + width <= x.width,
          std::string(operation) + ": the columns reach beyond the buffer");
}

}  // namespace

StatePart Recorder::state_part(long part, long floats, const char* operation) {
  require(states_ != nullptr, std::string(operation) + " needs a pool of states");
  const StatePart found = states_->part(part);
  require(found.floats == floats, std::string(operation) + ": its state takes " + std::to_string(floats) +
                                      " floats, the pool's part " + std::to_string(found.floats));
  limits_.recurs = true;
  divisible_ = false;
  return found;
}

void Recorder::convolve(int x, long offset, long width, long part, long taps, const float* weight, const float* bias,
                        bool activated) {
  const Buffer& buffer = buffers_.read(x);
  require(buffer.rows == Rows::tokens, "convolve needs one row per token, not per logits row");
  require_columns(buffer, offset, width, "convolve");
  require(taps >= 2 && taps <= kMostTaps, "convolve: there can be 2 to " + std::to_string(kMostTaps) + " taps");
  const Convolution layer{.state = state_part(part, (taps - 1) * width, "convolve"),
                          .x = buffer.data() + offset,
                          .ldx = buffer.stride,
                          .width = width,
                          .taps = taps,
                          .weight = weight,
                          .bias = bias,
                          .activated = activated};
  push(OperationKind::convolve, [layer](const RowPartition& rows, Scratch&) {
    const std::vector<StateRows>& states = rows.checked->states;
    dragoman::convolve(layer, states.data(), static_cast<long>(states.size()));
  });
}

void Recorder::recur(int out, int x, int gates, const RecurrenceShape& shape, long part, const float* skip) {
  const Buffer& from = buffers_.read(x);
  const Buffer& factors = buffers_.read(gates);
  require(from.rows == Rows::tokens && factors.rows == Rows::tokens, "recur needs one row per token");
  require_apart(out, x, "recur");
  require_apart(out, gates, "recur");
  const long heads = shape.heads, key_dim = shape.key_dim, value_dim = shape.value_dim;
  require(heads > 0 && heads <= 1 << 16 && shape.group > 0 && heads % shape.group == 0 && key_dim > 0 &&
              key_dim <= 1 << 16 && value_dim > 0 && value_dim <= 1 << 16,
          "recur: the heads are of no valid size");
  require_columns(from, shape.q_offset, heads / shape.group * key_dim, "recur");
  require_columns(from, shape.k_offset, heads / shape.group * key_dim, "recur");
  require_columns(from, shape.v_offset, heads * value_dim, "recur");
  require(!shape.key_decays || (shape.delta && shape.group == 1), "recur: only delta rules have decays of keys");
  const long decays = shape.key_decays ? heads * key_dim : heads;
  require(factors.width == decays + heads, "recur: the gates have the decays and a factor for each head");
  require(buffers_.at(out).width == heads * value_dim, "recur: the result does not have the buffer's width");
  LinearRecurrence layer{.state = {},
                         .q = from.data() + shape.q_offset,
                         .k = from.data() + shape.k_offset,
                         .v = from.data() + shape.v_offset,
                         .ldx = from.stride,
                         .decay = factors.data(),
                         .factor = factors.data() + decays,
                         .ldgates = factors.stride,
                         .out = nullptr,
                         .ldout = 0,
                         .heads = heads,
                         .group = shape.group,
                         .key_dim = key_dim,
                         .value_dim = value_dim,
                         .skip = skip,
                         .delta = shape.delta,
                         .key_decays = shape.key_decays};
  layer.state = state_part(part, heads * layer.head_floats(), "recur");
  const Buffer& to = buffers_.write(out, Rows::tokens);
  layer.out = to.data();
  layer.ldout = to.stride;
  push(OperationKind::recur, [layer](const RowPartition& rows, Scratch&) {
    const std::vector<StateRows>& states = rows.checked->states;
    dragoman::recur(layer, states.data(), static_cast<long>(states.size()));
  });
}

void Recorder::scan(int out, int x, int steps, int bc, long b_offset, long c_offset, long state_dim, long part,
                    const float* rate, const float* bias, const float* skip) {
  const Buffer& from = buffers_.read(x);
  const Buffer& step = buffers_.read(steps);
  const Buffer& shared = buffers_.read(bc);
  for (const Buffer* input : {&from, &step, &shared}) {
    require(input->rows == Rows::tokens, "scan needs one row per token");
  }
  for (const int input : {x, steps, bc}) require_apart(out, input, "scan");
  const long width = buffers_.at(out).width;
  require(from.width == width && step.width == width, "scan: the inputs and steps do not have the result's width");
  require(state_dim > 0 && state_dim <= 1 << 16, "scan: the state is of no valid size");
  require_columns(shared, b_offset, state_dim, "scan");
  require_columns(shared, c_offset, state_dim, "scan");
  SelectiveScan layer{.state = {},
                      .x = from.data(),
                      .steps = step.data(),
                      .b = shared.data() + b_offset,
                      .c = shared.data() + c_offset,
                      .ldx = from.stride,
                      .ldsteps = step.stride,
                      .ldbc = shared.stride,
                      .rate = rate,
                      .bias = bias,
                      .skip = skip,
                      .out = nullptr,
                      .ldout = 0,
                      .width = width,
                      .state_dim = state_dim};
  layer.state = state_part(part, state_dim * layer.padded_width(), "scan");
  const Buffer& to = buffers_.write(out, Rows::tokens);
  layer.out = to.data();
  layer.ldout = to.stride;
  push(OperationKind::recur, [layer](const RowPartition& rows, Scratch&) {
    const std::vector<StateRows>& states = rows.checked->states;
    dragoman::scan(layer, states.data(), static_cast<long>(states.size()));
  });
}

void Recorder::unit(int x, int input, int decay, long part, const float* rate, const float* input_bias,
                    const float* decay_bias) {
  const Buffer& buffer = buffers_.read(x);
  const Buffer& inputs = buffers_.read(input);
  const Buffer& decays = buffers_.read(decay);
  for (const Buffer* each : {&buffer, &inputs, &decays}) {
    require(each->rows == Rows::tokens, "unit needs one row per token");
  }
  for (const int each : {input, decay}) require_apart(x, each, "unit");
  require(inputs.width == buffer.width && decays.width == buffer.width,
          "unit: the gates do not have the input's width");
  const GatedUnit layer{.state = state_part(part, buffer.width, "unit"),
                        .x = buffer.data(),
                        .input = inputs.data(),
                        .decay = decays.data(),
                        .ldx = buffer.stride,
                        .ldinput = inputs.stride,
                        .lddecay = decays.stride,
                        .rate = rate,
                        .input_bias = input_bias,
                        .decay_bias = decay_bias,
                        .width = buffer.width};
  push(OperationKind::recur, [layer](const RowPartition& rows, Scratch&) {
    const std::vector<StateRows>& states = rows.checked->states;
    dragoman::unit(layer, states.data(), static_cast<long>(states.size()));
  });
}

void Recorder::recurrence_gates(int out, int x, long step_offset, long factor_offset, long decays, const float* rate,
                                const float* bias, float least, float most) {
  const Buffer& from = buffers_.read(x);
  require_apart(out, x, "recurrence_gates");
  const Rows domain = from.rows;
  const long factors = buffers_.at(out).width - decays;
  require(factors > 0 && (factor_offset >= 0 || factors == decays),
          "recurrence_gates: there are decays, and factors after them");
  require_columns(from, step_offset, decays, "recurrence_gates");
  if (factor_offset >= 0) require_columns(from, factor_offset, factors, "recurrence_gates");
  require(least >= 0 && least <= most, "recurrence_gates: the limits of the steps are in no order");
  const Buffer& to = buffers_.write(out, domain);
  push(OperationKind::recur, [=, &from, &to](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), to.width, [&](long begin, long end) {
      const float* const y = factor_offset < 0 ? nullptr : from.row(begin) + factor_offset;
      kernels().recurrence.gates(from.row(begin) + step_offset, y, from.stride, end - begin, decays, factors, rate,
                                 bias, least, most, to.row(begin), to.stride);
    });
  });
}

void Recorder::multiply(int out, long out_offset, int x, long x_offset, int y, long y_offset, long width, Gate gate) {
  const Buffer& left = buffers_.read(x);
  const Buffer& right = buffers_.read(y);
  const Rows domain = left.rows;
  require(right.rows == domain, "multiply: the buffers have rows of different kinds");
  require_columns(left, x_offset, width, "multiply");
  require_columns(right, y_offset, width, "multiply");
  require_columns(buffers_.at(out), out_offset, width, "multiply");
  if (out != x && out != y) {
    require_apart(out, x, "multiply");
    require_apart(out, y, "multiply");
    require(buffers_.at(out).width == width, "multiply: the result does not have the buffer's width");
    buffers_.write(out, domain);
  }
  const Buffer& to = buffers_.at(out);
  push(OperationKind::activation, [=, &left, &right, &to](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), width, [&](long begin, long end) {
      kernels().recurrence.multiply(gate, left.row(begin) + x_offset, left.stride, right.row(begin) + y_offset,
                                    right.stride, end - begin, width, to.row(begin) + out_offset, to.stride);
    });
  });
}

}  // namespace dragoman
