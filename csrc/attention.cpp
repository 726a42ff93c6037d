// Divides attention and KV writes into pieces for the thread pool.
#include "attention.h"

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

// A chunk of work is at least this many (query, position) pairs, some 10 µs: much less than that and handing it out costs
// more than doing it.
constexpr long kChunkPairs = 4096;

ScoreTerms terms_from(ScoreTerms terms, long head) {
  if (terms.slopes != nullptr) terms.slopes += head;
  if (terms.bias != nullptr) terms.bias += head * (2 * terms.reach + 1);
  return terms;
}

std::vector<AttentionTile> tiles_of(const Attention& a, const Attention::Sequence* sequences, long count) {
  std::vector<AttentionTile> tiles;
  for (long s = 0; s < count; ++s) {
    const Attention::Sequence& sequence = sequences[s];
    const long queries = sequence.rows * a.group;
    for (long head = 0; head < a.kv_heads; ++head) {
      const long column = head * a.group * a.kv.head_dim;
      // The longest first, so that no thread is left with one at the end.
      for (long first = (queries - 1) / kTileQueries * kTileQueries; first >= 0; first -= kTileQueries) {
        tiles.push_back({.kv = &a.kv,
                         .blocks = sequence.blocks,
                         .kv_head = head,
                         .q = a.q + sequence.row * a.ldq + column,
                         .ldq = a.ldq,
                         .out = a.out + sequence.row * a.ldout + column,
                         .ldout = a.ldout,
                         .group = a.group,
                         .first = first,
                         .count = std::min(kTileQueries, queries - first),
                         .position = sequence.position,
                         .length = a.causal ? 0 : sequence.length,
                         .window = a.window,
                         .scale = a.scale,
                         .terms = terms_from(a.terms, head * a.group)});
      }
    }
  }
  for (std::size_t i = 0; i + 1 < tiles.size(); ++i) tiles[i].following = &tiles[i + 1];
  return tiles;
}

long pairs(const AttentionTile& tile) { return tile.count * (tile.last_position() - tile.first_seen(tile.first) + 1); }

// Memory of the thread that asks, for its current tile.
float* tile_memory(long floats) {
  thread_local Scratch scratch;
  return reinterpret_cast<float*>(scratch.get(static_cast<std::size_t>(floats) * sizeof(float)));
}

void attend_tile(const AttentionTile& tile) {
  const AttentionKernels& kernel = kernels().attention;
  const long dim = tile.kv->padded_dim, states = kTileQueries * state_floats(dim);
  float* const total = tile_memory(2 * states + tile_floats(dim));
  float* const part = total + states;
  float* const workspace = part + states;
  kernel.attend_span(tile, tile.first_span(), total, workspace);
  for (long span = tile.first_span() + 1; span <= tile.last_span(); ++span) {
    kernel.attend_span(tile, span, part, workspace);
    kernel.merge(dim, tile.count, total, part);
  }
  kernel.finish(tile, total);
}

struct Piece {
  const AttentionTile* tile;
  long span;
  float* states;
};

// Few tiles over a long context: every span is a piece of its own, merged afterwards in the order attend_tile has.
void attend_by_span(const std::vector<AttentionTile>& tiles, Scratch& scratch) {
  const AttentionKernels& kernel = kernels().attention;
  const long dim = tiles.front().kv->padded_dim;
  std::vector<Piece> pieces;
  long floats = 0;
  for (const AttentionTile& tile : tiles) {
    for (long span = tile.first_span(); span <= tile.last_span(); ++span) {
      pieces.push_back({&tile, span, nullptr});
      floats += tile.count * state_floats(dim);
    }
  }
  float* states = reinterpret_cast<float*>(scratch.get(static_cast<std::size_t>(floats) * sizeof(float)));
  for (Piece& piece : pieces) {
    piece.states = states;
    states += piece.tile->count * state_floats(dim);
  }
  pool().parallel_for(static_cast<long>(pieces.size()), 1, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      kernel.attend_span(*pieces[i].tile, pieces[i].span, pieces[i].states, tile_memory(tile_floats(dim)));
    }
  });
  for (std::size_t i = 0; i < pieces.size();) {
    const Piece& first = pieces[i];
    for (++i; i < pieces.size() && pieces[i].tile == first.tile; ++i) {
      kernel.merge(dim, first.tile->count, first.states, pieces[i].states);
    }
    kernel.finish(*first.tile, first.states);
  }
}

}  // namespace

void attend(const Attention& attention, const Attention::Sequence* sequences, long count, Scratch& scratch) {
  const std::vector<AttentionTile> tiles = tiles_of(attention, sequences, count);
  if (tiles.empty()) return;
  const long number = static_cast<long>(tiles.size());
  long total = 0, spans = 0;
  for (const AttentionTile& tile : tiles) {
    total += pairs(tile);
    spans += tile.last_span() - tile.first_span() + 1;
  }
  if (number < 4 * pool().threads() && spans > number && pool().threads() > 1) {
    attend_by_span(tiles, scratch);
    return;
  }
  const long grain = std::max(1L, kChunkPairs / std::max(1L, total / number));
  pool().parallel_for(number, grain, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) attend_tile(tiles[i]);
  });
}

void write_kv(const KVLayer& kv, long kv_heads, const float* k, const float* v, long ld,
              const Attention::Sequence* sequences, long count) {
  struct Run {  // neighbouring rows that go into one block
    long row, block, slot, count;
  };
  std::vector<Run> runs;
  for (long s = 0; s < count; ++s) {
    const Attention::Sequence& sequence = sequences[s];
    for (long i = 0; i < sequence.rows;) {
      const long position = sequence.position + i, slot = position % kBlockTokens;
      const long n = std::min(kBlockTokens - slot, sequence.rows - i);
      runs.push_back({sequence.row + i, sequence.blocks[position / kBlockTokens], slot, n});
      i += n;
    }
  }
  const AttentionKernels& kernel = kernels().attention;
  const long pieces = static_cast<long>(runs.size()) * kv_heads;
  const long tokens = runs.empty() ? 0 : runs.back().row + runs.back().count;
  const long floats = std::max(1L, tokens * kv_heads * kv.head_dim / std::max(1L, pieces));
  pool().parallel_for(pieces, std::max(1L, 16384 / floats), [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      const Run& run = runs[i / kv_heads];
      const long head = i % kv_heads, offset = run.row * ld + head * kv.head_dim;
      kernel.write(kv, run.block, head, run.slot, run.count, k + offset, v + offset, ld);
    }
  });
}

}  // namespace dragoman
