// Short causal convolutions, and recurrences of channels; those of matrices are in linear.inl.
namespace dragoman::DRAGOMAN_ISA {
namespace {

DRAGOMAN_INLINE Vec sigmoid(Vec x) {
  const Vec one = broadcast(1.0f);
  return one / (one + exp(zero() - x));
}

// ln(1 + t) of t in [0, 1], within 3 units in the last place: 2·artanh(t / (2 + t)) by its series.
DRAGOMAN_INLINE Vec log1p_of_share(Vec t) {
  const Vec s = t / (t + broadcast(2.0f)), square = s * s;
  constexpr float rest[] = {2.0f / 13, 2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f};
  Vec sum = broadcast(2.0f / 15);
  for (const float factor : rest) sum = fma(sum, square, broadcast(factor));
  return s * sum;
}

// ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|)
DRAGOMAN_INLINE Vec softplus(Vec x) { return max(x, zero()) + log1p_of_share(exp(zero() - abs(x))); }

constexpr long kRowsAhead = 6, kChannelsAhead = 8 * kWidth;

// Some vectors of channels, the last of which has n. fixed_taps: as many as the layer has, for loops of known length,
// or 0.
template <int fixed_taps, int vectors>
DRAGOMAN_INLINE void convolve_vectors(const Convolution& layer, const StateRows& rows, long channel, long n) {
  const long taps = fixed_taps == 0 ? layer.taps : fixed_taps, kept = taps - 1;
  constexpr long kRoom = fixed_taps == 0 ? kMostTaps : fixed_taps;
  const auto count = [&](int v) { return v + 1 < vectors ? kWidth : n; };
  Vec weight[kRoom][vectors], past[kRoom][vectors], bias[vectors];
  for (int v = 0; v < vectors; ++v) {
    const long c = channel + v * kWidth;
    for (long j = 0; j < taps; ++j) weight[j][v] = load_up_to(layer.weight + j * layer.width + c, count(v));
    bias[v] = layer.bias == nullptr ? zero() : load_up_to(layer.bias + c, count(v));
    for (long j = 0; j < kept; ++j) {
      past[j][v] = rows.before < 0 ? zero() : load_up_to(layer.state.slot(rows.before) + j * layer.width + c, count(v));
    }
  }
  for (long r = 0; r < rows.rows; ++r) {
    float* const x = layer.x + (rows.row + r) * layer.ldx + channel;
    for (int v = 0; v < vectors; ++v) {
      // Rows are too far apart for the processor's own prefetcher.
      if (r + kRowsAhead < rows.rows) __builtin_prefetch(x + kRowsAhead * layer.ldx + v * kWidth, 1);
      past[kept][v] = load_up_to(x + v * kWidth, count(v));
      Vec sum = bias[v];
      for (long j = 0; j <= kept; ++j) sum = fma(weight[j][v], past[j][v], sum);
      store_up_to(x + v * kWidth, layer.activated ? apply<Activation::silu>(sum) : sum, count(v));
      for (long j = 0; j < kept; ++j) past[j][v] = past[j + 1][v];
    }
    if (rows.slots[r] < 0) continue;
    float* const state = layer.state.slot(rows.slots[r]) + channel;
    for (int v = 0; v < vectors; ++v) {
      for (long j = 0; j < kept; ++j) store_up_to(state + j * layer.width + v * kWidth, past[j][v], count(v));
    }
  }
}

template <int fixed_taps>
void convolve_channels(const Convolution& layer, const StateRows& rows, long begin, long end) {
  constexpr int kVectorsTogether = fixed_taps == 0 ? 1 : kChannelsTogether / kWidth;
  const auto fetch = [&](long channel) {
    const long ahead = channel + kChannelsAhead;
    // A few lines of each of many streams: too few for the processor's own prefetcher.
    for (long j = 0; j < layer.taps && ahead < end; ++j) {
      __builtin_prefetch(layer.weight + j * layer.width + ahead);
      if (rows.before >= 0 && j + 1 < layer.taps) {
        __builtin_prefetch(layer.state.slot(rows.before) + j * layer.width + ahead, 1);
      }
    }
  };
  long channel = begin;
  if (rows.rows > 1) {
    for (; channel + kVectorsTogether * kWidth <= end; channel += kVectorsTogether * kWidth) {
      convolve_vectors<fixed_taps, kVectorsTogether>(layer, rows, channel, kWidth);
    }
  }
  for (; channel < end; channel += kWidth) {
    fetch(channel);
    convolve_vectors<fixed_taps, 1>(layer, rows, channel, end - channel < kWidth ? end - channel : kWidth);
  }
}

void convolve(const Convolution& layer, const StateRows& rows, long begin, long end) {
  switch (layer.taps) {
    case 3: return convolve_channels<3>(layer, rows, begin, end);
    case 4: return convolve_channels<4>(layer, rows, begin, end);
    default: return convolve_channels<0>(layer, rows, begin, end);
  }
}

// One vector of channels, whose states stay in the first-level cache from row to row.
DRAGOMAN_INLINE void scan_vector(const SelectiveScan& layer, const StateRows& rows, long channel, long n) {
  const long stride = layer.padded_width();
  float* const state = layer.state.slot(rows.after()) + channel;
  const auto copy = [&](const float* from, float* to) {
    for (long i = 0; i < layer.state_dim; ++i) {
      store(to + i * stride, from == nullptr ? zero() : load(from + i * stride));
    }
  };
  if (rows.before != rows.after()) {
    copy(rows.before < 0 ? nullptr : layer.state.slot(rows.before) + channel, state);
  }
  const Vec bias = load_up_to(layer.bias + channel, n), skip = load_up_to(layer.skip + channel, n);
  for (long r = 0; r < rows.rows; ++r) {
    const long row = rows.row + r;
    const Vec x = load_up_to(layer.x + row * layer.ldx + channel, n);
    const Vec step = softplus(load_up_to(layer.steps + row * layer.ldsteps + channel, n) + bias);
    const Vec change = step * x, back = zero() - step;
    const float* const b = layer.b + row * layer.ldbc;
    const float* const c = layer.c + row * layer.ldbc;
    Vec sum = zero();
    for (long i = 0; i < layer.state_dim; ++i) {
      float* const cell = state + i * stride;
      const Vec decay = exp(back * load_up_to(layer.rate + i * layer.width + channel, n));
      const Vec now = fma(change, broadcast(b[i]), load(cell) * decay);
      store(cell, now);
      sum = fma(now, broadcast(c[i]), sum);
    }
    store_up_to(layer.out + row * layer.ldout + channel, fma(skip, x, sum), n);
    if (rows.slots[r] >= 0 && r + 1 < rows.rows) copy(state, layer.state.slot(rows.slots[r]) + channel);
  }
}

void scan(const SelectiveScan& layer, const StateRows& rows, long begin, long end) {
  for_each_vector(end - begin, [&](long i, long n) { scan_vector(layer, rows, begin + i, n); });
}

// One vector of channels, whose states stay in a register from row to row.
DRAGOMAN_INLINE void unit_vector(const GatedUnit& layer, const StateRows& rows, long channel, long n) {
  const Vec one = broadcast(1.0f), back = zero() - load_up_to(layer.rate + channel, n);
  const Vec input_bias = load_up_to(layer.input_bias + channel, n);
  const Vec decay_bias = load_up_to(layer.decay_bias + channel, n);
  Vec state = rows.before < 0 ? zero() : load_up_to(layer.state.slot(rows.before) + channel, n);
  for (long r = 0; r < rows.rows; ++r) {
    const long row = rows.row + r;
    float* const x = layer.x + row * layer.ldx + channel;
    const Vec open = sigmoid(load_up_to(layer.input + row * layer.ldinput + channel, n) + input_bias);
    const Vec decay = exp(back * sigmoid(load_up_to(layer.decay + row * layer.lddecay + channel, n) + decay_bias));
    const Vec change = open * load_up_to(x, n);
    const bool first = rows.before < 0 && r == 0;
    const Vec factor = first ? one : sqrt(max(one - decay * decay, zero()));
    state = fma(factor, change, decay * state);
    store_up_to(x, state, n);
    if (rows.slots[r] >= 0) store_up_to(layer.state.slot(rows.slots[r]) + channel, state, n);
  }
}

void unit(const GatedUnit& layer, const StateRows& rows, long begin, long end) {
  for_each_vector(end - begin, [&](long i, long n) { unit_vector(layer, rows, begin + i, n); });
}

void gates(const float* x, const float* y, long ldx, long rows, long count, long factors, const float* rate,
           const float* bias, float least, float most, float* out, long ldout) {
  const auto step = [&](long r, long i, long n) {
    const Vec open = softplus(load_up_to(x + r * ldx + i, n) + load_up_to(bias + i, n));
    return max(min(open, broadcast(most)), broadcast(least));
  };
  for (long r = 0; r < rows; ++r) {
    float* const decays = out + r * ldout;
    for_each_vector(count, [&](long i, long n) {
      store_up_to(decays + i, exp(zero() - step(r, i, n) * load_up_to(rate + i, n)), n);
    });
    for_each_vector(factors, [&](long i, long n) {
      store_up_to(decays + count + i, y == nullptr ? step(r, i, n) : sigmoid(load_up_to(y + r * ldx + i, n)), n);
    });
  }
}

template <Gate gate>
DRAGOMAN_INLINE Vec gated(Vec x, Vec y) {
  if constexpr (gate == Gate::silu) return x * apply<Activation::silu>(y);
  if constexpr (gate == Gate::sigmoid) return x * sigmoid(y);
  if constexpr (gate == Gate::gelu_tanh) return x * apply<Activation::gelu_tanh>(y);
  return x * y;
}

template <Gate gate>
void multiply_gated(const float* x, long ldx, const float* y, long ldy, long rows, long width, float* out, long ldout) {
  for (long r = 0; r < rows; ++r) {
    for_each_vector(width, [&](long i, long n) {
      store_up_to(out + r * ldout + i, gated<gate>(load_up_to(x + r * ldx + i, n), load_up_to(y + r * ldy + i, n)), n);
    });
  }
}

void multiply(Gate gate, const float* x, long ldx, const float* y, long ldy, long rows, long width, float* out,
              long ldout) {
  switch (gate) {
    case Gate::plain: return multiply_gated<Gate::plain>(x, ldx, y, ldy, rows, width, out, ldout);
    case Gate::silu: return multiply_gated<Gate::silu>(x, ldx, y, ldy, rows, width, out, ldout);
    case Gate::sigmoid: return multiply_gated<Gate::sigmoid>(x, ldx, y, ldy, rows, width, out, ldout);
    case Gate::gelu_tanh: return multiply_gated<Gate::gelu_tanh>(x, ldx, y, ldy, rows, width, out, ldout);
  }
}

}  // namespace

constexpr RecurrenceKernels recurrence_kernels{
    .convolve = convolve,
    .recur = recur,
    .scan = scan,
    .unit = unit,
    .gates = gates,
    .multiply = multiply,
};

}  // namespace dragoman::DRAGOMAN_ISA
