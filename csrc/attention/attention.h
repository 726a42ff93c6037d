// Attention over the blocks of a KV pool, with online softmax.
//
// What is computed for one query (one head of one row) is fixed, so that neither the other rows of the batch, nor the
// chunking of the prompt, nor the number of threads can change a bit of it. Positions fall into KV splits of 512, steps
// of 128 and blocks of 32, all counted from position 0. Within a split: for each step in ascending order, the scores of
// all its visible tokens, their maximum m, the running state rescaled by exp(m_old − m), then exp(score − m) · value
// added to it over ascending tokens. The splits' states are then merged in ascending order. Tokens that the query does
// not see are not touched arithmetically: the contents of their slots (old contents, even NaN) have no influence.
//
// Where a layer has own blocks (kv_pool.h), a query reads the positions before its own block in the pool's precision,
// and those from its own block's first on in that of the own blocks. Each of the two parts has splits as above; those
// of the second are merged after those of the first.
#pragma once

#include <cstdint>
#include <optional>

#include "attention/kv_pool.h"
#include "gemm/linear.h"

namespace dragoman {

constexpr long kKVSplitTokens = 512;  // a KV split
constexpr long kStepTokens = 128;
constexpr long kStepBlocks = kStepTokens / kBlockTokens;
constexpr long kTileQueries = 32;

// Changes of a scaled score, in this order. Pointers are borrowed; heads are query heads.
struct ScoreTerms {
  float softcap = 0;              // cap · tanh(score / cap); 0: as it is
  const float* slopes = nullptr;  // [heads]: + slope · (key position − query position)
  const float* bias = nullptr;    // [heads][2 · reach + 1]: + the entry of key position − query position, −reach first;
  long reach = 0;                 // distances beyond it have the entry at the end
  const float* sinks = nullptr;   // [heads]: a score that takes part in the softmax and weighs no value

  bool any() const { return softcap > 0 || slopes != nullptr || bias != nullptr; }
};

// The positions that a tile covers: all that its queries see, or those before or from their own block, the same for
// all.
enum class AttentionPart : std::uint8_t { whole, before_own, from_own };

// Up to 32 queries of one sequence that share a KV head. Queries are numbered row · group + head, `group` being the
// number of query heads per KV head: query n is q[(n / group) · ldq + (n % group) · head_dim], at
// `position` + n / group; its result has value_dim numbers.
struct AttentionTile {
  const KVLayer* kv;
  const std::int32_t* blocks;  // the sequence's block table
  long kv_head;
  const float* q;
  long ldq;
  float* out;
  long ldout;
  long group;
  long first;     // number of the tile's first query
  long count;     // queries in the tile, 1 to 32
  long position;  // of row 0
  long length;    // all queries see the positions before this one; 0: each sees those up to its own, or as `ends` says
  long window;    // positions seen to each visible side, the query's own included; 0: all
  long chunk;     // positions fall into chunks of this size, of which a query sees its own only; 0: there are none
  float scale;
  ScoreTerms terms;                    // its pointers begin at the tile's first query head
  const std::int32_t* ends = nullptr;  // of each row the position before which it sees all, ascending; null: its own
  AttentionPart part = AttentionPart::whole;

  // Positions of the part that the queries of a row see: from first_seen to before seen_end.
  long seen_end(long row) const {
    const long end = whole_end(row), own = own_begin(row);
    return part == AttentionPart::before_own && end > own ? own : end;
  }
  long last_position() const { return seen_end((first + count - 1) / group) - 1; }
  long first_seen(long row) const {
    const long begin = whole_begin(row), own = own_begin(row);
    return part == AttentionPart::from_own && begin < own ? own : begin;
  }
  long first_position() const { return first_seen(first / group); }
  bool sees_none() const { return last_position() < first_position(); }
  long first_split() const { return first_position() / kKVSplitTokens; }
  long last_split() const { return last_position() / kKVSplitTokens; }

 private:
  long own_begin(long row) const { return (position + row) / kBlockTokens * kBlockTokens; }
  long whole_end(long row) const {
    if (length == 0) return ends == nullptr ? position + row + 1 : ends[row];
    return window == 0 || position + row + window > length ? length : position + row + window;
  }
  long whole_begin(long row) const {
    if (chunk > 0) return (position + row) / chunk * chunk;
    const long seen = position + row - window + 1;
    return window == 0 || seen < 0 ? 0 : seen;
  }
};

// One split of a tile.
struct AttentionPiece {
  const AttentionTile* tile;
  long split;
  const AttentionPiece* following = nullptr;  // the piece this thread is expected to compute next, to be prefetched

  // Range of the sequence's blocks that it reads.
  long first_block() const {
    const long seen = tile->first_position(), begin = split * kKVSplitTokens;
    return (seen > begin ? seen : begin) / kBlockTokens;
  }
  long blocks_end() const {
    const long last = tile->last_position(), end = (split + 1) * kKVSplitTokens;
    return (last + 1 < end ? last : end - 1) / kBlockTokens + 1;
  }
};

// The state of one query over some positions, as floats: sum of exp(score − m) · value [padded_value_dim], 16 partial
// sums of exp(score − m), m / ln 2, and padding to a multiple of 16.
constexpr long state_floats(long padded_value_dim) { return padded_value_dim + 32; }

// Queries, scores and weights of a tile, and the values of a step where they are turned keys. In int8 there is a set of
// weights for every 32 dimensions, and a scale.
inline long tile_floats(const KVLayer& kv) {
  const long sets = kv_groups(kv.padded_value_dim), turned = kv.latent ? kStepTokens * kv.padded_value_dim : 0;
  return kTileQueries * (kv.padded_dim + kStepTokens + sets * (kStepTokens / 2 + 1) + kStepTokens) + turned;
}

struct AttentionKernels {
  // Writes `count` tokens of one head into block `block` at slots slot, slot + 1, …; token i has its key at k + i·ld. A
  // latent pool has no use for v.
  void (*write)(const KVLayer& kv, long block, long head, long slot, long count, const float* k, const float* v,
                long ld);

  // The states of the piece's queries, [count][state_floats]. workspace: tile_floats(kv) floats.
  void (*attend_split)(const AttentionPiece& piece, float* states, float* workspace);

  // total = total merged with states of the following split.
  void (*merge)(long padded_value_dim, long count, float* total, const float* states);

  // out = the weighted mean of the values that the states represent.
  void (*finish)(const AttentionTile& tile, const float* total);
};

// One attention layer of a step.
struct Attention {
  struct Sequence {
    long row;  // first row in q and out
    long rows;
    long position;                       // of the first row; the others follow
    const std::int32_t* blocks;          // block table of the first group of layers
    long length;                         // positions in the blocks, those of these rows included
    long table_stride = 0;               // from the table of one group to that of the next
    const std::int32_t* ends = nullptr;  // of each row, as in AttentionTile

    const std::int32_t* blocks_of(long group) const { return blocks + group * table_stride; }
  };

  KVLayer kv;
  std::optional<KVLayer> own = {};  // the layer's own blocks; none: all is read in kv
  long kv_heads;
  const float* q;  // first query head of row 0
  long ldq;
  float* out;
  long ldout;
  long group;
  long window;
  float scale;
  ScoreTerms terms = {};
  long chunk = 0;
  bool both_ways = true;  // where the sequences have ends
  bool causal = true;     // a row sees up to its own position; otherwise the sequence's whole length
};

// Work is divided by sequence, KV head and tile; where that gives too few pieces, also by split.
void attend(const Attention& attention, const Attention::Sequence* sequences, long count, Scratch& scratch);

// k and v: first KV head of row 0.
void write_kv(const KVLayer& kv, long kv_heads, const float* k, const float* v, long ld,
              const Attention::Sequence* sequences, long count);

}  // namespace dragoman
