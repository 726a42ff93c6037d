// Divides attention and KV writes into pieces for the thread pool.
#include "attention/attention.h"

#include <algorithm>
#include <vector>

#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

// A chunk of work is at least this many (query, position) pairs, some 10 µs: much less than that and handing it out
// costs more than doing it.
constexpr long kChunkPairs = 4096;

ScoreTerms terms_from(ScoreTerms terms, long head) {
  if (terms.slopes != nullptr) terms.slopes += head;
  if (terms.sinks != nullptr) terms.sinks += head;
  if (terms.bias != nullptr) terms.bias += head * (2 * terms.reach + 1);
  return terms;
}

std::vector<AttentionTile> tiles_of(const Attention& a, const Attention::Sequence* sequences, long count) {
  std::vector<AttentionTile> tiles;
  for (long s = 0; s < count; ++s) {
    const Attention::Sequence& sequence = sequences[s];
    const long queries = sequence.rows * a.group;
    for (long head = 0; head < a.kv_heads; ++head) {
      const long column = head * a.group * a.kv.head_dim, result = head * a.group * a.kv.value_dim;
      // The longest first, so that no thread is left with one at the end.
      for (long first = (queries - 1) / kTileQueries * kTileQueries; first >= 0; first -= kTileQueries) {
        tiles.push_back({.kv = &a.kv,
                         .blocks = sequence.blocks_of(a.kv.group),
                         .kv_head = head,
                         .q = a.q + sequence.row * a.ldq + column,
                         .ldq = a.ldq,
                         .out = a.out + sequence.row * a.ldout + result,
                         .ldout = a.ldout,
                         .group = a.group,
                         .first = first,
                         .count = std::min(kTileQueries, queries - first),
                         .position = sequence.position,
                         .length = a.causal ? 0 : sequence.length,
                         .window = a.window,
                         .chunk = a.chunk,
                         .scale = a.scale,
                         .terms = terms_from(a.terms, head * a.group),
                         .ends = a.causal && a.both_ways ? sequence.ends : nullptr});
      }
    }
  }
  return tiles;
}

long pairs(const AttentionTile& tile) { return tile.count * (tile.last_position() - tile.first_position() + 1); }

// Memory of the calling thread for its current tile.
float* tile_memory(long floats) {
  thread_local Scratch scratch;
  return reinterpret_cast<float*>(scratch.get(static_cast<std::size_t>(floats) * sizeof(float)));
}

// Start of the chunk that a thread most likely takes after one of `grain` items before `end`: chunks are handed out in
// order, so it is the one after those of the threads with the same cursor.
long expected_after(long end, long grain) { return end + grain * (pool().threads_of_cursor() - 1); }

// A thread takes whole tiles and merges their splits at once.
void attend_by_tile(const std::vector<AttentionTile>& tiles, long grain) {
  const AttentionKernels& kernel = kernels().attention;
  const KVLayer& kv = *tiles.front().kv;
  const long dim = kv.padded_value_dim, number = static_cast<long>(tiles.size());
  std::vector<AttentionPiece> pieces;
  std::vector<long> firsts;  // each tile's first piece
  for (const AttentionTile& tile : tiles) {
    firsts.push_back(static_cast<long>(pieces.size()));
    for (long split = tile.first_split(); split <= tile.last_split(); ++split) {
      pieces.push_back({.tile = &tile, .split = split});
    }
  }
  firsts.push_back(static_cast<long>(pieces.size()));
  for (long i = 0; i < number; ++i) {
    for (long at = firsts[i]; at + 1 < firsts[i + 1]; ++at) pieces[at].following = &pieces[at + 1];
    const long next = (i + 1) % grain != 0 ? i + 1 : expected_after(i + 1, grain);
    if (next < number) pieces[firsts[i + 1] - 1].following = &pieces[firsts[next]];
  }
  pool().parallel_for(number, grain, [&](long begin, long end) {
    const long states = kTileQueries * state_floats(dim);
    float* const total = tile_memory(2 * states + tile_floats(kv));
    float* const part = total + states;
    float* const workspace = part + states;
    for (long i = begin; i < end; ++i) {
      kernel.attend_split(pieces[firsts[i]], total, workspace);
      for (long at = firsts[i] + 1; at < firsts[i + 1]; ++at) {
        kernel.attend_split(pieces[at], part, workspace);
        kernel.merge(dim, tiles[i].count, total, part);
      }
      kernel.finish(tiles[i], total);
    }
  });
}

// Every KV split is one piece, merged afterwards in the order of attend_by_tile; `tiles` has so many for each sequence,
// over the same splits: one for each head, or the queries of a single row. A thread takes all heads of a split: a
// block's heads are adjacent, so what the processor prefetches beyond the end of one is soon used.
void attend_by_split(const std::vector<AttentionTile>& tiles, long heads, Scratch& scratch) {
  const AttentionKernels& kernel = kernels().attention;
  const KVLayer& kv = *tiles.front().kv;
  const long dim = kv.padded_value_dim, number = static_cast<long>(tiles.size());
  std::vector<AttentionPiece> pieces;
  std::vector<long> firsts;  // each tile's first piece; the one over its next split is `heads` further
  for (long first = 0; first < number; first += heads) {
    for (long head = 0; head < heads; ++head) firsts.push_back(static_cast<long>(pieces.size()) + head);
    for (long split = tiles[first].first_split(); split <= tiles[first].last_split(); ++split) {
      for (long head = 0; head < heads; ++head) pieces.push_back({.tile = &tiles[first + head], .split = split});
    }
  }
  const long count = static_cast<long>(pieces.size());
  const long grain = std::min(heads, std::max(1L, count / (4 * pool().threads())));
  long floats = 0;
  std::vector<long> states;  // start of each piece's states
  for (long i = 0; i < count; ++i) {
    const long next = (i + 1) % grain != 0 ? i + 1 : expected_after(i + 1, grain);
    if (next < count) pieces[i].following = &pieces[next];
    states.push_back(floats);
    floats += pieces[i].tile->count * state_floats(dim);
  }
  float* const memory = reinterpret_cast<float*>(scratch.get(static_cast<std::size_t>(floats) * sizeof(float)));
  pool().parallel_for(count, grain, [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      kernel.attend_split(pieces[i], memory + states[i], tile_memory(tile_floats(kv)));
    }
  });
  pool().parallel_for(number, std::max(1L, number / pool().threads()), [&](long begin, long end) {
    for (long i = begin; i < end; ++i) {
      float* const total = memory + states[firsts[i]];
      long at = firsts[i];
      for (long split = tiles[i].first_split() + 1; split <= tiles[i].last_split(); ++split) {
        kernel.merge(dim, tiles[i].count, total, memory + states[at += heads]);
      }
      kernel.finish(tiles[i], total);
    }
  });
}

}  // namespace

void attend(const Attention& attention, const Attention::Sequence* sequences, long count, Scratch& scratch) {
  const std::vector<AttentionTile> tiles = tiles_of(attention, sequences, count);
  if (tiles.empty()) return;
  const long number = static_cast<long>(tiles.size());
  bool single_rows = true;
  for (long s = 0; s < count; ++s) single_rows = single_rows && sequences[s].rows == 1;
  const long together = single_rows ? number / count : attention.kv_heads;
  long total = 0, splits = 0;
  for (const AttentionTile& tile : tiles) {
    total += pairs(tile);
    splits += tile.last_split() - tile.first_split() + 1;
  }
  if (splits > number && number == count * together) {
    attend_by_split(tiles, together, scratch);
    return;
  }
  attend_by_tile(tiles, std::max(1L, kChunkPairs / std::max(1L, total / number)));
}

void write_kv(const KVLayer& kv, long kv_heads, const float* k, const float* v, long ld,
              const Attention::Sequence* sequences, long count) {
  struct Run {  // neighbouring rows that are written to one block
    long row, block, slot, count;
  };
  std::vector<Run> runs;
  long tokens = 0;
  for (long s = 0; s < count; ++s) {
    const Attention::Sequence& sequence = sequences[s];
    const std::int32_t* const blocks = sequence.blocks_of(kv.group);
    tokens += sequence.rows;
    for (long i = 0; i < sequence.rows;) {
      const long position = sequence.position + i, slot = position % kBlockTokens;
      const long n = std::min(kBlockTokens - slot, sequence.rows - i);
      runs.push_back({.row = sequence.row + i, .block = blocks[position / kBlockTokens], .slot = slot, .count = n});
      i += n;
    }
  }
  const AttentionKernels& kernel = kernels().attention;
  const long pieces = static_cast<long>(runs.size()) * kv_heads;
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
