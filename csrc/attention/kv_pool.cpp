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

KVPool::KVPool(std::vector<KVHeads> heads, const std::vector<long>& blocks, KVPrecision precision, long latent,
               long own_blocks)
    : heads_(std::move(heads)), latent_(latent), precision_(precision) {
  in_range(layers(), 4096, "layers", 0);
  if (latent > 0 && precision == KVPrecision::int4) {
    throw std::invalid_argument("the keys of latent attention cannot be kept in int4");
  }
  if (in_range(own_blocks, 1L << 30, "own_blocks", 0) > 0 && precision != KVPrecision::int4) {
    throw std::invalid_argument("only a pool in int4 has own blocks");
  }
  in_range(static_cast<long>(blocks.size()), 64, "groups");
  for (const long count : blocks) {
    groups_.push_back({.blocks = in_range(count, 1L << 30, "blocks"), .precision = precision});
  }
  for (const KVHeads& each : heads_) {
    in_range(each.count, 4096, "kv_heads");
    in_range(each.dim, kMaxHeadDim, "head_dim");
    if (latent < 0 || latent > each.dim || latent % kKVGroup != 0) {
      throw std::invalid_argument("latent must be a multiple of " + std::to_string(kKVGroup) + " up to head_dim");
    }
    Group& group = groups_[in_range(each.group, groups() - 1, "a layer's group", 0)];
    offsets_.push_back(group.bytes_per_block);
    group.bytes_per_block += layer_bytes(static_cast<long>(offsets_.size()) - 1, precision);
  }
  if (own_blocks > 0) {
    Group& own = groups_.emplace_back(Group{.blocks = own_blocks, .precision = KVPrecision::bfloat16});
    for (long l = 0; l < layers(); ++l) {
      own_offsets_.push_back(own.bytes_per_block);
      own.bytes_per_block += layer_bytes(l, own.precision);
    }
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

std::size_t KVPool::key_bytes(long layer, KVPrecision precision) const {
  const std::size_t dim = padded(heads_[layer].dim);
  switch (precision) {
    case KVPrecision::float32: return kBlockTokens * dim * 4;
    case KVPrecision::bfloat16: return kBlockTokens * dim * 2;
    case KVPrecision::int8: return kBlockTokens * (dim + 2 * kv_groups(dim));
    case KVPrecision::int4: return kBlockTokens * (dim / 2 + 2 * kv_groups(dim));
  }
  return 0;
}

std::size_t KVPool::head_bytes(long layer, KVPrecision precision) const {
  const std::size_t origin = precision == KVPrecision::int4 ? kKVGroup * kv_groups(padded(heads_[layer].dim)) : 0;
  return (latent_ > 0 ? 1 : 2) * key_bytes(layer, precision) + origin;
}

KVLayer KVPool::layer(long layer) const { return layer_in(layer, heads_[layer].group, offsets_[layer]); }

std::optional<KVLayer> KVPool::own_layer(long layer) const {
  if (own_offsets_.empty()) return std::nullopt;
  return layer_in(layer, groups() - 1, own_offsets_[layer]);
}

KVLayer KVPool::layer_in(long layer, long index, std::size_t offset) const {
  const Group& group = groups_[index];
  return {.data = group.memory.data() + offset,
          .block_bytes = group.bytes_per_block,
          .head_bytes = head_bytes(layer, group.precision),
          .key_bytes = key_bytes(layer, group.precision),
          .head_dim = heads_[layer].dim,
          .padded_dim = padded(heads_[layer].dim),
          .value_dim = value_dim(layer),
          .padded_value_dim = padded(value_dim(layer)),
          .latent = latent_ > 0,
          .precision = group.precision,
          .kv_heads = heads_[layer].count,
          .group = index};
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
      const bool own = !own_offsets_.empty() && group == groups() - 1;
      if (!own && heads_[l].group != group) continue;
      const KVLayer layer = own ? *own_layer(l) : this->layer(l);
      for (long i = 0; i < count; ++i) {
        std::memmove(layer.keys(targets[i], 0), layer.keys(sources[i], 0), layer_bytes(l, layer.precision));
      }
    }
  });
}

}  // namespace dragoman
