// Where the sums of a tile go: rows of y, after the bias and what is there.
namespace dragoman::DRAGOMAN_ISA {

constexpr int kVectors = kBlock / kWidth;  // of a row of a tile

// Destination of a tile's sums.
struct Output {
  float* y;
  long ldy;
  long n;  // columns of y
  const float* bias;
  bool accumulate;
};

template <int M>
DRAGOMAN_INLINE void finish(const Output& out, long row, long block, const Vec (&sum)[M][kVectors]) {
  for (int j = 0; j < kVectors; ++j) {
    const long column = block * kBlock + j * kWidth;
    const long width = out.n - column;
    if (width <= 0) return;
    for (int i = 0; i < M; ++i) {
      float* const y = out.y + (row + i) * out.ldy + column;
      Vec value = sum[i][j];
      if (width >= kWidth) {
        if (out.bias != nullptr) value = value + load(out.bias + column);
        if (out.accumulate) value = value + load(y);
        store(y, value);
      } else {
        if (out.bias != nullptr) value = value + load_partial(out.bias + column, width);
        if (out.accumulate) value = value + load_partial(y, width);
        store_partial(y, value, width);
      }
    }
  }
}

}  // namespace dragoman::DRAGOMAN_ISA
