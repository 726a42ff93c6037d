// Scans over one row of logits.
namespace dragoman::DRAGOMAN_ISA {
namespace {

constexpr int kScanVectors = kScanBlock / kWidth;

// Calls f(block number, vectors) for each block of x; the last block is filled up with −infinity.
template <class F>
DRAGOMAN_INLINE void for_each_block(const float* x, long count, F f) {
  long b = 0;
  for (; (b + 1) * kScanBlock <= count; ++b) {
    Vec v[kScanVectors];
    for (int j = 0; j < kScanVectors; ++j) v[j] = load(x + b * kScanBlock + j * kWidth);
    f(b, v);
  }
  if (b * kScanBlock < count) {
    float rest[kScanBlock];
    for (long i = 0; i < kScanBlock; ++i) {
      rest[i] = b * kScanBlock + i < count ? x[b * kScanBlock + i] : -__builtin_inff();
    }
    Vec v[kScanVectors];
    for (int j = 0; j < kScanVectors; ++j) v[j] = load(rest + j * kWidth);
    f(b, v);
  }
}

bool scan(const float* x, long vocab, float* block_maxima, float* maximum) {
  const float infinity = __builtin_inff();
  Vec bad = zero();
  float highest = -infinity;
  for_each_block(x, vocab, [&](long b, const Vec* v) {
    Vec top = broadcast(-infinity);
    for (int j = 0; j < kScanVectors; ++j) {
      top = max(v[j], top);  // in this order a NaN is skipped here; it counts as invalid below
      bad = bad + select_less(v[j], broadcast(infinity), zero(), broadcast(1.0f));
    }
    block_maxima[b] = hmax(top);
    highest = block_maxima[b] > highest ? block_maxima[b] : highest;
  });
  *maximum = highest;
  return hsum(bad) == 0.0f;
}

double sum(const float* x, long vocab, float maximum, float inverse_temperature, float* block_sums) {
  const Vec top = broadcast(maximum), factor = broadcast(inverse_temperature);
  double total = 0;
  for_each_block(x, vocab, [&](long b, const Vec* v) {
    Vec part = zero();
    for (int j = 0; j < kScanVectors; ++j) part = part + exp((v[j] - top) * factor);
    block_sums[b] = hsum(part);
    total += block_sums[b];
  });
  return total;
}

void moments(const float* x, long count, float maximum, float inverse_temperature, double* mass, double* products) {
  const Vec top = broadcast(maximum), factor = broadcast(inverse_temperature);
  WideSums masses = no_wide_sums(), sums = no_wide_sums();
  static_assert(kScanVectors == 4);
  for_each_block(x, count, [&](long, const Vec* v) {
    Vec logarithm[kScanVectors], weight[kScanVectors];
    for (int j = 0; j < kScanVectors; ++j) {
      // Of −infinity the product would be NaN. Both have the weight 0.
      logarithm[j] = max(broadcast(-200.0f), (v[j] - top) * factor);
      weight[j] = exp(logarithm[j]);
    }
    // Each number is rounded twice before it is added in float64: the error is below 2⁻²³ of the sum.
    add_widened(masses, (weight[0] + weight[1]) + (weight[2] + weight[3]));
    add_widened(sums, fma(weight[0], logarithm[0], weight[1] * logarithm[1]));
    add_widened(sums, fma(weight[2], logarithm[2], weight[3] * logarithm[3]));
  });
  double all_masses[kWidth], all_sums[kWidth];
  store_wide(all_masses, masses);
  store_wide(all_sums, sums);
  *mass = *products = 0;
  for (int i = 0; i < kWidth; ++i) *mass += all_masses[i], *products += all_sums[i];
}

void weigh(const float* x, long count, float maximum, float inverse_temperature, float* weights) {
  const Vec top = broadcast(maximum), factor = broadcast(inverse_temperature);
  for_each_vector(count,
                  [&](long i, long n) { store_up_to(weights + i, exp((load_up_to(x + i, n) - top) * factor), n); });
}

long collect(const float* x, long vocab, const float* block_maxima, float floor, std::int32_t* ids, float* values) {
  long count = 0;
  for (long b = 0; b * kScanBlock < vocab; ++b) {
    if (!(block_maxima[b] >= floor)) continue;
    const long end = (b + 1) * kScanBlock < vocab ? (b + 1) * kScanBlock : vocab;
    long i = b * kScanBlock;
    for (; i + kWidth <= end; i += kWidth) count += append_reaching(load(x + i), floor, i, ids + count, values + count);
    for (; i < end; ++i) {
      // Written always, kept or not: a branch here would be mispredicted often.
      ids[count] = static_cast<std::int32_t>(i);
      values[count] = x[i];
      count += x[i] >= floor;
    }
  }
  return count;
}

long keep_between(const float* x, float low, float high, long count, std::int32_t* ids, float* logits, float* weights) {
  const Vec least = broadcast(low), most = broadcast(high);
  long kept = 0, i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    kept += move_between(load(x + i), least, most, i, kept, ids, logits, weights);
  }
  for (; i < count; ++i) {
    const bool stays = (x[i] >= low) & (x[i] <= high);
    ids[kept] = ids[i], logits[kept] = logits[i], weights[kept] = weights[i];
    kept += stays;
  }
  return kept;
}

}  // namespace

constexpr SamplingKernels sampling_kernels{
    .scan = scan,
    .sum = sum,
    .moments = moments,
    .weigh = weigh,
    .collect = collect,
    .keep_between = keep_between,
    .add_to_green = add_to_green,
};

}  // namespace dragoman::DRAGOMAN_ISA
