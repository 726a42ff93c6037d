// Causal attention of bfloat16 heads of 32 numbers, and its gradient, with AMX tiles.
//
// Queries are [rows, heads, length, 32]; keys and values have fewer heads, each of which serves a group of query heads.
// A head of 32 is the depth of one tile, so that one instruction multiplies 16 queries with 16 keys. Scores are
// computed transposed, keys in rows and queries in columns: what belongs to a query lies in one lane of all vectors,
// and maxima and sums need no step across lanes. Exponentials are taken to base 2. The gradient computes the scores
// again, from what the forward pass kept of each query: the base-2 logarithm of its sum of exponentials (Dao et al.,
// 2022).

#include <immintrin.h>
#include <sys/syscall.h>
#include <torch/extension.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <tuple>

namespace {

using Bf16 = uint16_t;

constexpr int kHead = 32;   // numbers in a head: the depth of a tile
constexpr int kTile = 16;   // rows of a tile, and numbers in a vector of float32
constexpr int kBlock = 32;  // the depth of a tile again: so many keys or queries are summed at once
constexpr int kTileFloats = kTile * kTile;
constexpr float kLog2E = 1.44269504f;

/// Memory on a cache line's boundary.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t size) : data_(static_cast<T*>(std::aligned_alloc(64, (size * sizeof(T) + 63) / 64 * 64))) {}
  operator T*() const { return data_.get(); }

 private:
  struct Freed {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Freed> data_;
};

/// One head of a tensor [rows, heads, length, 32]: positions `stride` numbers apart.
struct Head {
  Bf16* data;
  int64_t stride;
  Bf16* operator[](int64_t position) const { return data + position * stride; }
};

Head head_of(const torch::Tensor& tensor, int64_t row, int64_t head) {
  auto* first = static_cast<Bf16*>(tensor.data_ptr());
  return {first + row * tensor.stride(0) + head * tensor.stride(1), tensor.stride(2)};
}

void check(const torch::Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == torch::kBFloat16 && tensor.dim() == 4, "expected bfloat16 of four dimensions");
  TORCH_CHECK(tensor.size(3) == kHead && tensor.stride(3) == 1 && tensor.size(2) % kBlock == 0,
              "expected heads of 32 numbers in a row, and a length that is a multiple of 32");
}

/// Asks Linux for the tiles, once a process, and gives all eight the size of 16 rows of 64 bytes, in this thread.
class Tiles {
 public:
  Tiles() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    TORCH_CHECK(granted, "the operating system refuses AMX tiles");
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } layout;
    for (int tile = 0; tile < 8; ++tile) layout.row_bytes[tile] = 64, layout.rows[tile] = kTile;
    _tile_loadconfig(&layout);
  }
  ~Tiles() { _tile_release(); }
};

/// 2^x for x <= 0, with a relative error below 2e-4: less than bfloat16 keeps.
__m512 exp2_of(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, 0);
  const __m512 part = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(0.00960514f);
  for (const float factor : {0.05550411f, 0.24022651f, 0.69314718f, 1.0f})
    sum = _mm512_fmadd_ps(sum, part, _mm512_set1_ps(factor));
  return _mm512_scalef_ps(sum, whole);
}

/// Sixteen numbers rounded to bfloat16, each in the upper half of its lane; the lower half is to be discarded.
__m512i rounded(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}

/// Each lane holds a pair of bfloat16: of `first` in the lower half, of `second` in the upper one.
__m512i paired(__m512 first, __m512 second) {
  const __m512i upper = _mm512_and_si512(rounded(second), _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  return _mm512_or_si512(_mm512_srli_epi32(rounded(first), 16), upper);
}

/// 32 bfloat16 in a row: 16 of `first`, then 16 of `second`.
__m512i joined(__m512 first, __m512 second) { return (__m512i)_mm512_cvtne2ps_pbh(second, first); }

__m512i lanes() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

/// Lanes that hold queries `query` to `query + 15` and see the key.
__mmask16 sees(int query, int key) {
  return _mm512_cmpge_epi32_mask(_mm512_add_epi32(lanes(), _mm512_set1_epi32(query)), _mm512_set1_epi32(key));
}

// The right factor of a product of tiles holds pairs of neighbours along the depth. Three arrangements of a head's
// positions [length, 32] are needed; a block is 32 positions, 512 pairs:

/// Depth along the head: for each 16 positions, [16 pairs of the head][16 positions].
void arrange_by_head(Head from, int length, uint32_t* to) {
  const __m512i at = _mm512_mullo_epi32(lanes(), _mm512_set1_epi32(static_cast<int>(from.stride / 2)));
  for (int first = 0; first < length; first += kTile)
    for (int pair = 0; pair < kTile; ++pair, to += kTile)
      _mm512_store_si512(to, _mm512_i32gather_epi32(at, reinterpret_cast<const int*>(from[first]) + pair, 4));
}

/// Depth along positions: for each block, two halves of the head [16 pairs of positions][16 numbers].
void arrange_by_position(Head from, int length, uint32_t* to) {
  for (int first = 0; first < length; first += 2) {
    uint32_t* pair = to + first / kBlock * 2 * kTileFloats + first % kBlock / 2 * kTile;
    for (int half = 0; half < 2; ++half) {
      const auto* even = reinterpret_cast<const __m256i*>(from[first]) + half;
      const auto* odd = reinterpret_cast<const __m256i*>(from[first + 1]) + half;
      const __m512i upper = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(odd)), 16);
      _mm512_store_si512(pair + half * kTileFloats,
                         _mm512_or_si512(_mm512_cvtepu16_epi32(_mm256_loadu_si256(even)), upper));
    }
  }
}

/// A left factor with depth along positions: for each block, [32 numbers of the head][32 positions].
void transpose(Head from, int length, Bf16* to) {
  for (int first = 0; first < length; first += kBlock, to += kBlock * kHead)
    for (int position = 0; position < kBlock; ++position)
      for (int number = 0; number < kHead; ++number) to[number * kBlock + position] = from[first + position][number];
}

/// Writes 16 positions of a head from [32 numbers of the head][16 positions].
void write_transposed(const float* from, Bf16* to, int64_t stride) {
  const __m512i at = _mm512_slli_epi32(lanes(), 4);
  for (int position = 0; position < kTile; ++position)
    _mm512_storeu_si512(to + position * stride, joined(_mm512_i32gather_ps(at, from + position, 4),
                                                       _mm512_i32gather_ps(at, from + kTileFloats + position, 4)));
}

/// Two 16 x 16 tiles of products each way, stored as [32][32]: rows of `left` with columns of `right`.
void multiply_block(Head left, int row, const uint32_t* right, float* product) {
  _tile_loadd(4, left[row], left.stride * 2);
  _tile_loadd(5, left[row + kTile], left.stride * 2);
  _tile_loadd(6, right, 64);
  _tile_loadd(7, right + kTileFloats, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  _tile_stored(0, product, 128);
  _tile_stored(1, product + kTile, 128);
  _tile_stored(2, product + 2 * kTileFloats, 128);
  _tile_stored(3, product + 2 * kTileFloats + kTile, 128);
}

/// Adds the product of two [32][32] factors to four tiles: `left` in rows, `right` as two arranged tiles.
void add_product(float* sum, const Bf16* left, const uint32_t* right) {
  _tile_loadd(0, sum, 64);
  _tile_loadd(1, sum + kTileFloats, 64);
  _tile_loadd(2, sum + 2 * kTileFloats, 64);
  _tile_loadd(3, sum + 3 * kTileFloats, 64);
  _tile_loadd(4, left, 64);
  _tile_loadd(5, left + kTile * kBlock, 64);
  _tile_loadd(6, right, 64);
  _tile_loadd(7, right + kTileFloats, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
  _tile_stored(0, sum, 64);
  _tile_stored(1, sum + kTileFloats, 64);
  _tile_stored(2, sum + 2 * kTileFloats, 64);
  _tile_stored(3, sum + 3 * kTileFloats, 64);
}

/// Attention of the queries of one head; `values` are transposed. Writes the output and each query's base-2 logarithm
/// of its sum of exponentials.
void attend(Head query, Head key, const Bf16* values, int length, Head output, float* logarithms) {
  const __m512 scale = _mm512_set1_ps(kLog2E / std::sqrt(float(kHead)));
  Buffer<uint32_t> queries(int64_t(length) * kTile);
  Buffer<float> scores(int64_t(length) * kTile), sums(2 * kTileFloats);
  Buffer<uint32_t> weights(kTileFloats);
  arrange_by_head(query, length, queries);
  for (int first = 0; first < length; first += kTile) {
    const int seen = first + kTile;
    _tile_loadd(0, queries + first * kTile, 64);
    for (int from = 0; from < seen; from += kTile) {
      _tile_zero(1);
      _tile_loadd(2, key[from], key.stride * 2);
      _tile_dpbf16ps(1, 2, 0);
      _tile_stored(1, scores + from * kTile, 64);
    }
    __m512 highest = _mm512_set1_ps(-INFINITY);
    for (int place = 0; place < seen; ++place) {
      __m512 score = _mm512_load_ps(scores + place * kTile);
      score = _mm512_mask_blend_ps(sees(first, place), _mm512_set1_ps(-INFINITY), score);
      _mm512_store_ps(scores + place * kTile, score);
      highest = _mm512_max_ps(highest, score);
    }
    highest = _mm512_mul_ps(highest, scale);
    __m512 total = _mm512_setzero_ps();
    _tile_zero(3);
    _tile_zero(4);
    for (int from = 0; from < seen; from += kBlock) {
      for (int pair = 0; pair < kTile; ++pair) {
        __m512 weight[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int one = 0; one < 2; ++one) {
          const int place = from + 2 * pair + one;
          if (place < seen)
            weight[one] = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + place * kTile), scale, highest));
          total = _mm512_add_ps(total, weight[one]);
        }
        _mm512_store_si512(weights + pair * kTile, paired(weight[0], weight[1]));
      }
      _tile_loadd(5, weights, 64);
      _tile_loadd(6, values + from * kHead, 64);
      _tile_loadd(7, values + from * kHead + kTile * kBlock, 64);
      _tile_dpbf16ps(3, 6, 5);
      _tile_dpbf16ps(4, 7, 5);
    }
    _tile_stored(3, sums, 64);
    _tile_stored(4, sums + kTileFloats, 64);
    for (int number = 0; number < kHead; ++number) {
      float* of_number = sums + number * kTile;
      _mm512_store_ps(of_number, _mm512_div_ps(_mm512_load_ps(of_number), total));
    }
    write_transposed(sums, output[first], output.stride);
    alignas(64) float total_of[kTile], highest_of[kTile];
    _mm512_store_ps(total_of, total);
    _mm512_store_ps(highest_of, highest);
    for (int one = 0; one < kTile; ++one) logarithms[first + one] = highest_of[one] + std::log2(total_of[one]);
  }
}

/// For each position the sum over the head of gradient times output: what all weights' gradients have in common.
void dot_products(Head gradient, Head output, int length, float* to) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  auto even = [](__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); };
  auto odd = [upper](__m512i pairs) { return _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)); };
  for (int position = 0; position < length; ++position) {
    const __m512i a = _mm512_loadu_si512(gradient[position]), b = _mm512_loadu_si512(output[position]);
    to[position] = _mm512_reduce_add_ps(_mm512_fmadd_ps(even(a), even(b), _mm512_mul_ps(odd(a), odd(b))));
  }
}

/// The gradient of one head's queries; adds the head's part to the gradients of its keys and values, which are tiles
/// [block][2 halves of its positions][2 halves of the head]. `keys` are transposed.
void attend_back(Head query, Head key, Head value, const Bf16* keys, Head output, Head gradient,
                 const float* logarithms, int length, Head query_gradient, float* key_gradient, float* value_gradient) {
  const float root = 1 / std::sqrt(float(kHead));
  const __m512 to_score = _mm512_set1_ps(root * kLog2E), to_gradient = _mm512_set1_ps(root);
  const int64_t pairs = int64_t(length) * kTile;
  Buffer<uint32_t> queries(pairs), query_pairs(pairs), gradients(pairs), gradient_pairs(pairs);
  Buffer<float> sums(int64_t(length) * kHead), dots(length), scores(kBlock * kBlock), changes(kBlock * kBlock);
  Buffer<Bf16> weights(kBlock * kBlock), slopes(kBlock * kBlock);
  Buffer<uint32_t> slope_pairs(2 * kTileFloats);
  arrange_by_head(query, length, queries);
  arrange_by_position(query, length, query_pairs);
  arrange_by_head(gradient, length, gradients);
  arrange_by_position(gradient, length, gradient_pairs);
  dot_products(gradient, output, length, dots);
  std::fill_n(static_cast<float*>(sums), int64_t(length) * kHead, 0.0f);
  for (int from = 0; from < length; from += kBlock)
    for (int first = from; first < length; first += kBlock) {
      multiply_block(key, from, queries + first * kTile, scores);
      multiply_block(value, from, gradients + first * kTile, changes);
      for (int pair = 0; pair < kTile; ++pair) {
        __m512 slope[2][2];
        for (int one = 0; one < 2; ++one) {
          const int place = 2 * pair + one;
          __m512 weight[2];
          for (int half = 0; half < 2; ++half) {
            const int at = place * kBlock + half * kTile, asking = first + half * kTile;
            const __m512 score =
                _mm512_fmsub_ps(_mm512_load_ps(scores + at), to_score, _mm512_loadu_ps(logarithms + asking));
            weight[half] = _mm512_maskz_mov_ps(sees(asking, from + place), exp2_of(score));
            const __m512 change = _mm512_sub_ps(_mm512_load_ps(changes + at), _mm512_load_ps(dots + asking));
            slope[half][one] = _mm512_mul_ps(_mm512_mul_ps(weight[half], to_gradient), change);
          }
          _mm512_store_si512(weights + place * kBlock, joined(weight[0], weight[1]));
          _mm512_store_si512(slopes + place * kBlock, joined(slope[0][one], slope[1][one]));
        }
        for (int half = 0; half < 2; ++half)
          _mm512_store_si512(slope_pairs + half * kTileFloats + pair * kTile, paired(slope[half][0], slope[half][1]));
      }
      add_product(value_gradient + from * kHead, weights, gradient_pairs + first * kTile);
      add_product(key_gradient + from * kHead, slopes, query_pairs + first * kTile);
      add_product(sums + first * kHead, keys + from * kHead, slope_pairs);
    }
  Buffer<float> turned(2 * kTileFloats);
  for (int first = 0; first < length; first += kTile) {
    const float* of_block = sums + first / kBlock * kBlock * kHead + first % kBlock / kTile * kTileFloats;
    for (int half = 0; half < 2; ++half)
      std::copy_n(of_block + half * 2 * kTileFloats, kTileFloats, turned + half * kTileFloats);
    write_transposed(turned, query_gradient[first], query_gradient.stride);
  }
}

/// Writes tiles [block][2 halves of its positions][2 halves of the head] as positions of a head.
void write_tiles(const float* from, int length, Head to) {
  for (int position = 0; position < length; ++position) {
    const float* row = from + position / kTile * 2 * kTileFloats + position % kTile * kTile;
    _mm512_storeu_si512(to[position], joined(_mm512_load_ps(row), _mm512_load_ps(row + kTileFloats)));
  }
}

/// [rows, heads, length, 32], laid out as [rows, length, heads, 32]: what the projections before and after read.
torch::Tensor new_heads(const torch::Tensor& tensor) {
  return torch::empty({tensor.size(0), tensor.size(2), tensor.size(1), kHead}, tensor.options()).transpose(1, 2);
}

std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& query, const torch::Tensor& key,
                                                 const torch::Tensor& value) {
  for (const auto* each : {&query, &key, &value}) check(*each);
  const int length = query.size(2), heads = key.size(1), group = query.size(1) / heads;
  torch::Tensor output = new_heads(query);
  torch::Tensor logarithms = torch::empty({query.size(0), query.size(1), length}, torch::kFloat32);
  at::parallel_for(0, query.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    Buffer<Bf16> values(int64_t(length) * kHead);
    for (int64_t each = begin; each < end; ++each) {
      const int64_t row = each / heads, head = each % heads;
      transpose(head_of(value, row, head), length, values);
      for (int64_t asking = head * group; asking < (head + 1) * group; ++asking)
        attend(head_of(query, row, asking), head_of(key, row, head), values, length, head_of(output, row, asking),
               logarithms.data_ptr<float>() + (row * heads * group + asking) * length);
    }
  });
  return {output, logarithms};
}

std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> backward(const torch::Tensor& query, const torch::Tensor& key,
                                                                 const torch::Tensor& value,
                                                                 const torch::Tensor& output,
                                                                 const torch::Tensor& logarithms,
                                                                 const torch::Tensor& gradient) {
  for (const auto* each : {&query, &key, &value, &output, &gradient}) check(*each);
  const int length = query.size(2), heads = key.size(1), group = query.size(1) / heads;
  torch::Tensor of_query = new_heads(query), of_key = new_heads(key), of_value = new_heads(value);
  at::parallel_for(0, query.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    const Tiles tiles;
    const int64_t size = int64_t(length) * kHead;
    Buffer<Bf16> keys(size);
    Buffer<float> key_sums(size), value_sums(size);
    for (int64_t each = begin; each < end; ++each) {
      const int64_t row = each / heads, head = each % heads;
      transpose(head_of(key, row, head), length, keys);
      std::fill_n(static_cast<float*>(key_sums), size, 0.0f);
      std::fill_n(static_cast<float*>(value_sums), size, 0.0f);
      for (int64_t asking = head * group; asking < (head + 1) * group; ++asking)
        attend_back(head_of(query, row, asking), head_of(key, row, head), head_of(value, row, head), keys,
                    head_of(output, row, asking), head_of(gradient, row, asking),
                    logarithms.data_ptr<float>() + (row * heads * group + asking) * length, length,
                    head_of(of_query, row, asking), key_sums, value_sums);
      write_tiles(key_sums, length, head_of(of_key, row, head));
      write_tiles(value_sums, length, head_of(of_value, row, head));
    }
  });
  return {of_query, of_key, of_value};
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("forward", &forward);
  module.def("backward", &backward);
}
