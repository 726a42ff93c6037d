#include "attention/kv_pool.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "thread_pool.h"

namespace dragoman {
namespace {

long in_range(long value, long most, const char* name, long least = 1) {
  if (value < least || value > most) {
    throw std::invalid_argument(std::string(name) + " must be between " + std::to_string(least) + " and " +
                                std::to_string(most));
  }
  return value;
}

long padded(long head_dim) { return (head_dim + 15) / 16 * 16; }

}  // namespace

KVPool::KVPool(std::vector<KVHeads> heads, const std::vector<long>& blocks, KVPrecision precision, long latent)
    : heads_(std::move(heads)), latent_(latent), precision_(precision) {
  in_range(layers(), 4096, "layers", 0);
  if (latent > 0 && precision == KVPrecision::int4) {
    throw std::invalid_argument("the keys of latent attention cannot be kept in int4");
  }
  in_range(static_cast<long>(blocks.size()), 64, "groups");
  for (const long count : blocks) groups_.push_back({.blocks = in_range(count, 1L << 30, "blocks")});
  for (const KVHeads& each : heads_) {
    in_range(each.count, 4096, "kv_heads");
    in_range(each.dim, kMaxHeadDim, "head_dim");
    if (latent < 0 || latent > each.dim || latent % kKVGroup != 0) {
      throw std::invalid_argument("latent must be a multiple of " + std::to_string(kKVGroup) + " up to head_dim");
    }
    Group& group = groups_[in_range(each.group, groups() - 1, "a layer's group", 0)];
    offsets_.push_back(group.bytes_per_block);
    group.bytes_per_block += layer_bytes(static_cast<long>(offsets_.size()) - 1);
  }
  for (Group& group : groups_) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(group.bytes_per_block, static_cast<std::size_t>(group.blocks), &bytes) ||
        bytes > (1ULL << 46)) {
      throw std::invalid_argument("a KV pool of that size cannot exist");
    }
    group.memory = AnonymousMemory(bytes);
  }
}

std::size_t KVPool::key_bytes(long layer) const {
  const std::size_t dim = padded(heads_[layer].dim);
  switch (precision_) {
    case KVPrecision::float32: return kBlockTokens * dim * 4;
    case KVPrecision::bfloat16: return kBlockTokens * dim * 2;
    case KVPrecision::int8: return kBlockTokens * (dim + 2 * kv_groups(dim));
    case KVPrecision::int4: return kBlockTokens * (dim / 2 + 2 * kv_groups(dim));
  }
  return 0;
}

std::size_t KVPool::head_bytes(long layer) const {
  const std::size_t origin = precision_ == KVPrecision::int4 ? kKVGroup * kv_groups(padded(heads_[layer].dim)) : 0;
  return (latent_ > 0 ? 1 : 2) * key_bytes(layer) + origin;
}

KVLayer KVPool::layer(long layer) const {
  const Group& group = groups_[heads_[layer].group];
  return {.data = group.memory.data() + offsets_[layer],
          .block_bytes = group.bytes_per_block,
          .head_bytes = head_bytes(layer),
          .key_bytes = key_bytes(layer),
          .head_dim = heads_[layer].dim,
          .padded_dim = padded(heads_[layer].dim),
          .value_dim = value_dim(layer),
          .padded_value_dim = padded(value_dim(layer)),
          .latent = latent_ > 0,
          .precision = precision_,
          .kv_heads = heads_[layer].count,
          .group = heads_[layer].group};
}

void KVPool::touch(long blocks) const {
  for (const Group& group : groups_) group.memory.touch(static_cast<std::size_t>(blocks) * group.bytes_per_block);
}

void KVPool::copy_blocks(long group, const std::int32_t* sources, const std::int32_t* targets, long count) {
  const long present = blocks(in_range(group, groups() - 1, "group", 0));
  for (long i = 0; i < count; ++i) {
    for (const std::int32_t block : {sources[i], targets[i]}) {
      if (block < 0 || block >= present) {
        throw std::invalid_argument("block " + std::to_string(block) + " is not in a pool of " +
                                    std::to_string(present));
      }
    }
  }
  // Layers are independent; within one, the order of the copies is kept (a target may be a later copy's source).
  pool().parallel_for(layers(), 1, [&](long begin, long end) {
    for (long l = begin; l < end; ++l) {
      if (heads_[l].group != group) continue;
      const KVLayer layer = this->layer(l);
      for (long i = 0; i < count; ++i) {
        std::memmove(layer.keys(targets[i], 0), layer.keys(sources[i], 0), layer_bytes(l));
      }
    }
  });
}

}  // namespace dragoman
