// A decoder as a list of operations over float32 buffers: recorded once, run once per step.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "memory/anonymous_memory.h"
#include "attention/attention.h"
#include "layers/experts.h"
#include "attention/kv_pool.h"
#include "gemm/linear.h"
#include "layers/lora.h"
#include "layers/transform.h"

namespace dragoman {

// One flat batch: the rows of all sequences one after the other.
struct Batch {
  const std::int32_t* token_ids;     // [tokens]
  const std::int32_t* positions;     // [tokens]
  long tokens;
  const std::int32_t* row_starts;    // [sequences + 1]
  long sequences;
  const std::int32_t* block_tables;  // [sequences, table_width]
  long table_width;
  const std::int32_t* logit_rows;    // [logits], ascending
  long logits;
  // Rows whose embedding is given instead of looked up: row override_rows[i] gets override_values[i, :].
  const std::int32_t* override_rows = nullptr;
  const float* override_values = nullptr;
  long overrides = 0;
  long override_width = 0;
  const std::int32_t* adapters = nullptr;  // [sequences]: the slot of each one's adapter, or -1; null: none has any
  // For cross-attention: where the text lies that each sequence looks at, and how many positions it has.
  const std::int32_t* cross_tables = nullptr;   // [sequences, cross_width]
  const std::int32_t* cross_lengths = nullptr;  // [sequences]
  long cross_width = 0;
};

// From the one to before the other.
struct Range {
  long begin, end;

  long count() const { return end - begin; }
};

// What goes through all operations together: a batch, or some of its neighbouring rows.
struct Part {
  const Batch* batch;
  Range tokens, logits;  // which rows of the buffers
  Range sequences;       // which of Program::sequences_
  std::size_t waits_for; // the first part with rows of the sequence that this one begins with; itself, if it has them all
};

// What an adapter does to each product of a program that can be changed, in the order of their recording; null: nothing.
struct Adapter {
  AnonymousMemory memory;  // of all changes, one after the other in huge pages
  std::vector<std::unique_ptr<const LowRank>> changes;
};

constexpr long kMostAdapters = 1024;

struct Logits {
  const float* data;
  long rows;
  long vocab;
  long stride;
};

// Recording throws std::invalid_argument on anything that could not run: an unknown buffer, widths that do not fit, a
// buffer read before it is written, rows of different kinds. Weights, tables and vectors are borrowed: whoever records
// them keeps them alive.
class Program {
 public:
  Program(long max_tokens, long max_sequences, long max_logit_rows, std::shared_ptr<KVPool> kv);
  ~Program();

  // A new buffer [rows, width]; `over` (or -1): in the memory of another that is at least as wide, row r where its row r
  // is, for values that are not needed at the same time. Writing one of them ends what the others hold.
  int buffer(long width, int over = -1);
  void embed(int x, const Matrix& table, float scale);
  void add_positions(int x, const float* table, long positions);
  void norm(int out, int x, const float* weight, const float* bias, float eps, Norm kind);
  void linear(int out, int x, const Matrix& w, const float* bias, bool accumulate);
  void head_norm(int x, long offset, long heads, long head_dim, const float* weight, const float* bias, long ldweight,
                 float eps, Norm kind);
  void rotate(int x, long offset, long heads, long head_dim, const float* cos, const float* sin, long half,
              long positions, bool interleaved);
  void write_kv(int x, long k_offset, long v_offset, long layer);
  void attend(int out, int x, long q_offset, long heads, long layer, float scale, long window, const ScoreTerms& terms,
              bool causal);
  void cross_attend(int out, int x, long q_offset, long heads, long layer, float scale);
  void gate(int out, int x, Activation activation);
  void activate(int x, Activation activation);
  // The network's matrices are borrowed too.
  void experts(int out, int x, Experts experts, bool accumulate);
  void add(int out, int x, float factor);
  void scale(int x, float factor);
  void soft_cap(int x, float cap);
  void select_rows(int out, int x);
  void logits(int x);
  // Behind a product out (+)= x · Wᵀ: rows of an adapter that changes it get their change. Returns the product's number.
  int adapt(int out, int x, const Matrix& w);

  // Width of a buffer, for the bindings to check the vectors they are given.
  long width(int x) const { return at(x).width; }

  // Runs all operations on the batch. Throws std::invalid_argument, before anything is touched, on a batch that does not
  // fit: see check(). The result is valid until the next run.
  Logits run(const Batch& batch);

  // What the rows of a slot's sequences get from now on, by product, null where it is nothing; copied. From any thread:
  // it waits for a run to end. Throws std::invalid_argument on changes that do not fit their products.
  void set_adapter(long slot, const std::vector<std::shared_ptr<LowRank>>& changes);
  void remove_adapter(long slot);

  struct Timing {
    std::string operation;
    long calls;
    double seconds;
  };
  // Time spent since the last call by kind of operation, matrix products also by shape ("linear 3072 x 2048") if wanted.
  std::vector<Timing> profile(bool by_shape);

 private:
  enum class Rows : std::uint8_t { unwritten, tokens, logits };
  enum Kind {
    kEmbed, kNorm, kLinear, kRotate, kWriteKV, kAttend, kActivation, kExperts, kAdapt, kAdd, kScale, kSelect, kKinds
  };

  struct Buffer {
    long width;
    long stride;  // floats between rows: rows start on cache lines
    Rows rows = Rows::unwritten;
    std::shared_ptr<const AnonymousMemory> memory;

    float* data() const { return reinterpret_cast<float*>(memory->data()); }
    float* row(long r) const { return data() + r * stride; }
  };

  struct Operation {
    Kind kind;
    std::string shape;  // of a matrix, else empty
    std::function<void(const Part&, Scratch&)> run;
    long calls = 0;
    double seconds = 0;
  };

  // How many operations a part has behind it. On a line of its own, for other parts look at it.
  struct alignas(64) Progress {
    std::atomic<std::size_t> operations{0};
  };

  struct Site {
    long n, k;  // of the product
  };
  struct AdapterRows {
    long slot, begin, end;
  };

  const Buffer& at(int x) const;
  Buffer& read(int x);
  Buffer& write(int x, Rows rows);
  void require_tokens(const Buffer& x, const char* operation) const;
  void require_apart(int out, int x, const char* operation) const;
  const Range& rows(Rows kind, const Part& part) const { return kind == Rows::tokens ? part.tokens : part.logits; }
  void push(Kind kind, std::function<void(const Part&, Scratch&)> run, std::string shape = {}) {
    operations_.push_back({kind, std::move(shape), std::move(run)});
  }
  void check(const Batch& batch);
  void check_sequence(const Batch& batch, long sequence);
  void find_adapter_rows(const Batch& batch);
  void check_cross(const Batch& batch, long sequence);
  void require_attention(int out, int x, long q_offset, long heads, long layer, float scale);
  void touch_memory() const;
  void run_together(const Batch& batch);
  long rows_of_part(const Batch& batch) const;
  void divide(const Batch& batch, long rows);
  void run_parts();
  void run_part(std::size_t part, Scratch& scratch);

  const long max_tokens_, max_sequences_, max_logit_rows_;
  const std::shared_ptr<KVPool> kv_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<Operation> operations_;
  int logits_ = -1;
  long vocab_ = INT32_MAX;      // smallest of the embedding tables
  long embedding_width_ = 0;
  long positions_ = INT32_MAX;  // smallest of the position tables
  long window_ = 0;             // positions that have to be in blocks: the largest window, or 0 for all
  bool attends_ = false, writes_kv_ = false, crosses_ = false;
  bool divisible_ = true;          // no operation needs all rows of a batch at once
  std::size_t weights_bytes_ = 0;  // that a row is multiplied with

  std::mutex running_;
  Scratch scratch_;
  ExpertsScratch experts_scratch_;
  LoraScratch lora_scratch_;
  std::vector<Site> sites_;
  std::vector<std::unique_ptr<const Adapter>> adapters_;              // by slot
  std::vector<AdapterRows> token_adapters_, logit_adapters_;          // of the batch that runs
  std::vector<LowRankRows> changed_;                                  // of the product that runs
  std::vector<Attention::Sequence> sequences_;
  std::vector<Attention::Sequence> crossed_;  // the texts that these look at by cross-attention
  std::vector<Part> parts_;                   // of a batch that is divided
  std::deque<Progress> progress_;             // of each of them
  std::vector<double> seconds_;               // [parts, operations]
  std::vector<std::uint64_t> block_written_;  // by block: the last step that wrote it
  std::uint64_t step_ = 0;
  std::thread toucher_;
};

}  // namespace dragoman
