// Python bindings of packed matrices, and of the machine: instruction set, threads, measurements, checksum.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>

#include "gemm/measure.h"
#include "gguf/gguf_pack.h"
#include "gguf/gguf_quantize.h"
#include "memory/anonymous_memory.h"
#include "memory/checksum.h"
#include "memory/file_memory.h"
#include "memory/nodes.h"
#include "python/bindings.h"
#include "simd/kernels.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace dragoman {
namespace {

using ByteArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WritableByteRows = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using CodeRows = nb::ndarray<const std::int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ByteRows = nb::ndarray<const std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using HalfRows = nb::ndarray<const std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Weight = nb::ndarray<nb::ndim<2>, nb::c_contig, nb::device::cpu, nb::ro>;

constexpr const char* kPrecisionNames[kPrecisions] = {"float32", "bfloat16", "int8", "int4", "mxfp4", "iq4_nl",
                                                      "iq4_xs",  "q3_k",     "q4_k", "q5_k", "q6_k"};

Precision precision_named(const std::string& name) {
  for (int i = 0; i < kPrecisions; ++i) {
    if (name == kPrecisionNames[i]) return static_cast<Precision>(i);
  }
  throw std::invalid_argument("unknown precision \"" + name +
                              "\": choose float32, bfloat16, int8, int4 or a type of ggml's that is packed as it is");
}

Matrix describe(long n, long k, const std::string& precision, bool minimum, bool wide, bool ordered = false) {
  // The bound keeps all later products of sizes far from overflow.
  if (n < 1 || k < 1 || n > (1L << 31) || k > (1L << 24)) {
    throw std::invalid_argument("a packed matrix needs 1 <= n <= 2**31 and 1 <= k <= 2**24, got n = " +
                                std::to_string(n) + ", k = " + std::to_string(k));
  }
  Matrix matrix;
  matrix.n = n;
  matrix.k = k;
  matrix.precision = precision_named(precision);
  matrix.minimum = minimum;
  matrix.wide = wide;
  matrix.ordered = ordered;
  const bool codes = matrix.precision == Precision::int8 || matrix.precision == Precision::int4;
  if (ordered && !codes) throw std::invalid_argument("only int8 and int4 have an order");
  if (minimum && matrix.precision != Precision::int4) throw std::invalid_argument("only int4 groups have a minimum");
  if (wide && matrix.precision != Precision::int8) throw std::invalid_argument("only int8 groups can share a scale");
  if (is_chunked(matrix.precision) && k % gguf_block(static_cast<int>(gguf_type_of(matrix.precision))).values != 0) {
    throw std::invalid_argument("rows of " + precision + " are whole blocks, and k = " + std::to_string(k) +
                                " is not a multiple of theirs");
  }
  return matrix;
}

// Throws std::invalid_argument unless the order names each input once.
void require_order(const std::int32_t* order, long k) {
  std::vector<bool> seen(static_cast<std::size_t>(k));
  for (long i = 0; i < k; ++i) {
    const std::int32_t input = order[i];
    if (input < 0 || input >= k || seen[static_cast<std::size_t>(input)]) {
      throw std::invalid_argument("an order must name each of " + std::to_string(k) + " inputs once");
    }
    seen[static_cast<std::size_t>(input)] = true;
  }
}

PackedMatrix view(nb::object data, long n, long k, const std::string& precision, bool minimum, bool wide,
                  bool ordered = false) {
  Matrix matrix = describe(n, k, precision, minimum, wide, ordered);
  const auto array = nb::cast<ByteArray>(data);
  if (array.shape(0) != matrix.bytes()) {
    throw std::invalid_argument("a packed " + precision + " matrix of shape (" + std::to_string(n) + ", " +
                                std::to_string(k) + ") has " + std::to_string(matrix.bytes()) + " bytes, not " +
                                std::to_string(array.shape(0)));
  }
  matrix.data = const_cast<std::uint8_t*>(array.data());
  return {matrix, std::move(data)};
}

nb::object empty_bytes(std::size_t bytes) {
  auto* const memory = new AnonymousMemory(bytes);
  nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<AnonymousMemory*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(memory->data(), {bytes}, owner));
}

// The object that Python holds; the arrays over the memory keep it alive independently.
struct SharedFileMemory {
  std::shared_ptr<FileMemory> memory;
};

nb::object bytes_of(const SharedFileMemory& file) {
  auto* const kept = new std::shared_ptr<FileMemory>(file.memory);
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::shared_ptr<FileMemory>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, const std::uint8_t, nb::ndim<1>>((*kept)->data(), {(*kept)->size()}, owner));
}

SourceType source_type(const Weight& weight) {
  const auto type = weight.dtype();
  if (type == nb::dtype<float>()) return SourceType::float32;
  if (type == nb::dtype<std::uint16_t>()) return SourceType::bfloat16;
  if (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && type.bits == 16) {
    return SourceType::float16;
  }
  throw std::invalid_argument("a weight must be float32, float16 or bfloat16 (as uint16)");
}

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

PackedMatrix pack_weight(const Weight& weight, const std::string& precision, bool minimum, bool wide) {
  const SourceType type = source_type(weight);
  const auto n = static_cast<long>(weight.shape(0)), k = static_cast<long>(weight.shape(1));
  const Matrix matrix = describe(n, k, precision, minimum, wide);
  require(!is_chunked(matrix.precision), "types of ggml are packed from blocks, not from numbers");
  PackedMatrix packed = view(empty_bytes(matrix.bytes()), n, k, precision, minimum, wide);
  nb::gil_scoped_release release;
  pack(packed.matrix, weight.data(), type);
  return packed;
}

PackedMatrix pack_given(const CodeRows& values, const HalfRows& scales, std::optional<HalfRows> minimums,
                        const std::string& precision, bool wide, std::optional<Ids> order) {
  const auto n = static_cast<long>(values.shape(0)), k = static_cast<long>(values.shape(1));
  const Matrix matrix = describe(n, k, precision, minimums.has_value(), wide, order.has_value());
  require(matrix.precision == Precision::int8 || matrix.precision == Precision::int4,
          "only int8 and int4 are made of codes");
  require(!order || static_cast<long>(order->shape(0)) == k, "an order must be [K]");
  if (order) require_order(order->data(), k);
  const auto fits = [&](const HalfRows& given) {
    return static_cast<long>(given.shape(0)) == n && static_cast<long>(given.shape(1)) == matrix.groups();
  };
  require(fits(scales) && (!minimums || fits(*minimums)), "scales and minimums must be [N, ceil(K / 32)]");
  PackedMatrix packed =
      view(empty_bytes(matrix.bytes()), n, k, precision, minimums.has_value(), wide, order.has_value());
  nb::gil_scoped_release release;
  pack_codes(packed.matrix, {.values = values.data(),
                             .scales = scales.data(),
                             .minimums = minimums ? minimums->data() : nullptr,
                             .order = order ? order->data() : nullptr});
  return packed;
}

nb::object quantize_blocks(const Weight& weight) {
  const SourceType type = source_type(weight);
  const auto n = static_cast<long>(weight.shape(0)), k = static_cast<long>(weight.shape(1));
  require(k % kGroup == 0, "rows of iq4_nl are whole blocks of 32");
  const std::size_t row_bytes = static_cast<std::size_t>(k) / 32 * 18;
  auto* const blocks = new std::uint8_t[static_cast<std::size_t>(n) * row_bytes];
  nb::capsule owner(blocks, [](void* p) noexcept { delete[] static_cast<std::uint8_t*>(p); });
  {
    nb::gil_scoped_release release;
    quantize_iq4_nl(weight.data(), type, n, k, blocks);
  }
  return nb::cast(
      nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<2>>(blocks, {static_cast<std::size_t>(n), row_bytes}, owner));
}

void round_with_feedback(const FloatRows& values, const FloatRows& factor, const WritableByteRows& blocks,
                         const WritableRows& errors) {
  const std::size_t n = values.shape(1);
  require(values.shape(0) == kGroup && factor.shape(0) == kGroup && factor.shape(1) == kGroup,
          "values must be [32, N], and factor [32, 32]");
  require(blocks.shape(0) == n && blocks.shape(1) == 18, "blocks must be [N, 18]");
  require(errors.shape(0) == kGroup && errors.shape(1) == n, "errors must be [32, N]");
  nb::gil_scoped_release release;
  round_iq4_nl_with_feedback(values.data(), static_cast<long>(n), factor.data(), blocks.data(), errors.data());
}

PackedMatrix pack_rows_of_blocks(const ByteRows& blocks, long k, const std::string& precision) {
  const auto n = static_cast<long>(blocks.shape(0));
  const Matrix matrix = describe(n, k, precision, false, false);
  require(is_chunked(matrix.precision), "only types of ggml are made of blocks");
  const GgufBlock block = gguf_block(static_cast<int>(gguf_type_of(matrix.precision)));
  require(static_cast<long>(blocks.shape(1)) == k / block.values * block.bytes, "blocks must be [N, bytes of a row]");
  PackedMatrix packed = view(empty_bytes(matrix.bytes()), n, k, precision, false, false);
  nb::gil_scoped_release release;
  pack_gguf(packed.matrix, blocks.data());
  return packed;
}

void gather(const PackedMatrix& w, const Ids& ids, WritableRows& out) {
  require(out.shape(0) == ids.shape(0) && static_cast<long>(out.shape(1)) == w.matrix.k, "out must be [ids, k]");
  const auto count = static_cast<long>(ids.shape(0));
  for (long i = 0; i < count; ++i) {
    if (ids.data()[i] < 0 || ids.data()[i] >= w.matrix.n) throw std::out_of_range("row id out of range");
  }
  nb::gil_scoped_release release;
  gather_rows(w.matrix, ids.data(), count, out.data(), w.matrix.k);
}

void multiply_rows(const FloatRows& x, const PackedMatrix& w, std::optional<FloatVector> bias, WritableRows& out,
                   bool accumulate) {
  require(static_cast<long>(x.shape(1)) == w.matrix.k, "x must be [rows, k]");
  require(out.shape(0) == x.shape(0) && static_cast<long>(out.shape(1)) == w.matrix.n, "out must be [rows, n]");
  require(!bias || static_cast<long>(bias->shape(0)) == w.matrix.n, "bias must be [n]");
  thread_local Scratch scratch;
  nb::gil_scoped_release release;
  linear(w.matrix, x.data(), w.matrix.k, static_cast<long>(x.shape(0)), out.data(), w.matrix.n,
         bias ? bias->data() : nullptr, accumulate, scratch);
}

}  // namespace

void bind_linear(nb::module_& m) {
  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def(
          "__init__",
          [](PackedMatrix* self, nb::object data, long n, long k, const std::string& precision, bool minimum, bool wide,
             bool ordered) {
            PackedMatrix packed = view(std::move(data), n, k, precision, minimum, wide, ordered);
            if (ordered) require_order(packed.matrix.order(), k);
            new (self) PackedMatrix(std::move(packed));
          },
          nb::arg("data"), nb::arg("n"), nb::arg("k"), nb::arg("precision"), nb::arg("minimum") = false,
          nb::arg("wide") = false, nb::arg("ordered") = false)
      .def_prop_ro("shape", [](const PackedMatrix& w) { return std::pair(w.matrix.n, w.matrix.k); })
      .def_prop_ro("precision",
                   [](const PackedMatrix& w) { return kPrecisionNames[static_cast<int>(w.matrix.precision)]; })
      .def_prop_ro("minimum", [](const PackedMatrix& w) { return w.matrix.minimum; })
      .def_prop_ro("wide", [](const PackedMatrix& w) { return w.matrix.wide; })
      .def_prop_ro("ordered", [](const PackedMatrix& w) { return w.matrix.ordered; })
      .def_prop_ro("nbytes", [](const PackedMatrix& w) { return w.matrix.bytes(); })
      .def_prop_ro("data", [](const PackedMatrix& w) { return w.data; })
      .def("dequantize",
           [](const PackedMatrix& w) {
             const auto n = static_cast<std::size_t>(w.matrix.n), k = static_cast<std::size_t>(w.matrix.k);
             auto* const memory = new AnonymousMemory(n * k * sizeof(float));
             nb::capsule owner(memory, [](void* p) noexcept { delete static_cast<AnonymousMemory*>(p); });
             auto* const out = reinterpret_cast<float*>(memory->data());
             {
               nb::gil_scoped_release release;
               unpack(w.matrix, out);
             }
             return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(out, {n, k}, owner));
           })
      .def("__repr__", [](const PackedMatrix& w) {
        return "PackedMatrix(" + std::to_string(w.matrix.n) + ", " + std::to_string(w.matrix.k) + ", " +
               kPrecisionNames[static_cast<int>(w.matrix.precision)] + ")";
      });

  m.def(
      "packed_bytes",
      [](long n, long k, const std::string& precision, bool minimum, bool wide, bool ordered) {
        return describe(n, k, precision, minimum, wide, ordered).bytes();
      },
      nb::arg("n"), nb::arg("k"), nb::arg("precision"), nb::arg("minimum") = false, nb::arg("wide") = false,
      nb::arg("ordered") = false);
  m.def("pack", pack_weight, nb::arg("weight").noconvert(), nb::arg("precision"), nb::arg("minimum"), nb::arg("wide"));
  m.def("pack_codes", pack_given, nb::arg("values").noconvert(), nb::arg("scales").noconvert(),
        nb::arg("minimums").noconvert().none(), nb::arg("precision"), nb::arg("wide"),
        nb::arg("order").noconvert().none());
  m.def("quantize_blocks", quantize_blocks, nb::arg("weight").noconvert());
  m.def("round_with_feedback", round_with_feedback, nb::arg("values").noconvert(), nb::arg("factor").noconvert(),
        nb::arg("blocks").noconvert(), nb::arg("errors").noconvert());
  m.def("pack_blocks", pack_rows_of_blocks, nb::arg("blocks").noconvert(), nb::arg("k"), nb::arg("precision"));
  m.def("gather_rows", gather, nb::arg("w"), nb::arg("ids").noconvert(), nb::arg("out").noconvert());
  m.def("linear", multiply_rows, nb::arg("x").noconvert(), nb::arg("w"), nb::arg("bias").none(),
        nb::arg("out").noconvert(), nb::arg("accumulate"));
  nb::class_<SharedFileMemory>(m, "FileMemory")
      .def(
          "__init__",
          [](SharedFileMemory* self, int file, std::size_t nbytes) {
            new (self) SharedFileMemory{std::make_shared<FileMemory>(file, nbytes)};
          },
          nb::arg("file"), nb::arg("nbytes"))
      .def_prop_ro("data", bytes_of)
      .def(
          "settle",
          [](const SharedFileMemory& self, double delay_s, const std::string& mappings) {
            self.memory->settle(std::chrono::duration<double>(delay_s), mappings);
          },
          nb::arg("delay_s") = 0.0, nb::arg("mappings") = "/proc/self/smaps")
      .def(
          "settled", [](const SharedFileMemory& self) { return self.memory->settled(); },
          nb::call_guard<nb::gil_scoped_release>());
  m.def("empty", empty_bytes, nb::arg("nbytes"));

  m.def("instruction_set", [] { return std::string(kernels().name); });
  m.def("instruction_sets", supported_kernels);
  m.def("force", force_kernels, nb::arg("name"));
  m.def(
      "set_threads", [](int threads) { pool().resize(threads); }, nb::arg("threads"),
      nb::call_guard<nb::gil_scoped_release>());
  m.def("threads", [] { return pool().threads(); });
  m.def("set_memory_nodes", set_memory_nodes, nb::arg("nodes"));
  m.def(
      "checksum",
      [](const ByteArray& bytes) {
        nb::gil_scoped_release release;
        return checksum(bytes.data(), bytes.shape(0));
      },
      nb::arg("bytes"));
  m.def("memory_passes", memory_passes, nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "multiply_peak",
      [](const std::string& precision) {
        const Precision wanted = precision_named(precision);
        nb::gil_scoped_release release;
        return multiply_peak(wanted);
      },
      nb::arg("precision"));
}

}  // namespace dragoman
