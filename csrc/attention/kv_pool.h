// The pool of KV blocks: keys and values of 32 tokens each, for every layer and KV head.
//
// Layout of a group: [block][layer][kv head][keys, then values]: few blocks in use touch few pages. Layers may differ
// in their heads. With D the head dimension padded to 16:
//
//   float32    keys [D][32]          values [32][D]
//   bfloat16   keys [D/2][32][2]     values [16][D][2]
//   int8       keys [D/2][32][2]     values [16][D][2]     each followed by bfloat16 scales [D/32, rounded up][32]
//   int4       keys [D/8][32][8]     values [4][D][8]      the same, and after both [D/32, rounded up][32] of int8
//
// Keys run over tokens so that the scores of a block need no horizontal sum; values run over the head dimension. In
// bfloat16 and int8 the innermost two are neighbours in the dimension that is summed, as VDPBF16PS and VPDPWSSD want
// them. In int8 32 neighbours of a token's head share a scale: a few dimensions of keys are often much larger than the
// others, and should not cost all of them their precision. In int4 eight neighbours in the dimension that is summed are
// a word of 32 bits, in the order 0, 2, 4, 6, 1, 3, 5, 7; what follows the values is the block's origin (int4.inl).
//
// Layers of one group share blocks, and each group has separate ones: layers that see a window of positions need fewer
// of them than layers that see all.
//
// A pool in int4 may have a further group, of all layers, in bfloat16: of own blocks. A token's own block is the one
// that its position is in; the nearest tokens weigh most, so it is read in bfloat16, and all before it in int4.
//
// In a latent pool (multi-head latent attention) the first numbers of a token's key are its value, so there are keys
// only; a tile of queries turns the layout of a step's keys into that of values (attention/turn.inl).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/anonymous_memory.h"

namespace dragoman {

constexpr long kBlockTokens = 32;
constexpr long kMaxHeadDim = 1024;

constexpr long kKVGroup = 32;  // int8 or int4 numbers that share a scale

constexpr long kv_groups(long padded_dim) { return (padded_dim + kKVGroup - 1) / kKVGroup; }

enum class KVPrecision : std::uint8_t { float32, bfloat16, int8, int4 };

// Addresses of the blocks of one layer.
struct KVLayer {
  std::uint8_t* data;
  std::size_t block_bytes;  // from one block to the next, all layers of the group
  std::size_t head_bytes;   // from one KV head to the next
  std::size_t key_bytes;    // the keys, which come first; all of a head where `latent`
  long head_dim;
  long padded_dim;
  long value_dim;
  long padded_value_dim;
  bool latent;  // the first value_dim numbers of a key, a multiple of 32, are the value
  KVPrecision precision;
  long kv_heads;
  long group;  // of blocks

  std::uint8_t* keys(long block, long head) const { return data + block * block_bytes + head * head_bytes; }
  std::uint8_t* values(long block, long head) const { return keys(block, head) + key_bytes; }
};

// Heads of one layer.
struct KVHeads {
  long count, dim;
  long group = 0;  // the layer's
};

class KVPool {
 public:
  // heads: of each layer; no layers: blocks that hold nothing. blocks: of each group. latent: the first numbers of a
  // key that are the value; 0: values are kept beside keys. own_blocks: of the group of own blocks, which is the last;
  // 0: there is none. Throws std::invalid_argument on any other size below 1 or above the limits, on a layer of no
  // group, on latent keys in int4, and on own blocks in other precisions.
  KVPool(std::vector<KVHeads> heads, const std::vector<long>& blocks, KVPrecision precision, long latent = 0,
         long own_blocks = 0);
  KVPool(const KVPool&) = delete;
  KVPool& operator=(const KVPool&) = delete;

  long layers() const { return static_cast<long>(heads_.size()); }
  long groups() const { return static_cast<long>(groups_.size()); }
  long blocks(long group) const { return groups_[group].blocks; }
  long value_dim(long layer) const { return latent_ > 0 ? latent_ : heads_[layer].dim; }
  long latent() const { return latent_; }
  KVPrecision precision() const { return precision_; }
  std::uint8_t* data(long group) const { return groups_[group].memory.data(); }
  std::size_t nbytes(long group) const { return groups_[group].memory.size(); }
  std::size_t bytes_per_block(long group) const { return groups_[group].bytes_per_block; }

  KVLayer layer(long layer) const;

  // The layer's own blocks; none where the pool has no such group.
  std::optional<KVLayer> own_layer(long layer) const;

  // Lets the system provide the memory of the first `blocks` of each group now instead of at first touch.
  void touch(long blocks) const;

  // Copies block sources[i] to targets[i] in all layers of a group, in ascending order of i. Throws
  // std::invalid_argument, before anything is copied, when a block is not in the pool.
  void copy_blocks(long group, const std::int32_t* sources, const std::int32_t* targets, long count);

 private:
  struct Group {
    long blocks;
    KVPrecision precision;
    std::size_t bytes_per_block = 0;
    AnonymousMemory memory = {};
  };

  // Of a layer in blocks of a precision.
  std::size_t layer_bytes(long layer, KVPrecision precision) const {
    return head_bytes(layer, precision) * heads_[layer].count;
  }
  std::size_t head_bytes(long layer, KVPrecision precision) const;
  std::size_t key_bytes(long layer, KVPrecision precision) const;
  KVLayer layer_in(long layer, long index, std::size_t offset) const;

  std::vector<KVHeads> heads_;
  long latent_;
  KVPrecision precision_;
  std::vector<Group> groups_;
  std::vector<std::size_t> offsets_, own_offsets_;  // of each layer in a block of its group, and in an own block
};

}  // namespace dragoman
