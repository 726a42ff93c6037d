// Linear recurrences of heads whose states are matrices.
//
// Each column of a state is computed alone, and each sum over the keys' numbers in ascending order, whichever of these
// loops computes it: so one row after the other gives the bits of many at once.
namespace dragoman::DRAGOMAN_ISA {
namespace {

// Row `row` of a head, from column `begin` of its values on.
struct HeadRow {
  const float* q;
  const float* k;
  const float* v;
  const float* decays;
  float factor;
  float* out;

  __attribute__((always_inline)) inline HeadRow(const LinearRecurrence& layer, long row, long head, long begin) {
    const long shared = row * layer.ldx + head / layer.group * layer.key_dim;
    q = layer.q + shared;
    k = layer.k + shared;
    v = layer.v + row * layer.ldx + head * layer.value_dim + begin;
    decays = layer.decay + row * layer.ldgates + head * (layer.key_decays ? layer.key_dim : 1);
    factor = layer.factor[row * layer.ldgates + head];
    out = layer.out + row * layer.ldout + head * layer.value_dim + begin;
  }

  // Fetches the inputs of the row after it: rows are too far apart for the processor's own prefetcher.
  __attribute__((always_inline)) inline void fetch_after(const LinearRecurrence& layer, int vectors) const {
    for (long i = 0; i < layer.key_dim; i += 16) {
      __builtin_prefetch(q + layer.ldx + i);
      __builtin_prefetch(k + layer.ldx + i);
    }
    for (int j = 0; j < vectors; ++j) __builtin_prefetch(v + layer.ldx + j * kWidth);
    __builtin_prefetch(decays + layer.ldgates);
  }
};

// Columns [begin, begin + vectors · kWidth) of a head, of which the last may be padding.
template <int vectors>
struct Columns {
  const LinearRecurrence& layer;
  long head, begin;

  __attribute__((always_inline)) inline long count(int j) const {
    const long left = layer.value_dim - begin - j * kWidth;
    return left < kWidth ? left : kWidth;
  }
  __attribute__((always_inline)) inline Vec value(const HeadRow& row, int j) const {
    return load_up_to(row.v + j * kWidth, count(j));
  }
  __attribute__((always_inline)) inline void write(const HeadRow& row, int j, Vec sum) const {
    if (layer.skip != nullptr) sum = fma(broadcast(layer.skip[head]), value(row, j), sum);
    store_up_to(row.out + j * kWidth, sum, count(j));
  }
  __attribute__((always_inline)) inline float* in_slot(long slot) const {
    return layer.state.slot(slot) + head * layer.head_floats() + begin;
  }
  __attribute__((always_inline)) inline long stride() const { return layer.padded_value_dim(); }
  // from: null for zeros.
  __attribute__((always_inline)) inline void copy(const float* from, long from_stride, float* to,
                                                  long to_stride) const {
    for (long i = 0; i < layer.key_dim; ++i) {
      for (int j = 0; j < vectors; ++j) {
        store(to + i * to_stride + j * kWidth, from == nullptr ? zero() : load(from + i * from_stride + j * kWidth));
      }
    }
  }
};

template <bool key_decays>
DRAGOMAN_INLINE Vec delta_key(const HeadRow& row, long i) {
  return key_decays ? broadcast(row.k[i] * row.decays[i]) : broadcast(row.k[i]);
}

// factor · (v − decay · Sᵀ·k), given Sᵀ·k, of which key_decays have the decays already.
template <int vectors, bool key_decays>
DRAGOMAN_INLINE void delta_change(const Columns<vectors>& columns, const HeadRow& row, const Vec (&seen)[vectors],
                                  Vec (&change)[vectors]) {
  for (int j = 0; j < vectors; ++j) {
    const Vec now = key_decays ? seen[j] : broadcast(row.decays[0]) * seen[j];
    change[j] = (columns.value(row, j) - now) * broadcast(row.factor);
  }
}

// Bytes ahead of a state that is read once, as large as a second-level cache's share of many heads.
constexpr long kStateAhead = 4096 / sizeof(float);

// A single row: the state is read from memory and written there.
template <int vectors, bool delta, bool key_decays>
void recur_one(const LinearRecurrence& layer, const StateRows& rows, long head, long begin) {
  const Columns<vectors> columns{layer, head, begin};
  const HeadRow row(layer, rows.row, head, begin);
  const long stride = columns.stride();
  float* const to = columns.in_slot(rows.after());
  if (rows.before < 0) columns.copy(nullptr, 0, to, stride);
  const float* const from = rows.before < 0 ? to : columns.in_slot(rows.before);
  Vec change[vectors], sum[vectors];
  for (int j = 0; j < vectors; ++j) sum[j] = zero();
  if constexpr (delta) {
    for (long i = 0; i < layer.key_dim; ++i) {
      const Vec key = delta_key<key_decays>(row, i);
      for (int j = 0; j < vectors; ++j) {
        const float* const cell = from + i * stride + j * kWidth;
        __builtin_prefetch(cell + kStateAhead, 1);
        sum[j] = fma(load(cell), key, sum[j]);
      }
    }
    delta_change<vectors, key_decays>(columns, row, sum, change);
    for (int j = 0; j < vectors; ++j) sum[j] = zero();
  } else {
    for (int j = 0; j < vectors; ++j) change[j] = columns.value(row, j) * broadcast(row.factor);
  }
  for (long i = 0; i < layer.key_dim; ++i) {
    const Vec key = broadcast(row.k[i]), query = broadcast(row.q[i]);
    const Vec kept = broadcast(row.decays[key_decays ? i : 0]);
    for (int j = 0; j < vectors; ++j) {
      const long cell = i * stride + j * kWidth;
      if constexpr (!delta) __builtin_prefetch(from + cell + kStateAhead, 1);
      const Vec now = fma(key, change[j], load(from + cell) * kept);
      store(to + cell, now);
      sum[j] = fma(now, query, sum[j]);
    }
  }
  for (int j = 0; j < vectors; ++j) columns.write(row, j, sum[j]);
}

// Many rows of a delta rule. The pass that changes the state also sums what the next row subtracts, so that the state,
// copied to adjacent memory in the first-level cache, is read once for each row.
template <int vectors, bool key_decays>
void recur_delta(const LinearRecurrence& layer, const StateRows& rows, long head, long begin, float* state) {
  constexpr long kStride = vectors * kWidth;
  const Columns<vectors> columns{layer, head, begin};
  columns.copy(rows.before < 0 ? nullptr : columns.in_slot(rows.before), columns.stride(), state, kStride);
  HeadRow row(layer, rows.row, head, begin);
  Vec seen[vectors];
  for (int j = 0; j < vectors; ++j) seen[j] = zero();
  for (long i = 0; i < layer.key_dim; ++i) {
    const Vec key = delta_key<key_decays>(row, i);
    for (int j = 0; j < vectors; ++j) seen[j] = fma(load(state + i * kStride + j * kWidth), key, seen[j]);
  }
  for (long r = 0; r < rows.rows; ++r) {
    const bool last = r + 1 == rows.rows;
    const HeadRow next(layer, rows.row + (last ? r : r + 1), head, begin);  // not needed after the last
    Vec change[vectors], sum[vectors];
    delta_change<vectors, key_decays>(columns, row, seen, change);
    for (int j = 0; j < vectors; ++j) seen[j] = sum[j] = zero();
    next.fetch_after(layer, vectors);
#pragma GCC unroll 4
    for (long i = 0; i < layer.key_dim; ++i) {
      const Vec key = broadcast(row.k[i]), query = broadcast(row.q[i]), next_key = delta_key<key_decays>(next, i);
      const Vec kept = broadcast(row.decays[key_decays ? i : 0]);
      for (int j = 0; j < vectors; ++j) {
        float* const cell = state + i * kStride + j * kWidth;
        const Vec now = fma(key, change[j], load(cell) * kept);
        store(cell, now);
        sum[j] = fma(now, query, sum[j]);
        seen[j] = fma(now, next_key, seen[j]);
      }
    }
    for (int j = 0; j < vectors; ++j) columns.write(row, j, sum[j]);
    if (rows.slots[r] >= 0) columns.copy(state, kStride, columns.in_slot(rows.slots[r]), columns.stride());
    row = next;
  }
}

constexpr long kTileTokens = 32;
constexpr int kTileKeys = 8;  // with two vectors of columns, half of AVX-512's registers

// Changes and sums of a tile's tokens.
template <int vectors>
struct TokenTile {
  Vec change[kTileTokens][vectors], sum[kTileTokens][vectors];
};

// `keys` rows of a state, from row i on, over all tokens of a tile.
template <int vectors, int keys>
DRAGOMAN_INLINE void recur_tile(const LinearRecurrence& layer, const HeadRow& first, long i, long tokens, float* state,
                                TokenTile<vectors>& tile) {
  const long stride = layer.padded_value_dim();
  Vec cells[keys][vectors];
  for (int a = 0; a < keys; ++a) {
    for (int j = 0; j < vectors; ++j) cells[a][j] = load(state + (i + a) * stride + j * kWidth);
  }
  for (long t = 0; t < tokens; ++t) {
    const float* const q = first.q + t * layer.ldx + i;
    const float* const k = first.k + t * layer.ldx + i;
    const Vec kept = broadcast(first.decays[t * layer.ldgates]);
    for (int a = 0; a < keys; ++a) {
      const Vec key = broadcast(k[a]), query = broadcast(q[a]);
      for (int j = 0; j < vectors; ++j) {
        cells[a][j] = fma(key, tile.change[t][j], cells[a][j] * kept);
        tile.sum[t][j] = fma(cells[a][j], query, tile.sum[t][j]);
      }
    }
  }
  for (int a = 0; a < keys; ++a) {
    for (int j = 0; j < vectors; ++j) store(state + (i + a) * stride + j * kWidth, cells[a][j]);
  }
}

// Many rows without the delta rule: what a row adds does not depend on the state, so some of a state's rows stay in
// registers over a tile of tokens.
template <int vectors>
void recur_plain(const LinearRecurrence& layer, const StateRows& rows, long head, long begin) {
  const Columns<vectors> columns{layer, head, begin};
  const long stride = columns.stride();
  float* const state = columns.in_slot(rows.after());
  if (rows.before != rows.after()) {
    columns.copy(rows.before < 0 ? nullptr : columns.in_slot(rows.before), stride, state, stride);
  }
  TokenTile<vectors> tile;
  for (long from = 0, to; from < rows.rows; from = to) {
    // A row whose state is asked for is the last of its tile.
    for (to = from + 1; to < rows.rows && to - from < kTileTokens && rows.slots[to - 1] < 0;) ++to;
    const HeadRow first(layer, rows.row + from, head, begin);
    for (long t = 0; t < to - from; ++t) {
      const HeadRow row(layer, rows.row + from + t, head, begin);
      for (int j = 0; j < vectors; ++j) {
        tile.change[t][j] = columns.value(row, j) * broadcast(row.factor);
        tile.sum[t][j] = zero();
      }
    }
    long i = 0;
    for (; i + kTileKeys <= layer.key_dim; i += kTileKeys) {
      recur_tile<vectors, kTileKeys>(layer, first, i, to - from, state, tile);
    }
    for (; i < layer.key_dim; ++i) recur_tile<vectors, 1>(layer, first, i, to - from, state, tile);
    for (long t = 0; t < to - from; ++t) {
      const HeadRow row(layer, rows.row + from + t, head, begin);
      for (int j = 0; j < vectors; ++j) columns.write(row, j, tile.sum[t][j]);
    }
    if (rows.slots[to - 1] >= 0 && to < rows.rows) {
      columns.copy(state, stride, columns.in_slot(rows.slots[to - 1]), stride);
    }
  }
}

template <int vectors, bool delta, bool key_decays>
void recur_columns(const LinearRecurrence& layer, const StateRows& rows, long head, long begin, float* scratch) {
  if (rows.rows == 1) return recur_one<vectors, delta, key_decays>(layer, rows, head, begin);
  if constexpr (delta && vectors * kWidth <= kColumnsOfMany) {
    recur_delta<vectors, key_decays>(layer, rows, head, begin, scratch);
  } else if constexpr (vectors * kWidth <= kColumnsOfMany) {
    recur_plain<vectors>(layer, rows, head, begin);
  }
}

template <bool delta, bool key_decays>
void recur_any(const LinearRecurrence& layer, const StateRows& rows, long head, long begin, long end, float* scratch) {
  static_assert(kColumnsOfOne / kWidth == 8 && kColumnsOfMany / kWidth == 2);
  switch ((end - begin + kWidth - 1) / kWidth) {
    case 1: return recur_columns<1, delta, key_decays>(layer, rows, head, begin, scratch);
    case 2: return recur_columns<2, delta, key_decays>(layer, rows, head, begin, scratch);
    case 3: return recur_columns<3, delta, key_decays>(layer, rows, head, begin, scratch);
    case 4: return recur_columns<4, delta, key_decays>(layer, rows, head, begin, scratch);
    case 5: return recur_columns<5, delta, key_decays>(layer, rows, head, begin, scratch);
    case 6: return recur_columns<6, delta, key_decays>(layer, rows, head, begin, scratch);
    case 7: return recur_columns<7, delta, key_decays>(layer, rows, head, begin, scratch);
    default: return recur_columns<8, delta, key_decays>(layer, rows, head, begin, scratch);
  }
}

void recur(const LinearRecurrence& layer, const StateRows& rows, long head, long begin, long end, float* scratch) {
  if (layer.key_decays) {
    recur_any<true, true>(layer, rows, head, begin, end, scratch);
  } else if (layer.delta) {
    recur_any<true, false>(layer, rows, head, begin, end, scratch);
  } else {
    recur_any<false, false>(layer, rows, head, begin, end, scratch);
  }
}

}  // namespace
}  // namespace dragoman::DRAGOMAN_ISA
