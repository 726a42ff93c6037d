#include "program/recorder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "program/for_rows.h"
#include "program/require.h"
#include "simd/kernels.h"

namespace dragoman {
namespace {

// Of the KV pool: 2,048 tokens.
constexpr long kPrefaultBlocks = 64;

// The sequences of a partition's logits rows: neighbouring rows of a text are one.
std::vector<Attention::Sequence> sequences_of_logits(const RowPartition& part) {
  const Batch& batch = part.batch();
  std::vector<Attention::Sequence> found;
  for (long i = part.logits.begin; i < part.logits.end; ++i) {
    const std::int32_t row = batch.logit_rows[i];
    const long sequence =
        std::upper_bound(batch.row_starts, batch.row_starts + batch.sequences + 1, row) - batch.row_starts - 1;
    const std::int32_t* const blocks = batch.block_tables + sequence * batch.table_width;
    const long position = batch.positions[row];
    if (!found.empty() && found.back().blocks == blocks && found.back().position + found.back().rows == position) {
      ++found.back().rows;
      ++found.back().length;
    } else {
      found.push_back({.row = i,
                       .rows = 1,
                       .position = position,
                       .blocks = blocks,
                       .length = position + 1,
                       .table_stride = batch.table_stride()});
    }
  }
  return found;
}

void require_tokens(const Buffer& x, const char* operation) {
  require(x.rows == Rows::tokens, std::string(operation) + " needs one row per token, not per logits row");
}

}  // namespace

Recorder::Recorder(long max_tokens, long max_sequences, long max_logit_rows, std::shared_ptr<KVPool> kv,
                   std::shared_ptr<StatePool> states, AdapterTable& adapters)
    : limits_{.max_tokens = require_range(max_tokens, 1 << 20, "max_tokens"),
              .max_sequences = require_range(max_sequences, 1 << 20, "max_sequences"),
              .max_logit_rows = require_range(max_logit_rows, 1 << 20, "max_logit_rows"),
              .groups = std::vector<BatchLimits::Group>(static_cast<std::size_t>(kv->groups()))},
      kv_(std::move(kv)),
      states_(std::move(states)),
      adapters_(adapters),
      buffers_(std::max(max_tokens, max_logit_rows)) {}

Recorder::~Recorder() {
  if (prefault_thread_.joinable()) prefault_thread_.join();
}

void Recorder::require_apart(int out, int x, const char* operation) const {
  require(buffers_.at(out).memory != buffers_.at(x).memory,
          std::string(operation) + ": the result cannot replace its own input");
}

void Recorder::embed(int x, const Matrix& table, float scale) {
  require(buffers_.at(x).width == table.k, "the embedding table does not have the buffer's width");
  limits_.vocab = std::min(limits_.vocab, table.n);
  limits_.embedding_width = table.k;
  Buffer& out = buffers_.write(x, Rows::tokens);
  push(OperationKind::embed, [&out, &table, scale](const RowPartition& part, Scratch&) {
    for_rows(part.tokens, out.width, [&](long begin, long end) {
      gather_rows(table, part.batch().token_ids + begin, end - begin, out.row(begin), out.stride);
      if (scale != 1.0f) kernels().transform.scale(out.row(begin), out.stride, end - begin, out.width, scale);
    });
    const Batch& batch = part.batch();
    for (long i = 0; i < batch.overrides; ++i) {
      std::memcpy(out.row(batch.override_rows[i]), batch.override_values + i * batch.override_width,
                  static_cast<std::size_t>(out.width) * sizeof(float));
    }
  });
}

void Recorder::add_positions(int x, const float* table, long positions) {
  Buffer& buffer = buffers_.read(x);
  require_tokens(buffer, "add_positions");
  limits_.positions = std::min(limits_.positions, positions);
  push(OperationKind::embed, [&buffer, table](const RowPartition& part, Scratch&) {
    for_rows(part.tokens, buffer.width, [&](long begin, long end) {
      kernels().transform.add_positions(buffer.row(begin), buffer.stride, end - begin, buffer.width, table,
                                        part.batch().positions + begin);
    });
  });
}

void Recorder::norm(int out, int x, const float* weight, const float* bias, float eps, Norm kind) {
  const Buffer& from = buffers_.read(x);
  require(buffers_.at(out).width == from.width, "norm: the buffers differ in width");
  const Rows domain = from.rows;
  Buffer& to = buffers_.write(out, domain);
  push(OperationKind::norm, [=, &from, &to](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), from.width, [&](long begin, long end) {
      kernels().transform.norm(kind, from.row(begin), from.stride, end - begin, from.width, weight, bias, eps,
                               to.row(begin), to.stride);
    });
  });
}

void Recorder::linear(int out, int x, const Matrix& w, const float* bias, bool accumulate) {
  const Buffer& from = buffers_.read(x);
  require_apart(out, x, "linear");
  require(from.width == w.k, "linear: the weight has " + std::to_string(w.k) + " inputs, the buffer is " +
                                 std::to_string(from.width) + " wide");
  require(buffers_.at(out).width == w.n, "linear: the weight has " + std::to_string(w.n) + " outputs, the buffer is " +
                                             std::to_string(buffers_.at(out).width) + " wide");
  const Rows domain = from.rows;
  require(!accumulate || buffers_.read(out).rows == domain, "linear: cannot accumulate into rows of another kind");
  Buffer& to = buffers_.write(out, domain);
  weights_bytes_ += w.bytes();
  const auto run = [=, &from, &to, &w](const RowPartition& part, Scratch& scratch) {
    const Range& these = part.rows(domain);
    dragoman::linear(w, from.row(these.begin), from.stride, these.count(), to.row(these.begin), to.stride, bias,
                     accumulate, scratch);
  };
  push(OperationKind::linear, run, std::to_string(w.n) + " x " + std::to_string(w.k));
}

void Recorder::head_linear(int out, int x, const Matrix& w, long heads) {
  const Buffer& from = buffers_.read(x);
  require_apart(out, x, "head_linear");
  require(heads > 0 && w.n % heads == 0 && w.n / heads % kBlock == 0,
          "head_linear: each head must have a multiple of " + std::to_string(kBlock) + " of the outputs");
  require(from.width % heads == 0 && from.width / heads >= w.k, "head_linear: the heads do not have the inputs");
  const long x_head = from.width / heads, y_head = w.n / heads + x_head - w.k;
  require(buffers_.at(out).width == heads * y_head,
          "head_linear: the result is " + std::to_string(heads * y_head) + " wide");
  const Rows domain = from.rows;
  Buffer& to = buffers_.write(out, domain);
  weights_bytes_ += w.bytes();
  const auto run = [=, &from, &to, &w](const RowPartition& part, Scratch&) {
    const Range& these = part.rows(domain);
    dragoman::head_linear(w, heads, from.row(these.begin), from.stride, x_head, these.count(), to.row(these.begin),
                          to.stride, y_head);
  };
  push(OperationKind::linear, run,
       std::to_string(heads) + " x " + std::to_string(w.n / heads) + " x " + std::to_string(w.k));
}

void Recorder::head_norm(int x, long offset, long heads, long head_dim, const float* weight, const float* bias,
                         long ldweight, float eps, Norm kind) {
  Buffer& buffer = buffers_.read(x);
  require(offset >= 0 && heads > 0 && head_dim > 0 && offset + heads * head_dim <= buffer.width,
          "head_norm: the heads reach beyond the buffer");
  const Rows domain = buffer.rows;
  push(OperationKind::norm, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), heads * head_dim, [&](long begin, long end) {
      kernels().transform.head_norm(kind, buffer.row(begin) + offset, buffer.stride, end - begin, heads, head_dim,
                                    weight, bias, ldweight, eps);
    });
  });
}

void Recorder::rotate(int x, long offset, long heads, long head_dim, const float* cos, const float* sin, long half,
                      long positions, bool interleaved, std::vector<std::int32_t> axes) {
  Buffer& buffer = buffers_.read(x);
  const Rows domain = buffer.rows;
  require(half > 0 && 2 * half <= head_dim, "rotate: the rotary dimension is larger than the head");
  require(offset >= 0 && heads > 0 && offset + (heads - 1) * head_dim + 2 * half <= buffer.width,
          "rotate: the heads reach beyond the buffer");
  require(axes.empty() || static_cast<long>(axes.size()) == half, "rotate: there is an axis for each pair");
  for (const std::int32_t axis : axes) require(0 <= axis && axis < kRotaryAxes, "rotate: an axis is 0, 1 or 2");
  limits_.positions = std::min(limits_.positions, positions);
  push(OperationKind::rotate, [=, &buffer, axes = std::move(axes)](const RowPartition& part, Scratch&) {
    const Batch& batch = part.batch();
    for_rows(part.rows(domain), heads * head_dim, [&](long begin, long end) {
      if (batch.rotary_positions != nullptr && !axes.empty()) {
        std::vector<float> row_cos(static_cast<std::size_t>(half)), row_sin(static_cast<std::size_t>(half));
        const std::int32_t first = 0;
        for (long r = begin; r < end; ++r) {
          const long row = domain == Rows::logits ? batch.logit_rows[r] : r;
          for (long i = 0; i < half; ++i) {
            const long at = batch.rotary_positions[axes[i] * batch.tokens + row] * half + i;
            row_cos[i] = cos[at];
            row_sin[i] = sin[at];
          }
          kernels().transform.rotate(buffer.row(r) + offset, buffer.stride, 1, heads, head_dim, row_cos.data(),
                                     row_sin.data(), half, &first, interleaved);
        }
        return;
      }
      if (domain == Rows::logits) {
        for (long r = begin; r < end; ++r) {
          kernels().transform.rotate(buffer.row(r) + offset, buffer.stride, 1, heads, head_dim, cos, sin, half,
                                     part.batch().positions + part.batch().logit_rows[r], interleaved);
        }
        return;
      }
      kernels().transform.rotate(buffer.row(begin) + offset, buffer.stride, end - begin, heads, head_dim, cos, sin,
                                 half, part.batch().positions + begin, interleaved);
    });
  });
}

void Recorder::write_kv(int x, long k_offset, long v_offset, long layer) {
  const Buffer& buffer = buffers_.read(x);
  require_tokens(buffer, "write_kv");
  require(layer >= 0 && layer < kv_->layers(), "write_kv: the pool has no layer " + std::to_string(layer));
  const KVLayer kv = kv_->layer(layer);
  const long width = kv.kv_heads * kv.head_dim;
  require(k_offset >= 0 && k_offset + width <= buffer.width, "write_kv: the keys reach beyond the buffer");
  require(kv.latent || (v_offset >= 0 && v_offset + width <= buffer.width),
          "write_kv: the values reach beyond the buffer");
  limits_.writes_kv = limits_.groups[kv.group].writes_kv = true;
  const std::optional<KVLayer> own = kv_->own_layer(layer);
  if (own) limits_.groups[own->group].writes_kv = true;
  push(OperationKind::write_kv, [=, &buffer](const RowPartition& part, Scratch&) {
    const float* const k = buffer.data() + k_offset;
    const float* const v = buffer.data() + v_offset;
    dragoman::write_kv(kv, kv.kv_heads, k, v, buffer.stride, part.first_sequence(), part.sequences.count());
    if (!own) return;
    dragoman::write_kv(*own, kv.kv_heads, k, v, buffer.stride, part.first_sequence(), part.sequences.count());
  });
  operations_.back().kv_layer = layer;  // written in order, because tokens of a block share bytes and an origin in int4
  operations_.back().reads_end = operations_.size();
}

// The checks and fields common to both kinds of attention.
Attention Recorder::attention(int out, int x, long q_offset, long heads, long layer, float scale) {
  const Buffer& from = buffers_.read(x);
  require(layer >= 0 && layer < kv_->layers(), "attend: the pool has no layer " + std::to_string(layer));
  const KVLayer kv = kv_->layer(layer);
  const long head_dim = kv.head_dim, kv_heads = kv.kv_heads;
  require(heads > 0 && heads % kv_heads == 0, "attend: heads must be a multiple of the pool's KV heads");
  require(q_offset >= 0 && q_offset + heads * head_dim <= from.width, "attend: the queries reach beyond the buffer");
  require_apart(out, x, "attend");
  const Buffer& to = buffers_.at(out);
  require(to.width == heads * kv.value_dim, "attend: the result is " + std::to_string(heads * kv.value_dim) + " wide");
  require(scale > 0, "attend: the scale must be positive");
  return {.kv = kv,
          .kv_heads = kv_heads,
          .q = from.data() + q_offset,
          .ldq = from.stride,
          .out = to.data(),
          .ldout = to.stride,
          .group = heads / kv_heads,
          .window = 0,
          .scale = scale};
}

void Recorder::attend(int out, int x, long q_offset, long heads, long layer, float scale, long window, long chunk,
                      const ScoreTerms& terms, bool causal, bool both_ways) {
  Attention attention = this->attention(out, x, q_offset, heads, layer, scale);
  require(window >= 0 && window <= INT32_MAX, "attend: a window cannot be negative");
  require(chunk >= 0 && chunk <= INT32_MAX, "attend: a chunk cannot be negative");
  require(chunk == 0 || (causal && window == 0), "attend: chunks go with causal attention without a window only");
  require(terms.softcap >= 0 && terms.softcap <= std::numeric_limits<float>::max(),
          "attend: the softcap must be a number, not below 0");
  attention.window = window;
  attention.chunk = chunk;
  attention.terms = terms;
  attention.causal = causal;
  attention.both_ways = both_ways;
  BatchLimits::Group& limits = limits_.groups[attention.kv.group];
  limits.window = limits.attends && (limits.window == 0 || window == 0) ? 0 : std::max(limits.window, window);
  limits.attends = true;
  if (causal) attention.own = kv_->own_layer(layer);
  if (attention.own) {
    BatchLimits::Group& own = limits_.groups[attention.own->group];
    own.window = 1;
    own.attends = true;
  }
  const Rows domain = buffers_.at(x).rows;
  require(causal || domain == Rows::tokens, "attend: rows of logits attend causally");
  buffers_.write(out, domain);
  divisible_ = divisible_ && causal;
  push(OperationKind::attend, [=](const RowPartition& part, Scratch& scratch) {
    if (domain == Rows::logits) {
      const std::vector<Attention::Sequence> sequences = sequences_of_logits(part);
      dragoman::attend(attention, sequences.data(), static_cast<long>(sequences.size()), scratch);
      return;
    }
    dragoman::attend(attention, part.first_sequence(), part.sequences.count(), scratch);
  });
  for (Operation& operation : operations_) {
    if (operation.kv_layer == layer) operation.reads_end = operations_.size();
  }
}

void Recorder::gate(int out, int x, Activation activation) {
  const Buffer& from = buffers_.read(x);
  const Rows domain = from.rows;
  require(from.width == 2 * buffers_.at(out).width, "gate: the input must be twice as wide as the result");
  Buffer& to = buffers_.write(out, domain);
  push(OperationKind::activation, [=, &from, &to](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), from.width, [&](long begin, long end) {
      kernels().transform.gate(activation, from.row(begin), from.stride, end - begin, to.width, to.row(begin),
                               to.stride);
    });
  });
}

void Recorder::activate(int x, Activation activation) {
  Buffer& buffer = buffers_.read(x);
  require(activation != Activation::clamped_swiglu, "activate: clamped_swiglu needs a gate");
  const Rows domain = buffer.rows;
  push(OperationKind::activation, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), buffer.width, [&](long begin, long end) {
      kernels().transform.activate(activation, buffer.row(begin), buffer.stride, end - begin, buffer.width);
    });
  });
}

void Recorder::xielu(int x, const XIELU& activation) {
  Buffer& buffer = buffers_.read(x);
  const Rows domain = buffer.rows;
  push(OperationKind::activation, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), buffer.width, [&](long begin, long end) {
      kernels().transform.xielu(activation, buffer.row(begin), buffer.stride, end - begin, buffer.width);
    });
  });
}

void Recorder::clip(int x, float limit) {
  Buffer& buffer = buffers_.read(x);
  require(limit > 0, "clip: the limit must be positive");
  const Rows domain = buffer.rows;
  push(OperationKind::scale, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), buffer.width, [&](long begin, long end) {
      kernels().transform.clip(buffer.row(begin), buffer.stride, end - begin, buffer.width, limit);
    });
  });
}

void Recorder::scale_by_position(int x, long offset, long width, const float* factors, long positions) {
  Buffer& buffer = buffers_.read(x);
  require_tokens(buffer, "scale_by_position");
  require(offset >= 0 && width > 0 && offset + width <= buffer.width,
          "scale_by_position: the columns reach beyond the buffer");
  limits_.positions = std::min(limits_.positions, positions);
  push(OperationKind::scale, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.tokens, width, [&](long begin, long end) {
      kernels().transform.scale_by_position(buffer.row(begin) + offset, buffer.stride, end - begin, width, factors,
                                            part.batch().positions + begin);
    });
  });
}

void Recorder::experts(int out, int x, int routed, Experts experts, bool accumulate) {
  const Buffer& from = buffers_.read(x);
  const Buffer& routed_by = buffers_.read(routed);
  const Routing& routing = experts.routing;
  const long shared = routing.shared != SharedExpert::none;
  require_apart(out, x, "experts");
  require_apart(out, routed, "experts");
  require(routing.experts >= 1 && routing.experts <= kMostExperts,
          "experts: there can be 1 to " + std::to_string(kMostExperts));
  require(routing.active >= 1 && routing.active <= routing.experts, "experts: cannot choose more than there are");
  require(routing.identities >= 0 && routing.identities < routing.experts, "experts: some must have matrices");
  require(routing.identities == 0 || (!routing.scale_inputs && from.width == buffers_.at(out).width),
          "experts: those without matrices do not fit the buffers, or weights of inputs");
  require(static_cast<long>(experts.experts.size()) == routing.experts - routing.identities + shared,
          "experts: there must be matrices for each expert");
  require(experts.router.k == routed_by.width &&
              experts.router.n == routing.experts + (routing.shared == SharedExpert::gated),
          "experts: the router does not fit");
  require(routing.groups >= 1 && routing.experts % routing.groups == 0, "experts: the groups are not of one size");
  require(routing.group_top >= 1 && routing.group_top <= routing.experts / routing.groups,
          "experts: a group's score cannot be the sum of more than it has");
  require(routing.active_groups >= 1 && routing.active_groups <= routing.groups &&
              routing.active <= routing.active_groups * (routing.experts / routing.groups),
          "experts: the groups do not have as many experts as are chosen");
  require(routing.scores != Scores::sparse_mixer || routing.active == 2, "experts: a sparse mixer chooses two");
  require(experts.gated || experts.activation != Activation::clamped_swiglu, "experts: clamped_swiglu needs a gate");
  for (const Expert& expert : experts.experts) {
    require(expert.in.k == from.width && expert.out.n == buffers_.at(out).width &&
                expert.in.n == (experts.gated ? 2 : 1) * expert.out.k,
            "experts: the matrices of an expert do not fit each other and the buffers");
  }
  const Rows domain = from.rows;
  require(routed_by.rows == domain, "experts: the buffers have rows of different kinds");
  require(!accumulate || buffers_.read(out).rows == domain, "experts: cannot accumulate into rows of another kind");
  Buffer& to = buffers_.write(out, domain);
  const Matrix& first = experts.experts[0].in;
  const std::string shape = std::to_string(routing.active) + " of " + std::to_string(routing.experts) + ", " +
                            std::to_string(first.n) + " x " + std::to_string(first.k);
  divisible_ = false;
  const auto run = [=, this, &from, &routed_by, &to, experts = std::move(experts)](const RowPartition& part, Scratch&) {
    run_experts(experts, from.data(), from.stride, routed_by.data(), routed_by.stride, part.rows(domain).count(),
                to.data(), to.stride, accumulate, experts_scratch_);
  };
  push(OperationKind::experts, run, shape);
}

void Recorder::add(int out, int x, float factor) {
  const Buffer& from = buffers_.read(x);
  Buffer& to = buffers_.read(out);
  const Rows domain = from.rows;
  require(to.width == from.width, "add: the buffers differ in width");
  require(to.rows == domain, "add: the buffers have rows of different kinds");
  push(OperationKind::add, [=, &from, &to](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), from.width, [&](long begin, long end) {
      kernels().transform.add(to.row(begin), to.stride, from.row(begin), from.stride, end - begin, from.width, factor);
    });
  });
}

void Recorder::scale(int x, float factor, long offset, long width) {
  Buffer& buffer = buffers_.read(x);
  const Rows domain = buffer.rows;
  require(offset >= 0 && width > 0 && width <= buffer.width - offset, "scale: the columns reach beyond the buffer");
  push(OperationKind::scale, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), width, [&](long begin, long end) {
      kernels().transform.scale(buffer.row(begin) + offset, buffer.stride, end - begin, width, factor);
    });
  });
}

void Recorder::copy_columns(int out, int x, long offset) {
  Buffer& from = buffers_.read(x);
  require_apart(out, x, "copy_columns");
  const Rows domain = from.rows;
  const long width = buffers_.at(out).width;
  require(offset >= 0 && width <= from.width - offset, "copy_columns: the columns reach beyond the buffer");
  Buffer& to = buffers_.write(out, domain);
  push(OperationKind::add, [=, &from, &to](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), width, [&](long begin, long end) {
      for (long row = begin; row < end; ++row) {
        std::memcpy(to.row(row), from.row(row) + offset, static_cast<std::size_t>(width) * sizeof(float));
      }
    });
  });
}

void Recorder::soft_cap(int x, float cap) {
  Buffer& buffer = buffers_.read(x);
  require(cap > 0, "soft_cap: the cap must be positive");
  const Rows domain = buffer.rows;
  push(OperationKind::scale, [=, &buffer](const RowPartition& part, Scratch&) {
    for_rows(part.rows(domain), buffer.width, [&](long begin, long end) {
      kernels().transform.soft_cap(buffer.row(begin), buffer.stride, end - begin, buffer.width, cap);
    });
  });
}

void Recorder::select_rows(int out, int x) {
  const Buffer& from = buffers_.read(x);
  require_tokens(from, "select_rows");
  require_apart(out, x, "select_rows");
  require(buffers_.at(out).width == from.width, "select_rows: the buffers differ in width");
  Buffer& to = buffers_.write(out, Rows::logits);
  push(OperationKind::select_rows, [&from, &to](const RowPartition& part, Scratch&) {
    for_rows(part.logits, from.width, [&](long begin, long end) {
      for (long i = begin; i < end; ++i) {
        std::memcpy(to.row(i), from.row(part.batch().logit_rows[i]),
                    static_cast<std::size_t>(from.width) * sizeof(float));
      }
    });
  });
}

int Recorder::adapt(int out, int x, const Matrix& w) {
  const Buffer& from = buffers_.read(x);
  const Buffer& to = buffers_.read(out);
  require(from.width == w.k && to.width == w.n, "adapt: the buffers are not the product's");
  require(from.rows == to.rows, "adapt: the buffers have rows of different kinds");
  const std::size_t target = adapters_.add_target({.n = w.n, .k = w.k});
  const Rows domain = from.rows;
  push(OperationKind::adapt, [=, this, &from, &to, &w](const RowPartition& part, Scratch&) {
    if (part.batch().adapters == nullptr) return;
    adapters_.apply(target, domain, w, from.data(), from.stride, to.data(), to.stride);
  });
  return static_cast<int>(target);
}

void Recorder::logits(int x) {
  require(buffers_.read(x).rows == Rows::logits,
          "logits: the buffer must have one row per logits row; see select_rows");
  logits_ = x;
  limits_.has_logits = true;
  // Concurrently with the rest of the start: a first prompt of 512 tokens otherwise waits 0.1 s for its memory.
  if (!prefault_thread_.joinable()) prefault_thread_ = std::thread([this] { prefault(); });
}

Logits Recorder::result(long rows) const {
  if (logits_ < 0) return {.data = nullptr, .rows = 0, .vocab = 0, .stride = 0};
  const Buffer& buffer = buffers_.at(logits_);
  return {.data = buffer.data(), .rows = rows, .vocab = buffer.width, .stride = buffer.stride};
}

// Prefaults the memory that a first long prompt writes: the buffers of tokens, and some blocks.
void Recorder::prefault() const {
  buffers_.prefault();
  if (limits_.writes_kv) kv_->touch(kPrefaultBlocks);
}

}  // namespace dragoman
