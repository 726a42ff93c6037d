// Recording: every operation is checked once, here, and becomes a function of the batch.
#include "program/program.h"

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <stdexcept>

#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

// Rows are handed out in chunks of about this many floats: some µs of work.
constexpr long kChunkFloats = 16384;

// Of the KV pool: 2,048 tokens.
constexpr long kTouchedBlocks = 64;

long in_range(long value, long most, const char* name) {
  if (value < 1 || value > most) {
    throw std::invalid_argument(std::string(name) + " must be between 1 and " + std::to_string(most));
  }
  return value;
}

void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

template <class Body>
void for_rows(const Range& rows, long width, Body&& body) {
  pool().parallel_for(rows.count(), std::max(1L, kChunkFloats / width),
                      [&](long begin, long end) { body(rows.begin + begin, rows.begin + end); });
}

}  // namespace

Program::Program(long max_tokens, long max_sequences, long max_logit_rows, std::shared_ptr<KVPool> kv)
    : max_tokens_(in_range(max_tokens, 1 << 20, "max_tokens")),
      max_sequences_(in_range(max_sequences, 1 << 20, "max_sequences")),
      max_logit_rows_(in_range(max_logit_rows, 1 << 20, "max_logit_rows")),
      kv_(std::move(kv)),
      block_written_(static_cast<std::size_t>(kv_->blocks())) {}

Program::~Program() {
  if (toucher_.joinable()) toucher_.join();
}

int Program::buffer(long width, int over) {
  in_range(width, 1 << 24, "width");
  auto buffer = std::make_unique<Buffer>();
  buffer->width = width;
  if (over >= 0) {
    const Buffer& other = at(over);
    require(width <= other.width, "a buffer is wider than the one whose memory it is to have");
    buffer->stride = other.stride;
    buffer->memory = other.memory;
  } else {
    buffer->stride = ((width + 15) / 16 | 1) * 16;  // a power of two would put a tile's rows into the same cache sets
    const std::size_t rows = static_cast<std::size_t>(std::max(max_tokens_, max_logit_rows_));
    const std::size_t bytes = rows * static_cast<std::size_t>(buffer->stride) * sizeof(float);
    buffer->memory = std::make_shared<const AnonymousMemory>(bytes);
  }
  buffers_.push_back(std::move(buffer));
  return static_cast<int>(buffers_.size()) - 1;
}

const Program::Buffer& Program::at(int x) const {
  require(x >= 0 && x < static_cast<int>(buffers_.size()), "there is no buffer " + std::to_string(x));
  return *buffers_[x];
}

Program::Buffer& Program::read(int x) {
  at(x);
  Buffer& buffer = *buffers_[x];
  require(buffer.rows != Rows::unwritten, "buffer " + std::to_string(x) + " is read before it is written");
  return buffer;
}

Program::Buffer& Program::write(int x, Rows rows) {
  const Buffer& written = at(x);
  for (const auto& buffer : buffers_) {
    if (buffer->memory != written.memory) continue;
    // One part's rows for logits could lie where another's rows of tokens are.
    if (buffer->rows != Rows::unwritten && buffer->rows != rows) divisible_ = false;
    buffer->rows = Rows::unwritten;
  }
  buffers_[x]->rows = rows;
  return *buffers_[x];
}

void Program::require_apart(int out, int x, const char* operation) const {
  require(at(out).memory != at(x).memory, std::string(operation) + ": the result cannot replace its own input");
}

void Program::require_tokens(const Buffer& x, const char* operation) const {
  require(x.rows == Rows::tokens, std::string(operation) + " needs one row per token, not per logits row");
}

void Program::embed(int x, const Matrix& table, float scale) {
  require(at(x).width == table.k, "the embedding table does not have the buffer's width");
  vocab_ = std::min(vocab_, table.n);
  embedding_width_ = table.k;
  Buffer& out = write(x, Rows::tokens);
  push(kEmbed, [&out, &table, scale](const Part& part, Scratch&) {
    for_rows(part.tokens, out.width, [&](long begin, long end) {
      gather_rows(table, part.batch->token_ids + begin, end - begin, out.row(begin), out.stride);
      if (scale != 1.0f) kernels().transform.scale(out.row(begin), out.stride, end - begin, out.width, scale);
    });
    const Batch& batch = *part.batch;
    for (long i = 0; i < batch.overrides; ++i) {
      std::memcpy(out.row(batch.override_rows[i]), batch.override_values + i * out.width,
                  static_cast<std::size_t>(out.width) * sizeof(float));
    }
  });
}

void Program::add_positions(int x, const float* table, long positions) {
  Buffer& buffer = read(x);
  require_tokens(buffer, "add_positions");
  positions_ = std::min(positions_, positions);
  push(kEmbed, [&buffer, table](const Part& part, Scratch&) {
    for_rows(part.tokens, buffer.width, [&](long begin, long end) {
      kernels().transform.add_positions(buffer.row(begin), buffer.stride, end - begin, buffer.width, table,
                                        part.batch->positions + begin);
    });
  });
}

void Program::norm(int out, int x, const float* weight, const float* bias, float eps, Norm kind) {
  const Buffer& from = read(x);
  require(at(out).width == from.width, "norm: the buffers differ in width");
  const Rows domain = from.rows;
  Buffer& to = write(out, domain);
  push(kNorm, [=, this, &from, &to](const Part& part, Scratch&) {
    for_rows(rows(domain, part), from.width, [&](long begin, long end) {
      kernels().transform.norm(kind, from.row(begin), from.stride, end - begin, from.width, weight, bias, eps,
                               to.row(begin), to.stride);
    });
  });
}

void Program::linear(int out, int x, const Matrix& w, const float* bias, bool accumulate) {
  const Buffer& from = read(x);
  require_apart(out, x, "linear");
  require(from.width == w.k, "linear: the weight has " + std::to_string(w.k) + " inputs, the buffer is " +
                                 std::to_string(from.width) + " wide");
  require(at(out).width == w.n, "linear: the weight has " + std::to_string(w.n) + " outputs, the buffer is " +
                                    std::to_string(at(out).width) + " wide");
  const Rows domain = from.rows;
  require(!accumulate || read(out).rows == domain, "linear: cannot accumulate into rows of another kind");
  Buffer& to = write(out, domain);
  weights_bytes_ += w.bytes();
  const auto run = [=, this, &from, &to, &w](const Part& part, Scratch& scratch) {
    const Range& these = rows(domain, part);
    dragoman::linear(w, from.row(these.begin), from.stride, these.count(), to.row(these.begin), to.stride, bias,
                     accumulate, scratch);
  };
  push(kLinear, run, std::to_string(w.n) + " x " + std::to_string(w.k));
}

void Program::head_norm(int x, long offset, long heads, long head_dim, const float* weight, const float* bias,
                        long ldweight, float eps, Norm kind) {
  Buffer& buffer = read(x);
  require(offset >= 0 && heads > 0 && head_dim > 0 && offset + heads * head_dim <= buffer.width,
          "head_norm: the heads reach beyond the buffer");
  const Rows domain = buffer.rows;
  push(kNorm, [=, this, &buffer](const Part& part, Scratch&) {
    for_rows(rows(domain, part), heads * head_dim, [&](long begin, long end) {
      kernels().transform.head_norm(kind, buffer.row(begin) + offset, buffer.stride, end - begin, heads, head_dim,
                                    weight, bias, ldweight, eps);
    });
  });
}

void Program::rotate(int x, long offset, long heads, long head_dim, const float* cos, const float* sin, long half,
                     long positions, bool interleaved) {
  Buffer& buffer = read(x);
  require_tokens(buffer, "rotate");
  require(offset >= 0 && heads > 0 && head_dim > 0 && offset + heads * head_dim <= buffer.width,
          "rotate: the heads reach beyond the buffer");
  require(half > 0 && 2 * half <= head_dim, "rotate: the rotary dimension is larger than the head");
  positions_ = std::min(positions_, positions);
  push(kRotate, [=, &buffer](const Part& part, Scratch&) {
    for_rows(part.tokens, heads * head_dim, [&](long begin, long end) {
      kernels().transform.rotate(buffer.row(begin) + offset, buffer.stride, end - begin, heads, head_dim, cos, sin,
                                 half, part.batch->positions + begin, interleaved);
    });
  });
}

void Program::write_kv(int x, long k_offset, long v_offset, long layer) {
  const Buffer& buffer = read(x);
  require_tokens(buffer, "write_kv");
  const long width = kv_->kv_heads() * kv_->head_dim();
  require(k_offset >= 0 && k_offset + width <= buffer.width, "write_kv: the keys reach beyond the buffer");
  require(v_offset >= 0 && v_offset + width <= buffer.width, "write_kv: the values reach beyond the buffer");
  require(layer >= 0 && layer < kv_->layers(), "write_kv: the pool has no layer " + std::to_string(layer));
  writes_kv_ = true;
  push(kWriteKV, [=, this, &buffer, kv = kv_->layer(layer)](const Part& part, Scratch&) {
    dragoman::write_kv(kv, kv_->kv_heads(), buffer.data() + k_offset, buffer.data() + v_offset, buffer.stride,
                       sequences_.data() + part.sequences.begin, part.sequences.count());
  });
}

void Program::require_attention(int out, int x, long q_offset, long heads, long layer, float scale) {
  const Buffer& from = read(x);
  require_tokens(from, "attend");
  const long head_dim = kv_->head_dim();
  require(heads > 0 && heads % kv_->kv_heads() == 0, "attend: heads must be a multiple of the pool's KV heads");
  require(q_offset >= 0 && q_offset + heads * head_dim <= from.width, "attend: the queries reach beyond the buffer");
  require_apart(out, x, "attend");
  require(at(out).width == heads * head_dim, "attend: the result is " + std::to_string(heads * head_dim) + " wide");
  require(layer >= 0 && layer < kv_->layers(), "attend: the pool has no layer " + std::to_string(layer));
  require(scale > 0, "attend: the scale must be positive");
}

void Program::attend(int out, int x, long q_offset, long heads, long layer, float scale, long window,
                     const ScoreTerms& terms, bool causal) {
  require_attention(out, x, q_offset, heads, layer, scale);
  const Buffer& from = read(x);
  require(window >= 0 && window <= INT32_MAX, "attend: a window cannot be negative");
  require(causal || window == 0, "attend: a window goes with causal attention only");
  require(terms.softcap >= 0 && terms.softcap <= FLT_MAX, "attend: the softcap must be a number, not below 0");
  window_ = attends_ && (window_ == 0 || window == 0) ? 0 : std::max(window_, window);
  attends_ = true;
  Buffer& to = write(out, Rows::tokens);
  const Attention attention{.kv = kv_->layer(layer),
                            .kv_heads = kv_->kv_heads(),
                            .q = from.data() + q_offset,
                            .ldq = from.stride,
                            .out = to.data(),
                            .ldout = to.stride,
                            .group = heads / kv_->kv_heads(),
                            .window = window,
                            .scale = scale,
                            .terms = terms,
                            .causal = causal};
  divisible_ = divisible_ && causal;
  push(kAttend, [=, this](const Part& part, Scratch& scratch) {
    dragoman::attend(attention, sequences_.data() + part.sequences.begin, part.sequences.count(), scratch);
  });
}

void Program::cross_attend(int out, int x, long q_offset, long heads, long layer, float scale) {
  require_attention(out, x, q_offset, heads, layer, scale);
  crosses_ = true;
  const Buffer& from = read(x);
  Buffer& to = write(out, Rows::tokens);
  const Attention attention{.kv = kv_->layer(layer),
                            .kv_heads = kv_->kv_heads(),
                            .q = from.data() + q_offset,
                            .ldq = from.stride,
                            .out = to.data(),
                            .ldout = to.stride,
                            .group = heads / kv_->kv_heads(),
                            .window = 0,
                            .scale = scale,
                            .causal = false};
  divisible_ = false;
  push(kAttend, [=, this](const Part&, Scratch& scratch) {
    dragoman::attend(attention, crossed_.data(), static_cast<long>(crossed_.size()), scratch);
  });
}

void Program::gate(int out, int x, Activation activation) {
  const Buffer& from = read(x);
  const Rows domain = from.rows;
  require(from.width == 2 * at(out).width, "gate: the input must be twice as wide as the result");
  Buffer& to = write(out, domain);
  push(kActivation, [=, this, &from, &to](const Part& part, Scratch&) {
    for_rows(rows(domain, part), from.width, [&](long begin, long end) {
      kernels().transform.gate(activation, from.row(begin), from.stride, end - begin, to.width, to.row(begin),
                               to.stride);
    });
  });
}

void Program::activate(int x, Activation activation) {
  Buffer& buffer = read(x);
  const Rows domain = buffer.rows;
  push(kActivation, [=, this, &buffer](const Part& part, Scratch&) {
    for_rows(rows(domain, part), buffer.width, [&](long begin, long end) {
      kernels().transform.activate(activation, buffer.row(begin), buffer.stride, end - begin, buffer.width);
    });
  });
}

void Program::experts(int out, int x, Experts experts, bool accumulate) {
  const Buffer& from = read(x);
  const Routing& routing = experts.routing;
  const long shared = routing.shared != SharedExpert::none;
  require_apart(out, x, "experts");
  require(routing.experts >= 1 && routing.experts <= kMostExperts,
          "experts: there can be 1 to " + std::to_string(kMostExperts));
  require(routing.active >= 1 && routing.active <= routing.experts, "experts: cannot choose more than there are");
  require(static_cast<long>(experts.experts.size()) == routing.experts + shared,
          "experts: there must be matrices for each expert");
  require(experts.router.k == from.width &&
              experts.router.n == routing.experts + (routing.shared == SharedExpert::gated),
          "experts: the router does not fit");
  for (const Expert& expert : experts.experts) {
    require(expert.in.k == from.width && expert.out.n == at(out).width &&
                expert.in.n == (experts.gated ? 2 : 1) * expert.out.k,
            "experts: the matrices of an expert do not fit each other and the buffers");
  }
  const Rows domain = from.rows;
  require(!accumulate || read(out).rows == domain, "experts: cannot accumulate into rows of another kind");
  Buffer& to = write(out, domain);
  const Matrix& first = experts.experts[0].in;
  const std::string shape = std::to_string(routing.active) + " of " + std::to_string(routing.experts) + ", " +
                            std::to_string(first.n) + " x " + std::to_string(first.k);
  divisible_ = false;
  const auto run = [=, this, &from, &to, experts = std::move(experts)](const Part& part, Scratch&) {
    run_experts(experts, from.data(), from.stride, rows(domain, part).count(), to.data(), to.stride, accumulate,
                experts_scratch_);
  };
  push(kExperts, run, shape);
}

void Program::add(int out, int x, float factor) {
  const Buffer& from = read(x);
  Buffer& to = read(out);
  const Rows domain = from.rows;
  require(to.width == from.width, "add: the buffers differ in width");
  require(to.rows == domain, "add: the buffers have rows of different kinds");
  push(kAdd, [=, this, &from, &to](const Part& part, Scratch&) {
    for_rows(rows(domain, part), from.width, [&](long begin, long end) {
      kernels().transform.add(to.row(begin), to.stride, from.row(begin), from.stride, end - begin, from.width, factor);
    });
  });
}

void Program::scale(int x, float factor) {
  Buffer& buffer = read(x);
  const Rows domain = buffer.rows;
  push(kScale, [=, this, &buffer](const Part& part, Scratch&) {
    for_rows(rows(domain, part), buffer.width, [&](long begin, long end) {
      kernels().transform.scale(buffer.row(begin), buffer.stride, end - begin, buffer.width, factor);
    });
  });
}

void Program::soft_cap(int x, float cap) {
  Buffer& buffer = read(x);
  require(cap > 0, "soft_cap: the cap must be positive");
  const Rows domain = buffer.rows;
  push(kScale, [=, this, &buffer](const Part& part, Scratch&) {
    for_rows(rows(domain, part), buffer.width, [&](long begin, long end) {
      kernels().transform.soft_cap(buffer.row(begin), buffer.stride, end - begin, buffer.width, cap);
    });
  });
}

void Program::select_rows(int out, int x) {
  const Buffer& from = read(x);
  require_tokens(from, "select_rows");
  require_apart(out, x, "select_rows");
  require(at(out).width == from.width, "select_rows: the buffers differ in width");
  Buffer& to = write(out, Rows::logits);
  push(kSelect, [&from, &to](const Part& part, Scratch&) {
    for_rows(part.logits, from.width, [&](long begin, long end) {
      for (long i = begin; i < end; ++i) {
        std::memcpy(to.row(i), from.row(part.batch->logit_rows[i]), static_cast<std::size_t>(from.width) * sizeof(float));
      }
    });
  });
}

void Program::logits(int x) {
  require(read(x).rows == Rows::logits, "logits: the buffer must have one row per logits row; see select_rows");
  logits_ = x;
  // While the rest of the start goes on: a first prompt of 512 tokens else waits 0.1 s for its memory.
  if (!toucher_.joinable()) toucher_ = std::thread([this] { touch_memory(); });
}

// What a first long prompt writes: the buffers of tokens, and some blocks.
void Program::touch_memory() const {
  for (const auto& buffer : buffers_) {
    if (buffer->rows == Rows::tokens) buffer->memory->touch(buffer->memory->size());
  }
  if (writes_kv_) kv_->touch(kTouchedBlocks);
}

}  // namespace dragoman
