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

// The tiles of a step: `parts` one after the other for the same queries, whose states are merged in that order.
struct Tiles {
  std::vector<AttentionTile> all;
  long parts;

  long number() const { return static_cast<long>(all.size()) / parts; }
  const AttentionTile* of(long i) const { return all.data() + i * parts; }

  // Calls visit(part, split) for every split of tile i, in the order of their merge.
  template <class Visit>
  void for_each_split(long i, const Visit& visit) const {
    for (long part = 0; part < parts; ++part) {
      const AttentionTile& tile = of(i)[part];
      if (tile.sees_none()) continue;
      for (long split = tile.first_split(); split <= tile.last_split(); ++split) visit(part, split);
    }
  }
};

// Whether all queries of a sequence with one KV head are a tile, or of each own block one.
bool is_small(const Attention& a, const Attention::Sequence& sequence) {
  return sequence.rows * a.group <= kTileQueries;
}

// Calls visit(begin, end) for the rows of a sequence: all of them or, where there are own blocks, those of each one.
// Here and below the longest come first, so that no thread is left with one at the end.
template <class Visit>
void for_each_run(const Attention& a, const Attention::Sequence& sequence, const Visit& visit) {
  for (long end = sequence.rows; end > 0;) {
    const long block = (sequence.position + end - 1) / kBlockTokens * kBlockTokens - sequence.position;
    const long begin = a.own && block > 0 ? block : 0;
    visit(begin, end);
    end = begin;
  }
}

Tiles tiles_of(const Attention& a, const Attention::Sequence* sequences, long count) {
  Tiles tiles{.all = {}, .parts = a.own ? 2 : 1};
  const auto add = [&](const Attention::Sequence& sequence, long head, long begin, long end) {
    const long column = head * a.group * a.kv.head_dim, result = head * a.group * a.kv.value_dim;
    const long start = begin * a.group, queries = end * a.group - start;
    for (long first = start + (queries - 1) / kTileQueries * kTileQueries; first >= start; first -= kTileQueries) {
      tiles.all.push_back({.kv = &a.kv,
                           .blocks = sequence.blocks_of(a.kv.group),
                           .kv_head = head,
                           .q = a.q + sequence.row * a.ldq + column,
                           .ldq = a.ldq,
                           .out = a.out + sequence.row * a.ldout + result,
                           .ldout = a.ldout,
                           .group = a.group,
                           .first = first,
                           .count = std::min(kTileQueries, start + queries - first),
                           .position = sequence.position,
                           .length = a.causal ? 0 : sequence.length,
                           .window = a.window,
                           .chunk = a.chunk,
                           .scale = a.scale,
                           .terms = terms_from(a.terms, head * a.group),
                           .ends = a.causal && a.both_ways ? sequence.ends : nullptr});
      if (!a.own) continue;
      tiles.all.back().part = AttentionPart::before_own;
      AttentionTile& own = tiles.all.emplace_back(tiles.all.back());
      own.part = AttentionPart::from_own;
      own.kv = &*a.own;
      own.blocks = sequence.blocks_of(a.own->group);
    }
  };
  for (long s = 0; s < count; ++s) {
    const Attention::Sequence& sequence = sequences[s];
    if (is_small(a, sequence)) {
      for_each_run(a, sequence, [&](long begin, long end) {
        for (long head = 0; head < a.kv_heads; ++head) add(sequence, head, begin, end);
      });
      continue;
    }
    for (long head = 0; head < a.kv_heads; ++head) {
      for_each_run(a, sequence, [&](long begin, long end) { add(sequence, head, begin, end); });
    }
  }
  return tiles;
}

long pairs(const AttentionTile& tile) {
  return tile.sees_none() ? 0 : tile.count * (tile.last_position() - tile.first_position() + 1);
}

// Memory of the calling thread for its current tile.
float* tile_memory(long floats) {
  thread_local Scratch scratch;
  return reinterpret_cast<float*>(scratch.get(static_cast<std::size_t>(floats) * sizeof(float)));
}

// Start of the chunk that a thread most likely takes after one of `grain` items before `end`: chunks are handed out in
// order, so it is the one after those of the threads with the same cursor.
long expected_after(long end, long grain) { return end + grain * (pool().threads_of_cursor() - 1); }

// A thread takes whole tiles and merges their splits at once.
void attend_by_tile(const Tiles& tiles, long grain) {
  const AttentionKernels& kernel = kernels().attention;
  const KVLayer& kv = *tiles.all.front().kv;
  const long dim = kv.padded_value_dim, number = tiles.number();
  std::vector<AttentionPiece> pieces;
  std::vector<long> firsts;  // each tile's first piece
  for (long i = 0; i < number; ++i) {
    firsts.push_back(static_cast<long>(pieces.size()));
    tiles.for_each_split(
        i, [&](long part, long split) { pieces.push_back({.tile = tiles.of(i) + part, .split = split}); });
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
        kernel.merge(dim, tiles.of(i)->count, total, part);
      }
      kernel.finish(*tiles.of(i), total);
    }
  });
}

// Every KV split is one piece, merged afterwards in the order of attend_by_tile; `heads` tiles, one after the other,
// have the same splits: one for each head, or the queries of a single row. A thread takes all heads of a split: a
// block's heads are adjacent, so what the processor prefetches beyond the end of one is soon used.
void attend_by_split(const Tiles& tiles, long heads, Scratch& scratch) {
  const AttentionKernels& kernel = kernels().attention;
  const KVLayer& kv = *tiles.all.front().kv;
  const long dim = kv.padded_value_dim, number = tiles.number();
  std::vector<AttentionPiece> pieces;
  std::vector<long> firsts;  // each tile's first piece; the one over its next split is `heads` further
  std::vector<long> ends;    // and the end of its last split's
  for (long first = 0; first < number; first += heads) {
    for (long head = 0; head < heads; ++head) firsts.push_back(static_cast<long>(pieces.size()) + head);
    tiles.for_each_split(first, [&](long part, long split) {
      for (long head = 0; head < heads; ++head) {
        pieces.push_back({.tile = tiles.of(first + head) + part, .split = split});
      }
    });
    ends.resize(firsts.size(), static_cast<long>(pieces.size()));
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
      for (long at = firsts[i] + heads; at < ends[i]; at += heads) {
        kernel.merge(dim, tiles.of(i)->count, total, memory + states[at]);
      }
      kernel.finish(*tiles.of(i), total);
    }
  });
}

}  // namespace

void attend(const Attention& attention, const Attention::Sequence* sequences, long count, Scratch& scratch) {
  const Tiles tiles = tiles_of(attention, sequences, count);
  if (tiles.all.empty()) return;
  const long number = tiles.number();
  bool single_rows = true, small = true;
  for (long s = 0; s < count; ++s) {
    single_rows = single_rows && sequences[s].rows == 1;
    small = small && is_small(attention, sequences[s]);
  }
  long total = 0, splits = 0;
  for (const AttentionTile& tile : tiles.all) {
    total += pairs(tile);
    splits += tile.sees_none() || tile.part == AttentionPart::from_own ? 0 : tile.last_split() - tile.first_split() + 1;
  }
  if (splits > number && (single_rows || small)) {
    attend_by_split(tiles, small ? attention.kv_heads : number / count, scratch);
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
