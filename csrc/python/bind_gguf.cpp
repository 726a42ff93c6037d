// Python bindings of GGUF's quantized blocks.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "gguf/gguf_blocks.h"
#include "gguf/gguf_pack.h"
#include "python/bindings.h"

namespace nb = nanobind;

namespace dragoman {
namespace {

using ByteArray = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using CodeRows = nb::ndarray<std::int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using HalfRows = nb::ndarray<std::uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

void dequantize(const ByteArray& blocks, int type, Floats& out) {
  const GgufBlock block = gguf_block(type);
  const auto bytes = static_cast<long>(blocks.shape(0)), values = static_cast<long>(out.shape(0));
  require(bytes % block.bytes == 0, "these bytes are not whole blocks");
  const long count = bytes / block.bytes;
  require(values == count * block.values, "out must have one float for each number");
  nb::gil_scoped_release release;
  dequantize_gguf(static_cast<GgufType>(type), blocks.data(), count, out.data());
}

bool codes(const ByteArray& blocks, int type, CodeRows& values, HalfRows& scales, std::optional<HalfRows> minimums,
           bool int8) {
  const GgufBlock block = gguf_block(type);
  const auto rows = static_cast<long>(values.shape(0)), k = static_cast<long>(values.shape(1));
  const bool minimum = minimums.has_value();
  const Precision precision = int8 ? Precision::int8 : Precision::int4;
  require(k % block.values == 0, "rows must be whole blocks");
  require(static_cast<long>(blocks.shape(0)) == rows * (k / block.values) * block.bytes, "values must be [rows, k]");
  const auto fits = [&](const HalfRows& given) {
    return static_cast<long>(given.shape(0)) == rows && static_cast<long>(given.shape(1)) == k / kGroup;
  };
  require(fits(scales) && (!minimum || fits(*minimums)), "scales and minimums must be [rows, k / 32]");
  nb::gil_scoped_release release;
  return gguf_codes(static_cast<GgufType>(type), blocks.data(), rows, k, precision, minimum, values.data(),
                    scales.data(), minimum ? minimums->data() : nullptr);
}

bool scales_are_finite(const ByteArray& blocks, int type) {
  const GgufBlock block = gguf_block(type);
  const auto bytes = static_cast<long>(blocks.shape(0));
  require(bytes % block.bytes == 0, "these bytes are not whole blocks");
  nb::gil_scoped_release release;
  return gguf_scales_are_finite(static_cast<GgufType>(type), blocks.data(), bytes / block.bytes);
}

}  // namespace

void bind_gguf(nb::module_& m) {
  m.def(
      "gguf_block",
      [](int type) {
        const GgufBlock block = gguf_block(type);
        return nb::make_tuple(block.values, block.bytes);
      },
      nb::arg("type"));
  m.def(
      "gguf_has_codes",
      [](int type, bool int8, bool minimum) {
        gguf_block(type);
        return gguf_has_codes(static_cast<GgufType>(type), int8 ? Precision::int8 : Precision::int4, minimum);
      },
      nb::arg("type"), nb::arg("int8"), nb::arg("minimum"));
  m.def("dequantize_gguf", dequantize, nb::arg("blocks"), nb::arg("type"), nb::arg("out").noconvert());
  m.def("gguf_scales_are_finite", scales_are_finite, nb::arg("blocks"), nb::arg("type"));
  m.def("gguf_codes", codes, nb::arg("blocks"), nb::arg("type"), nb::arg("values").noconvert(),
        nb::arg("scales").noconvert(), nb::arg("minimums").noconvert().none(), nb::arg("int8"));
}

}  // namespace dragoman
