"""8-bit floating-point numbers and FP8 checkpoints: DeepSeek's and Qwen's (``fp8``), and ``fbgemm_fp8``.

A matrix ``[N, K]`` is ``weight`` (E4M3 or E5M2, https://arxiv.org/abs/2209.05433) and ``weight_scale_inv``, or
``weight_scale``: for the matrix, for each output, or for blocks of outputs and inputs. w = scale * number, whatever the
name says. Activations have specific formats there; here they have that of the selected precision.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.quantized.matrices import NumberMatrix, block_grid
from dragoman.models.quantized.module_names import in_layers, is_kept
from dragoman.models.quantized.mxfp4 import FORM as MXFP4_FORM
from dragoman.models.quantized.mxfp4 import mxfp4_matrix
from dragoman.models.quantized.scheme import Options, Pieces, find_pieces, read_finite, replace_pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor

FLOAT8 = ("F8_E4M3", "F8_E5M2")
FLOAT8_FORM = Format("int8")

_SCALES = ("weight_scale_inv", "weight_scale")
_UNUSED = ("input_scale", "input_scale_ub", "activation_scale", "k_scale", "v_scale", "output_scale")
_DECISIVE = frozenset(
    {"quant_method", "weight_block_size", "modules_to_not_convert", "ignored_layers", "activation_scheme", "fmt"}
    | {"scale_fmt", "expert_dtype", "modules_to_convert", "store_dtype", "mxfp4_block_size"}
)
_HARMLESS = frozenset({"dequantize", "activation_scale_ub", "kv_cache_scheme"})


def float8_numbers(codes: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """Return bytes as the numbers that they encode."""
    return np.take(_NUMBERS[dtype], codes)


def _e4m3() -> NDArray[np.float32]:
    """Return the numbers of E4M3: 4 bits of exponent around 7, 3 of fraction; all ones are NaN, and there are no
    infinities."""
    code = np.arange(256)
    exponent, fraction = code >> 3 & 15, code & 7
    size = np.where(exponent > 0, (8 + fraction) * 2.0 ** (exponent - 10), fraction * 2.0**-9)
    size[code & 127 == 127] = np.nan
    return np.where(code < 128, size, -size).astype(np.float32)


_NUMBERS = {
    "F8_E4M3": _e4m3(),
    "F8_E5M2": (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32),  # half of a float16
}


class Float8(msgspec.Struct, frozen=True):
    """``block``: outputs and inputs that share a scale; None: as in the scales' shapes. ``kept``: not quantized.
    ``mxfp4``: experts are not in float8, but in MXFP4, each matrix by itself.

    A name with ``*`` in it also stands for others than are meant (``layers.1*`` for layer 10): tensors decide.
    """

    method: str
    block: tuple[int, int] | None
    kept: tuple[str, ...]
    notes: tuple[str, ...] = ()
    mxfp4: bool = False

    @property
    def summary(self) -> str:
        """The method and its blocks."""
        blocks = f"blocks of {self.block[0]} x {self.block[1]}" if self.block else "floating"
        return f"{self.method}, 8 bits, {blocks}{', experts in mxfp4' if self.mxfp4 else ''}"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        kept = is_kept(module, self.kept) or any(fnmatch.fnmatchcase(module, name) for name in self.kept)
        form = MXFP4_FORM if self.mxfp4 and ".experts." in module else FLOAT8_FORM
        return form if in_layers(module) and not kept else None

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each float8 ``weight`` and its scales as one matrix; scales of activations are left
        out."""
        modules = {
            module: pieces
            for module, pieces in find_pieces(stored, "weight", (*_SCALES, *_UNUSED)).items()
            if pieces.stored["weight"].dtype in FLOAT8 or any(name in pieces.stored for name in _SCALES)
        }
        tensors = replace_pieces(stored, modules, [self._matrix(pieces) for pieces in modules.values()])
        return {name: tensor for name, tensor in tensors.items() if not name.endswith(_CACHE_SCALES)}

    def _matrix(self, pieces: Pieces) -> Tensor:
        is_mxfp4 = self.mxfp4 and pieces.stored["weight"].dtype == "U8"
        weight = pieces.piece("weight", ("U8",) if is_mxfp4 else FLOAT8)
        if is_kept(pieces.module, self.kept):
            raise weight.fail("is quantized, where the config says that its module is not")
        if is_mxfp4:
            return mxfp4_matrix(pieces)
        scales = pieces.piece("weight_scale_inv" if "weight_scale_inv" in pieces.stored else "weight_scale")
        if self.block and pieces.module.endswith(_FUSED) and len(weight.shape) == len(scales.shape) == 2:
            return _fused_matrix(pieces, weight, scales, self.block)
        return float8_matrix(pieces, weight, scales, self.block)


_FUSED = ".qkv_proj"
_CACHE_SCALES = (".k_scale", ".v_scale", ".k_proj.output_scale", ".v_proj.output_scale")


def float8_matrix(
    pieces: Pieces, weight: StoredTensor, scales: StoredTensor, block: tuple[int, int] | None
) -> NumberMatrix:
    """Return a float8 matrix and its scales: one, one for each output, or one for each ``block``."""
    if len(weight.shape) != 2:
        raise weight.fail(f"its shape {list(weight.shape)} is not that of a matrix")
    outputs, inputs = weight.shape
    grid, block = scale_blocks(scales, weight.shape, block)

    def read_numbers() -> NDArray[np.float32]:
        numbers = float8_numbers(weight.read_stored(), weight.dtype)
        block_grid(_read_scales(scales).reshape(grid), (outputs, inputs), block).scale(numbers)
        return numbers

    return NumberMatrix(
        name=f"{pieces.module}.weight",
        file=weight.file,
        shape=weight.shape,
        nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
        form=FLOAT8_FORM,
        read_numbers=read_numbers,
    )


class FusedFloat8(NumberMatrix, frozen=True):
    """A matrix of queries, keys and values with a scale for each ``block``. It may have been quantized in shards, of
    which each has blocks that begin with its first row (MiMo-V2.5): only the family knows."""

    weight: StoredTensor
    scales: StoredTensor
    block: tuple[int, int]

    def in_shards(self, count: int) -> NumberMatrix:
        """Return the matrix as one of so many shards. Raises ModelError where it has no such scales."""
        outputs, inputs = self.shape
        rows = outputs // count
        per_shard, columns = -(-rows // self.block[0]), -(-inputs // self.block[1])
        if outputs % count:
            raise self.fail(f"its {outputs} rows are not {count} shards of equal size")
        if self.scales.shape != (count * per_shard, columns):
            raise self.scales.fail(
                f"its shape is {list(self.scales.shape)}, where {[count * per_shard, columns]} would fit {count} shards"
            )

        def read_numbers() -> NDArray[np.float32]:
            numbers = float8_numbers(self.weight.read_stored(), self.weight.dtype)
            scales = _read_scales(self.scales).reshape(count, per_shard, columns)
            for shard, part in zip(scales, numbers.reshape(count, rows, inputs), strict=True):
                block_grid(shard, (rows, inputs), self.block).scale(part)
            return numbers

        return replace(self, read_numbers=read_numbers)


def _fused_matrix(pieces: Pieces, weight: StoredTensor, scales: StoredTensor, block: tuple[int, int]) -> FusedFloat8:
    """Return a matrix that may be in shards. Where there are more scales than it has as a whole, it must be."""
    rows, columns = (-(-size // each) for size, each in zip(weight.shape, block, strict=True))
    whole = None
    if scales.shape[1] != columns or scales.shape[0] <= rows:
        whole = float8_matrix(pieces, weight, scales, block)

    def read_numbers() -> NDArray[np.float32]:
        if whole is None:
            raise scales.fail(f"its shape is {list(scales.shape)}, where {[rows, columns]} would fit")
        return whole.read_numbers()

    return FusedFloat8(
        name=f"{pieces.module}.weight",
        file=weight.file,
        shape=weight.shape,
        nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
        form=FLOAT8_FORM,
        read_numbers=read_numbers,
        weight=weight,
        scales=scales,
        block=block,
    )


def scale_blocks(
    scales: StoredTensor, shape: tuple[int, ...], block: tuple[int, int] | None
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return how many blocks of scales a matrix has along outputs and inputs, and how large they are.

    Raises ModelError where the scales have another shape than one for the matrix, one for each output, or ``block``.
    """
    outputs, inputs = shape
    if block is not None:
        rows, columns = -(-outputs // block[0]), -(-inputs // block[1])
        if scales.shape == (rows, columns):
            return (rows, columns), block
        raise scales.fail(f"its shape is {list(scales.shape)}, where {[rows, columns]} would fit")
    if scales.shape in ((), (1,), (1, 1)):
        return (1, 1), (max(outputs, 1), max(inputs, 1))
    if scales.shape in ((outputs,), (outputs, 1)):
        return (outputs, 1), (1, max(inputs, 1))
    raise scales.fail(f"its shape is {list(scales.shape)}, where [1] or {[outputs, 1]} would fit")


def _read_scales(scales: StoredTensor) -> NDArray[np.float32]:
    """Return scales of any type; those of exponents alone (E8M0) are powers of 2."""
    if scales.dtype in ("F8_E8M0", "U8"):
        exponents = scales.read_stored().astype(np.int32)
        if (exponents == 255).any():
            raise scales.fail("holds numbers that are not finite")
        return np.ldexp(np.float32(1), exponents - 127).astype(np.float32)
    return read_finite(scales)


def read_float8(options: Options) -> Float8:
    """Return the scheme of a ``quantization_config`` of the methods ``fp8`` and ``fbgemm_fp8``."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    options.one_of("fmt", "e4m3", ("e4m3", "e5m2", "float8_e4m3fn", "float8_e5m2"))
    options.one_of("scale_fmt", "float", ("float", "ue8m0"))
    options.one_of("expert_dtype", "fp8", ("fp8",))
    scheme = options.one_of("activation_scheme", "dynamic", ("dynamic", "static"))
    notes = ["the activations' own 8-bit format is not used: products take them as the precision says"]
    if scheme == "static":
        notes = ["the activations' stored scales are not used: each is quantized by its own values"]
    if options.values.get("kv_cache_scheme"):
        notes.append("kv_cache_scheme is not used: keys and values are kept in the server's own precision")
    method = str(options.values.get("quant_method"))
    default = [128, 128] if method == "fp8" and "weight_block_size" not in options.values else None
    block = options.values.get("weight_block_size", default)
    if block is not None and not (
        isinstance(block, list)
        and len(block) == 2
        and all(isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**31 for size in block)
    ):
        raise ModelError(f"{options.where}: weight_block_size must be two positive integers, got {str(block)[:80]}")
    kept = (*options.names("modules_to_not_convert"), *options.names("ignored_layers"))
    mxfp4 = options.one_of("store_dtype", "fp8", ("fp8", "mxfp4")) == "mxfp4"
    options.one_of("mxfp4_block_size", 32, (32,))
    return Float8(method, (block[0], block[1]) if block else None, kept, tuple(notes), mxfp4)
