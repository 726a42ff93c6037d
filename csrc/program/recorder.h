// The recording of a program: every operation is checked once, here, and becomes a function of the rows.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "attention/attention.h"
#include "attention/kv_pool.h"
#include "layers/experts.h"
#include "layers/transform.h"
#include "program/adapter_table.h"
#include "program/batch_checker.h"
#include "program/buffers.h"
#include "program/operation.h"
#include "recurrence/recurrence.h"

namespace dragoman {

// Sizes of a linear recurrence, and where its inputs are in their buffer.
struct RecurrenceShape {
  long q_offset, k_offset, v_offset;
  long heads, group, key_dim, value_dim;
  bool delta;
  bool key_decays;
};

// Recording throws std::invalid_argument on anything that could not run: an unknown buffer, widths that do not fit, a
// buffer read before it is written, rows of different kinds. Weights, tables and vectors are borrowed: the caller keeps
// them alive.
class Recorder {
 public:
  // adapters: borrowed.
  Recorder(long max_tokens, long max_sequences, long max_logit_rows, std::shared_ptr<KVPool> kv,
           std::shared_ptr<StatePool> states, AdapterTable& adapters);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // A new buffer [rows, width]; `over` (or -1): in the memory of another that is at least as wide, row r at its row r,
  // for values that are not needed at the same time. Writing one of them invalidates the others.
  int buffer(long width, int over = -1) { return buffers_.add(width, over); }
  void embed(int x, const Matrix& table, float scale);
  // x[:, j · table.k :] += factor · table[token · parts + j] for each of the parts that x has; tokens beyond the table
  // have those of token 0.
  void add_embeddings(int x, const Matrix& table, float factor);
  // x += the given part of each row with a given embedding, if it has one; part 0 is the embedding.
  void add_given(int x, long part);
  void add_positions(int x, const float* table, long positions);
  void norm(int out, int x, const float* weight, const float* bias, float eps, Norm kind);
  void linear(int out, int x, const Matrix& w, const float* bias, bool accumulate);
  // Each of the heads of x by its share of the outputs of w; what it has beyond the inputs of w is copied after them.
  void head_linear(int out, int x, const Matrix& w, long heads);
  void head_norm(int x, long offset, long heads, long head_dim, const float* weight, const float* bias, long ldweight,
                 float eps, Norm kind);
  // axes: of each pair the one of a row's three rotary positions whose angle it has; empty: its own position.
  void rotate(int x, long offset, long heads, long head_dim, const float* cos, const float* sin, long half,
              long positions, bool interleaved, std::vector<std::int32_t> axes);
  void write_kv(int x, long k_offset, long v_offset, long layer);
  void attend(int out, int x, long q_offset, long heads, long layer, float scale, long window, long chunk,
              const ScoreTerms& terms, bool causal, bool both_ways);
  // of_step: what is looked at may be written by the same step, into blocks that its sequences share.
  void cross_attend(int out, int x, long q_offset, long heads, long layer, float scale, bool of_step);
  // Operations from here to `end_optional` are left out where no sequence of a batch has another text.
  void begin_optional();
  void end_optional();
  // Rows of sequences without another text become 0.
  void clear_without_text(int x);
  // In place; weight: [taps, width].
  void convolve(int x, long offset, long width, long part, long taps, const float* weight, const float* bias,
                bool activated);
  // Offsets of queries, keys and values in x; `gates` has the decays of the heads, then their factors.
  void recur(int out, int x, int gates, const RecurrenceShape& shape, long part, const float* skip);
  // steps: of every column of out; B and C in bc from their offsets. rate: [state_dim][width of out].
  void scan(int out, int x, int steps, int bc, long b_offset, long c_offset, long state_dim, long part,
            const float* rate, const float* bias, const float* skip);
  // In place; input and decay: what the gates are sigmoids of, with their biases.
  void unit(int x, int input, int decay, long part, const float* rate, const float* input_bias,
            const float* decay_bias);
  // out: so many decays, then factors. factor_offset: -1 for factors that are the steps: see RecurrenceKernels.
  void recurrence_gates(int out, int x, long step_offset, long factor_offset, long decays, const float* rate,
                        const float* bias, float least, float most);
  // out[:, out_offset:][:, :width] = x[:, x_offset:] · gate(y[:, y_offset:])
  void multiply(int out, long out_offset, int x, long x_offset, int y, long y_offset, long width, Gate gate);
  void gate(int out, int x, Activation activation);
  void activate(int x, Activation activation);
  void xielu(int x, const XIELU& activation);
  void clip(int x, float limit);
  // Each of the columns from offset on to no less than low and no more than high.
  void clip_columns(int x, long offset, long width, float low, float high);
  // Columns [offset, offset + width) of each row by the factor of its position.
  void scale_by_position(int x, long offset, long width, const float* factors, long positions);
  // The network's matrices are borrowed too. routed: the router's input.
  void experts(int out, int x, int routed, Experts experts, bool accumulate);
  // out = x[:, offset:], as many columns as out has.
  void copy_columns(int out, int x, long offset);
  // out = the columns of x, then those of y from offset on. out may have the memory of x; y may be x.
  void join(int out, int x, int y, long offset);
  void add(int out, int x, float factor);
  // Streams of several parts: see StreamKernels. x has `parts` of them, out is as wide.
  void predict_parts(int out, int x, int factors);
  void correct_parts(int x, int computed, int factors, long active);
  // Each part of out, as wide as x.
  void match_magnitude(int out, int x, float least);
  // x[j] += value for the parts from `first` on.
  void add_to_parts(int x, int value, long first);
  void scale_columns(int x, const float* factors);
  // Of the first `width` columns.
  void keep_largest(int x, long width, float deviations);
  // Columns [offset, offset + width) of each row.
  void scale(int x, float factor, long offset, long width);
  void soft_cap(int x, float cap);
  void select_rows(int out, int x);
  void logits(int x);
  // After a product out (+)= x · Wᵀ: applies the adapters' changes to it. Returns the product's number.
  int adapt(int out, int x, const Matrix& w);

  // Width of a buffer, with which the bindings check vectors.
  long width(int x) const { return buffers_.at(x).width; }

  const std::vector<Operation>& operations() const { return operations_; }
  const BatchLimits& limits() const { return limits_; }
  // Whether the operations can process some rows of a batch before others.
  bool is_divisible() const { return divisible_ && !buffers_.mix_rows(); }
  // Bytes of the weights that each row is multiplied with.
  std::size_t weights_bytes() const { return weights_bytes_; }
  // The first rows of the buffer of logits; null without logits.
  Logits result(long rows) const;
  // The first rows of any buffer that still holds values at the end of a run: as many as a step may have of its kind.
  Logits rows_of(int x, long rows);

 private:
  void push(OperationKind kind, std::function<void(const RowPartition&, Scratch&)> run, std::string shape = {}) {
    operations_.push_back(
        {.kind = kind, .shape = std::move(shape), .run = std::move(run), .is_optional = is_optional_});
  }
  void require_apart(int out, int x, const char* operation) const;
  StatePart state_part(long part, long floats, const char* operation);
  Attention attention(int out, int x, long q_offset, long heads, long layer, float scale);
  void prefault() const;

  BatchLimits limits_;
  const std::shared_ptr<KVPool> kv_;
  const std::shared_ptr<StatePool> states_;
  AdapterTable& adapters_;
  Buffers buffers_;
  std::vector<Operation> operations_;
  int logits_ = -1;
  bool divisible_ = true;
  bool is_optional_ = false;  // of the operations that are recorded now
  std::size_t weights_bytes_ = 0;
  ExpertsScratch experts_scratch_;
  std::thread prefault_thread_;
};

}  // namespace dragoman
