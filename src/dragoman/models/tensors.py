"""Tensors of a checkpoint, independent of the file format.

Every file format returns ``TensorFiles``. A tensor is a matrix or a vector under its name in the checkpoint: one
that a format stores in parts (numbers, scales, zero points) is one tensor here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import msgspec

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.settings import Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

ELEMENTS = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""NumPy types of the numbers that ``Tensor.read`` returns. NumPy has no bfloat16: it is stored in uint16."""


BlockPrecision = Literal["mxfp4", "iq4_nl", "iq4_xs", "q3_k", "q4_k", "q5_k", "q6_k"]
"""The types of ggml that are packed as they are, all numbers exactly."""
BLOCK_PRECISIONS: tuple[BlockPrecision, ...] = get_args(BlockPrecision)
BLOCK_SIZES: dict[str, tuple[int, int]] = {
    "mxfp4": (32, 17),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
}
"""The numbers of a block of each, and its bytes."""


class Format(msgspec.Struct, frozen=True):
    """Packing of a matrix: with a scale for each group of 32 inputs, where its numbers are quantized.

    Attributes:
        precision: what a model may be requested at, or a type of ggml, which only files have.
        minimum: of int4 only: each group has a minimum in addition to its scale.
        wide: of int8 only: four groups share their scale.
        order: where its inputs are reordered, a checksum of their order (``checksum_of_order``); else 0.
    """

    precision: Precision | BlockPrecision
    minimum: bool = False
    wide: bool = False
    order: int = 0

    @property
    def is_blocks(self) -> bool:
        """Whether it is a type of ggml."""
        return self.precision in BLOCK_PRECISIONS

    @property
    def nearest(self) -> Precision:
        """The precision that takes about as many bytes."""
        precisions: dict[str, Precision] = {
            "float32": "float32",
            "bfloat16": "bfloat16",
            "int8": "int8",
            "int4": "int4",
        }
        return precisions.get(self.precision, "int8" if self.precision in ("q5_k", "q6_k") else "int4")


def checksum_of_order(order: NDArray[np.int32]) -> int:
    """Return a checksum of the order; never 0."""
    return zlib.crc32(np.ascontiguousarray(order, "<i4").tobytes()) or 1


Quantized: TypeAlias = "Codes | Blocks"
"""A matrix in the numbers of a packed format."""


class Codes(msgspec.Struct, frozen=True):
    """A matrix ``[N, K]`` as groups of 32 inputs, in the integers of the packed format.

    Attributes:
        values: int8 ``[N, K]``: -128 to 127 for int8; for int4 -8 to 7, or 0 to 15 with minimums.
        scales, minimums: float16 ``[N, ceil(K / 32)]``; w = scale * value (+ minimum). Wider ones
            of a file are rounded.
        order: int32 ``[K]``: the input of each column of ``values``, where the inputs are reordered.
    """

    values: NDArray[np.int8]
    scales: NDArray[np.float16]
    minimums: NDArray[np.float16] | None = None
    order: NDArray[np.int32] | None = None

    def rows(self, order: NDArray[np.intp]) -> Codes:
        """Return those of its rows, in this order."""
        minimums = None if self.minimums is None else self.minimums[order]
        return Codes(self.values[order], self.scales[order], minimums, self.order)

    def above(self, other: Quantized) -> Codes:
        """Return its rows and then those of another matrix of the same format."""
        assert isinstance(other, Codes)
        minimums = None
        if self.minimums is not None and other.minimums is not None:
            minimums = np.concatenate([self.minimums, other.minimums])
        values, scales = (self.values, other.values), (self.scales, other.scales)
        return Codes(np.concatenate(values), np.concatenate(scales), minimums, self.order)

    def columns(self, order: NDArray[np.int64]) -> Codes | None:
        """Return its columns in this order; None where a group would be divided."""
        places = block_order(order, 32)
        if places is None or self.order is not None:
            return None
        minimums = None if self.minimums is None else self.minimums[:, places]
        return Codes(self.values[:, order], self.scales[:, places], minimums)

    def reshaped(self, shape: tuple[int, ...]) -> Codes | None:
        """Return the same numbers as rows of another width; None where a row would begin within a group."""
        if shape[1] % 32 or self.order is not None:
            return None
        groups = (shape[0], shape[1] // 32)
        minimums = None if self.minimums is None else self.minimums.reshape(groups)
        return Codes(self.values.reshape(shape), self.scales.reshape(groups), minimums)


class Blocks(msgspec.Struct, frozen=True):
    """A matrix ``[N, K]`` as blocks of ggml: all its bits, as a GGUF file has them.

    Attributes:
        data: uint8 ``[N, bytes of a row]``.
        values, size: numbers and bytes of a block.
    """

    data: NDArray[np.uint8]
    values: int
    size: int

    @property
    def inputs(self) -> int:
        """K."""
        return int(self.data.shape[1]) // self.size * self.values

    def rows(self, order: NDArray[np.intp]) -> Blocks:
        """Return those of its rows, in this order."""
        return Blocks(self.data[order], self.values, self.size)

    def above(self, other: Quantized) -> Blocks:
        """Return its rows and then those of another matrix of the same type."""
        assert isinstance(other, Blocks)
        return Blocks(np.concatenate([self.data, other.data]), self.values, self.size)

    def columns(self, order: NDArray[np.int64]) -> Blocks | None:
        """Return its columns in this order; None where a block would be divided."""
        places = block_order(order, self.values)
        if places is None:
            return None
        blocks = self.data.reshape(len(self.data), -1, self.size)
        return Blocks(blocks[:, places].reshape(len(self.data), -1), self.values, self.size)

    def reshaped(self, shape: tuple[int, ...]) -> Blocks | None:
        """Return the same numbers as rows of another width; None where a row would begin within a block."""
        if shape[1] % self.values:
            return None
        return Blocks(self.data.reshape(shape[0], -1), self.values, self.size)


def block_order(order: NDArray[np.int64], size: int) -> NDArray[np.int64] | None:
    """Return the places of whole blocks of so many columns in an order of columns; None where it divides one."""
    blocks = order[: len(order) // size * size].reshape(-1, size)
    whole = np.array_equal(blocks, blocks[:, :1] + np.arange(size)) and not (blocks[:, 0] % size).any()
    return None if len(order) % size or not whole else blocks[:, 0] // size


class Tensor(Protocol):
    """One tensor.

    Attributes:
        dtype: float32, float16 or bfloat16: the type of what ``read`` returns; any other cannot be read.
        nbytes: in the file.
        form: packing for the precision ``auto``, if not as ``dtype`` says: the format that holds a
            quantized tensor's numbers exactly, or else with the least loss.
    """

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> Path: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def form(self) -> Format | None: ...

    def read(self) -> NDArray[Any]:
        """Return its numbers, ``shape``, of the type ``ELEMENTS[dtype]``. Raises ModelError naming file and tensor."""

    def codes(self, form: Format) -> Quantized | None:
        """Return its integers in the format ``form``, not rounded; None where that is not possible.

        A format with other groups may return int8 of any tensor, rounded as packing its floats would.
        """

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        """Return one matrix of a stack ``[matrices, outputs, inputs]``, or of ``count`` that are stored one under the
        other, under the name of the whole."""

    def fail(self, reason: str) -> ModelError:
        """Return an error that names file and tensor."""


@runtime_checkable
class InShards(Protocol):
    """A quantized matrix that may be one of shards, which were quantized by themselves."""

    def in_shards(self, count: int) -> Tensor:
        """Return the matrix as one of so many shards. Raises ModelError where it has no such scales."""


class View(msgspec.Struct, frozen=True):
    """What a tensor that is read in another shape has of the stored one."""

    stored: Tensor

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def file(self) -> Path:
        return self.stored.file

    @property
    def dtype(self) -> str:
        return self.stored.dtype

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes

    @property
    def form(self) -> Format | None:
        return self.stored.form

    def fail(self, reason: str) -> ModelError:
        return self.stored.fail(reason)


class Transposed(View, frozen=True):
    """A matrix, or a stack of matrices, whose last two dimensions change places when it is read."""

    @property
    def shape(self) -> tuple[int, ...]:
        *stack, rows, columns = self.stored.shape
        return (*stack, columns, rows)

    def read(self) -> NDArray[Any]:
        return np.ascontiguousarray(self.stored.read().swapaxes(-1, -2))

    def codes(self, form: Format) -> Quantized | None:
        return None

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        return Transposed(self.stored.matrix(index, count))


class RepeatedRows(View, frozen=True):
    """A matrix of which each row is read ``count`` times, one copy after the other."""

    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        rows, *columns = self.stored.shape
        return (rows * self.count, *columns)

    def read(self) -> NDArray[Any]:
        return self.stored.read().repeat(self.count, axis=0)

    def codes(self, form: Format) -> Quantized | None:
        found = self.stored.codes(form)
        return None if found is None else found.rows(np.arange(self.stored.shape[0]).repeat(self.count))

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        raise self.fail("is not a stack of matrices")


class FirstRows(View, frozen=True):
    """The first ``count`` rows of a matrix."""

    count: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, *self.stored.shape[1:])

    def read(self) -> NDArray[Any]:
        return self.stored.read()[: self.count]

    def codes(self, form: Format) -> Quantized | None:
        codes = self.stored.codes(form)
        return None if codes is None else codes.rows(np.arange(self.count))

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        raise self.fail("is not a stack of matrices")


class TensorFiles(msgspec.Struct, frozen=True):
    """The tensors of a model's weight files.

    Attributes:
        files: each with its header, used to tell files apart.
        where: names the files in errors.
        upright: all matrices are ``[outputs, inputs]``, even where the family's own checkpoints are transposed.
        mtp_layer: returns the tensors of the layer that guesses one token more (multi-token prediction), where the
            format keeps them apart: under the names that DeepSeek V3's checkpoints have.
        target_ids: returns the model's token for each of an EAGLE-3 head's, where the format has these themselves and
            not their offsets.
    """

    tensors: Mapping[str, Tensor]
    files: Mapping[Path, bytes]
    where: str
    upright: bool = False
    mtp_layer: Callable[[], Mapping[str, Tensor]] | None = None
    target_ids: Callable[[], NDArray[np.int64]] | None = None


def to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the same numbers as float32. A bfloat16 (here uint16) is the upper half of a float32."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the nearest bfloat16 of each number, ties to even, as the upper halves of float32. None may be NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def nearest_bfloat16(value: float) -> float:
    """Return a positive number rounded to 8 significant bits, ties to even."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256), exponent - 8)
