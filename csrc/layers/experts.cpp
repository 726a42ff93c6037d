// A step through a routed network: rows are grouped by expert, multiplied twice, and combined to rows again.
#include "layers/experts.h"

#include <algorithm>
#include <cstring>

#include "simd/kernels.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

using Part = ExpertsScratch::Part;

// Some 10 µs of reading and writing.
constexpr long kChunkFloats = 16384;

// From so many rows for each expert on, its products take longer than reading its weights.
constexpr long kManyRows = 8;

// In place of a pair, of an expert without matrices.
constexpr long kIdentity = -1;

long grain_of(long floats) { return std::max(1L, kChunkFloats / std::max(1L, floats)); }

// Distances between rows that are not a power of two, aligned to cache lines.
long padded_floats(long width) { return ((width + 15) / 16 | 1) * 16; }

int kind_of(const Matrix& w) { return 2 * static_cast<int>(w.precision) + w.minimum; }

float* floats(Scratch& scratch, long count) {
  return reinterpret_cast<float*>(scratch.get(static_cast<std::size_t>(count) * sizeof(float)));
}

// Chooses experts for all rows and gives every used expert a part, in ascending order, the shared one last.
void group_rows(const Experts& e, const float* x, long ldx, long rows, ExpertsScratch& s) {
  const long active = e.routing.active, ldlogits = padded_floats(e.router.n);
  const bool shared = e.routing.shared != SharedExpert::none;
  float* const logits = floats(s.logits, rows * ldlogits);
  linear(e.router, x, ldx, rows, logits, ldlogits, e.router_bias, false, s.prepare);
  s.chosen.resize(static_cast<std::size_t>(rows * active));
  s.weights.resize(static_cast<std::size_t>(rows * (active + 1)));
  pool().parallel_for(rows, grain_of(8 * e.routing.experts), [&](long begin, long end) {
    kernels().experts.route(e.routing, logits + begin * ldlogits, ldlogits, end - begin,
                            s.chosen.data() + begin * active, s.weights.data() + begin * (active + 1));
    if (e.routing.scales == nullptr) return;
    for (long r = begin; r < end; ++r) {
      for (long j = 0; j < active; ++j) s.weights[r * (active + 1) + j] *= e.routing.scales[s.chosen[r * active + j]];
    }
  });

  s.next.assign(e.experts.size(), 0);
  const long networks = e.routing.experts - e.routing.identities;
  for (const std::int32_t expert : s.chosen) {
    if (expert < networks) ++s.next[expert];
  }
  if (shared) s.next.back() = rows;
  s.parts.clear();
  s.part_of.clear();
  long pairs = 0;
  for (std::size_t i = 0; i < e.experts.size(); ++i) {
    const long count = s.next[i];
    s.next[i] = pairs;
    if (count == 0) continue;
    s.part_of.insert(s.part_of.end(), static_cast<std::size_t>(count), static_cast<std::int32_t>(s.parts.size()));
    s.parts.push_back({.expert = &e.experts[i],
                       .first = pairs,
                       .rows = count,
                       .input = {},
                       .inner = {},
                       .wide = nullptr,
                       .ldwide = padded_floats(e.experts[i].in.n)});
    pairs += count;
  }
  const long ranks = active + shared;
  s.rows.resize(static_cast<std::size_t>(pairs));
  s.pair_of.resize(static_cast<std::size_t>(rows * ranks));
  s.input_factors.resize(e.routing.scale_inputs ? static_cast<std::size_t>(pairs) : 0);
  for (long r = 0; r < rows; ++r) {
    for (long j = 0; j < ranks; ++j) {
      if (j < active && s.chosen[r * active + j] >= networks) {
        s.pair_of[r * ranks + j] = kIdentity;
        continue;
      }
      const std::size_t expert = j < active ? static_cast<std::size_t>(s.chosen[r * active + j]) : e.experts.size() - 1;
      const long pair = s.next[expert]++;
      s.rows[pair] = static_cast<std::int32_t>(r);
      s.pair_of[r * ranks + j] = pair;
      if (e.routing.scale_inputs) {
        float& weight = s.weights[r * (active + 1) + j];
        s.input_factors[pair] = weight;
        weight = 1.0f;
      }
    }
  }
}

// Calls body(part, begin, end) for ranges of rows of the parts that together cover all pairs.
template <class Body>
void for_pairs(const ExpertsScratch& s, long grain, Body&& body) {
  pool().parallel_for(static_cast<long>(s.rows.size()), grain, [&](long begin, long end) {
    while (begin < end) {
      const Part& part = s.parts[s.part_of[begin]];
      const long stop = std::min(end, part.first + part.rows);
      body(part, begin - part.first, stop - part.first);
      begin = stop;
    }
  });
}

// Converts every row once to the form that its experts are multiplied with, and copies these next to each other. An
// expert with its own order of inputs has its rows converted separately, and so have all where inputs are scaled.
void gather_inputs(const float* x, long ldx, long rows, ExpertsScratch& s) {
  Activations kinds[2 * kPrecisions];
  const bool scaled = !s.input_factors.empty();
  const long pairs = static_cast<long>(s.rows.size()), width = s.parts[0].expert->in.k;
  float* const scaled_rows = scaled ? floats(s.scaled, pairs * width) : nullptr;
  long copied = 0;
  for (Part& part : s.parts) {
    const Matrix& in = part.expert->in;
    if (in.ordered || scaled) {
      part.input = describe_activations(in, part.rows);
      copied += part.rows * part.input.stride;
      continue;
    }
    Activations& all = kinds[kind_of(in)];
    if (all.values == nullptr) {
      all = describe_activations(in, rows);
      all.values = s.prepared[kind_of(in)].get(static_cast<std::size_t>(rows * all.stride));
      pool().parallel_for(rows, grain_of(all.k),
                          [&](long begin, long end) { prepare_rows(in, all, x, ldx, begin, end); });
    }
    part.input = all;
    part.input.rows = part.rows;
    const long first = s.rows[part.first], last = s.rows[part.first + part.rows - 1];
    if (last - first + 1 == part.rows) {  // always true for one row: they are adjacent already
      part.input.values = all.values + first * all.stride;
    } else {
      part.input.values = nullptr;
      copied += part.rows * all.stride;
    }
  }
  if (copied == 0) return;
  std::uint8_t* next = s.gathered.get(static_cast<std::size_t>(copied));
  for (Part& part : s.parts) {
    if (part.input.values != nullptr) continue;
    part.input.values = next;
    next += part.rows * part.input.stride;
  }
  for_pairs(s, grain_of(s.parts[0].input.stride / 4), [&](const Part& part, long begin, long end) {
    const Matrix& in = part.expert->in;
    if (scaled) {
      for (long i = begin; i < end; ++i) {
        const long pair = part.first + i;
        float* const row = scaled_rows + pair * width;
        std::memcpy(row, x + s.rows[pair] * ldx, static_cast<std::size_t>(width) * sizeof(float));
        kernels().transform.scale(row, 0, 1, width, s.input_factors[pair]);
        prepare_rows(in, part.input, row, 0, i, i + 1);
      }
      return;
    }
    if (in.ordered) {
      for (long i = begin; i < end; ++i) {
        prepare_rows(in, part.input, x + s.rows[part.first + i] * ldx, 0, i, i + 1);
      }
      return;
    }
    const Activations& all = kinds[kind_of(in)];
    if (part.input.values >= all.values && part.input.values < all.values + rows * all.stride) return;
    for (long i = begin; i < end; ++i) {
      std::memcpy(part.input.values + i * all.stride, all.values + s.rows[part.first + i] * all.stride,
                  static_cast<std::size_t>(all.stride));
    }
  });
}

// Calls body(part, begin, end) for ranges of blocks of the parts' matrices that together cover all of them.
template <class Body>
void for_blocks(ExpertsScratch& s, Matrix Expert::* matrix, Body&& body) {
  s.block_ends.clear();
  long blocks = 0;
  for (const Part& part : s.parts) s.block_ends.push_back(blocks += (part.expert->*matrix).blocks());
  const auto run = [&](long begin, long end) {
    auto at = std::upper_bound(s.block_ends.begin(), s.block_ends.end(), begin);
    while (begin < end) {
      const Part& part = s.parts[at - s.block_ends.begin()];
      const long first = *at - (part.expert->*matrix).blocks(), stop = std::min(end, *at);
      body(part, begin - first, stop - first);
      begin = stop;
      ++at;
    }
  };
  const long bytes = std::max(1L, (s.parts[0].expert->*matrix).block_bytes());
  const long pairs = static_cast<long>(s.rows.size()), parts = static_cast<long>(s.parts.size());
  if (pairs < kManyRows * parts) {
    pool().parallel_for_guided(blocks, std::max(1L, (64L << 10) / bytes), run);
  } else {  // the cost of a block grows with its expert's rows
    pool().parallel_for(blocks, std::max(1L, std::min((512L << 10) / bytes, blocks / (8L * pool().threads()))), run);
  }
}

void multiply_inward(ExpertsScratch& s) {
  const auto multiply = kernels().linear.multiply;
  long size = 0;
  for (const Part& part : s.parts) size += part.rows * part.ldwide;
  float* next = floats(s.wide, size);
  for (Part& part : s.parts) {
    part.wide = next;
    next += part.rows * part.ldwide;
  }
  for_blocks(s, &Expert::in, [&](const Part& part, long begin, long end) {
    multiply(part.expert->in, part.input, begin, end, part.wide, part.ldwide, part.expert->in_bias, false);
  });
}

// In place, and then into the form for the second product.
void activate(const Experts& e, ExpertsScratch& s) {
  long bytes = 0;
  for (Part& part : s.parts) {
    part.inner = describe_activations(part.expert->out, part.rows);
    bytes += part.rows * part.inner.stride;
  }
  std::uint8_t* next = s.inner.get(static_cast<std::size_t>(bytes));
  for (Part& part : s.parts) {
    part.inner.values = next;
    next += part.rows * part.inner.stride;
  }
  for_pairs(s, grain_of(s.parts[0].ldwide), [&](const Part& part, long begin, long end) {
    float* const rows = part.wide + begin * part.ldwide;
    const long width = part.inner.k;
    if (e.gated) {
      kernels().transform.gate(e.activation, rows, part.ldwide, end - begin, width, rows, part.ldwide);
    } else {
      kernels().transform.activate(e.activation, rows, part.ldwide, end - begin, width);
    }
    prepare_rows(part.expert->out, part.inner, part.wide, part.ldwide, begin, end);
  });
}

}  // namespace

void run_experts(const Experts& e, const float* x, long ldx, const float* routed, long ldrouted, long rows, float* out,
                 long ldout, bool accumulate, ExpertsScratch& s) {
  if (rows <= 0) return;
  group_rows(e, routed, ldrouted, rows, s);
  const long width = e.experts[0].out.n, ldresults = padded_floats(width);
  float* const results = floats(s.results, static_cast<long>(s.rows.size()) * ldresults);
  if (!s.parts.empty()) {
    gather_inputs(x, ldx, rows, s);
    multiply_inward(s);
    activate(e, s);
    for_blocks(s, &Expert::out, [&](const Part& part, long begin, long end) {
      kernels().linear.multiply(part.expert->out, part.inner, begin, end, results + part.first * ldresults, ldresults,
                                part.expert->out_bias, false);
    });
  }
  const long active = e.routing.active, ranks = active + (e.routing.shared != SharedExpert::none);
  pool().parallel_for(rows, grain_of(ranks * width), [&](long begin, long end) {
    const float* parts[kMostExperts + 1];
    for (long r = begin; r < end; ++r) {
      for (long j = 0; j < ranks; ++j) {
        const long pair = s.pair_of[r * ranks + j];
        parts[j] = pair == kIdentity ? x + r * ldx : results + pair * ldresults;
      }
      kernels().experts.combine(parts, s.weights.data() + r * (active + 1), ranks, width, e.factor, accumulate,
                                out + r * ldout);
    }
  });
}

}  // namespace dragoman
