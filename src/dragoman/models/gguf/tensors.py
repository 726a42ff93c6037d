"""Tensor of a GGUF file as a checkpoint's tensor: read, dequantized, or as the integers of packed matrices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.gguf.block_types import BLOCK_TYPES
from dragoman.models.tensors import ELEMENTS, Blocks, Codes, Format, Quantized, Tensor, block_order

_PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class GgufTensor(msgspec.Struct, frozen=True, eq=False):
    """Position of a tensor in a GGUF file, and the changes of its numbers.

    Attributes:
        name: in a checkpoint of its family; stored_name: in the file.
        kind: number of its block type.
        start, stop: position of its bytes in the file.
        rows: the stored row of each row; None: they are in order.
        columns: of a matrix, the stored column of each column, likewise.
        stored_shape: where ``rows`` are some of the stored ones, the shape in the file.
        offset: added to its numbers before they were stored (Gemma's norms).
        is_negative_rate: −exp(x) is stored for each number x (Mamba's rates).
    """

    file: Path
    name: str
    stored_name: str
    kind: int
    shape: tuple[int, ...]
    start: int
    stop: int
    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None
    stored_shape: tuple[int, ...] | None = None
    offset: float = 0.0
    is_negative_rate: bool = False

    @property
    def dtype(self) -> str:
        """Type of what ``read`` returns: blocks are dequantized to float32."""
        return _PLAIN.get(BLOCK_TYPES[self.kind].name, "float32")

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        whole = self.stop - self.start
        return whole if self.stored_shape is None else whole * self.shape[0] // self.stored_shape[0]

    @property
    def form(self) -> Format | None:
        """Packed format of its type; a vector is never packed."""
        kind = BLOCK_TYPES[self.kind]
        if len(self.shape) < 2 or kind.form is None:
            return None
        if kind.form.is_blocks and self.columns is not None and block_order(self.columns, kind.values) is None:
            return kind.divided
        return kind.form

    def read(self) -> NDArray[Any]:
        """Return its numbers. Raises ModelError naming file and tensor."""
        stored = self._read_bytes()
        if BLOCK_TYPES[self.kind].name in _PLAIN:
            numbers: NDArray[Any] = stored.view(ELEMENTS[self.dtype])
        else:
            from dragoman import kernels  # imported here: describing a model needs no kernels

            numbers = kernels.dequantize_gguf(stored, self.kind)
        numbers = numbers.reshape(self.stored_shape or self.shape)
        if self.rows is not None:
            numbers = numbers[self.rows]
        if self.columns is not None:
            numbers = numbers[:, self.columns]
        if self.is_negative_rate:
            with np.errstate(divide="ignore", invalid="ignore"):  # a file may hold any bits
                return np.log(-numbers.astype(np.float32))
        return numbers - np.float32(self.offset) if self.offset else numbers

    def read_integers(self) -> NDArray[np.int64]:
        """Return its numbers, where its type is the one of integers. Raises ModelError as ``read`` does."""
        return self._read_bytes().view("<i8").reshape(self.shape)

    def codes(self, form: Format) -> Quantized | None:
        """Return its numbers in ``form``: as stored where possible, else rounded as docs/gguf.md says."""
        if form.is_blocks:
            return self._blocks() if form == self.form and len(self.shape) == 2 else None
        if BLOCK_TYPES[self.kind].name in _PLAIN or form.wide or len(self.shape) != 2:
            return None
        if form.precision != "int8" and form.precision != "int4":
            return None
        if form.wide or form.order:
            return None
        assert not self.offset  # only of vectors
        from dragoman import kernels  # as above

        try:
            outputs, inputs = self.stored_shape or self.shape
            found = kernels.gguf_codes(self._read_bytes(), self.kind, (outputs, inputs), form.precision, form.minimum)
        except ValueError as error:
            raise self.fail(str(error)) from None
        if found is None:
            return None
        codes = Codes(*found)
        codes = codes if self.rows is None else codes.rows(self.rows)
        return codes if self.columns is None else codes.columns(self.columns)

    def _blocks(self) -> Blocks | None:
        from dragoman import kernels  # as above

        kind, stored = BLOCK_TYPES[self.kind], self._read_bytes()
        if not kernels.gguf_scales_are_finite(stored, self.kind):
            raise self.fail("it has numbers that are not finite")
        outputs, _ = self.stored_shape or self.shape
        blocks = Blocks(stored.reshape(outputs, -1), kind.values, kind.size)
        blocks = blocks if self.rows is None else blocks.rows(self.rows)
        return blocks if self.columns is None else blocks.columns(self.columns)

    def with_rows(self, rows: NDArray[np.int64]) -> GgufTensor:
        """Return the tensor of these stored rows. Raises ModelError where it has fewer."""
        if not self.shape or len(rows) > self.shape[0] or rows.max() >= self.shape[0]:
            raise self.fail(f"its shape is {list(self.shape)}, where the metadata asks for {rows.max() + 1} rows")
        return replace(self, rows=rows, shape=(len(rows), *self.shape[1:]), stored_shape=self.shape)

    def with_columns(self, columns: NDArray[np.int64]) -> GgufTensor:
        """Return the matrix with its columns in this order. Raises ModelError where it has not so many."""
        if len(self.shape) != 2 or len(columns) != self.shape[1]:
            raise self.fail(f"its shape is {list(self.shape)}, where the metadata asks for {len(columns)} columns")
        return replace(self, columns=columns)

    def matrix(self, index: int, count: int | None = None) -> GgufTensor:
        """Return one matrix of a stack: a part of its bytes."""
        shape = self.shape[1:] if count is None else (self.shape[0] // count, *self.shape[1:])
        nbytes = self.nbytes // (count or self.shape[0])
        start = self.start + index * nbytes
        return replace(self, shape=shape, start=start, stop=start + nbytes)

    def fail(self, reason: str) -> ModelError:
        """Return an error that names the file and the tensor's name in it."""
        return ModelError(f"{self.file}: tensor {self.stored_name}: {reason}")

    def _read_bytes(self) -> NDArray[np.uint8]:
        """Return its bytes. Read, not mapped: a file cut short meanwhile is an error, not a signal."""
        stored = np.empty(self.stop - self.start, np.uint8)
        done = 0
        try:
            with self.file.open("rb", buffering=0) as stream:
                while done < len(stored):
                    count = os.preadv(stream.fileno(), [stored.data[done:]], self.start + done)
                    if count == 0:
                        raise self.fail("the file was cut short while it was read")
                    done += count
        except OSError as error:
            raise self.fail(f"cannot be read: {error.strerror}") from error
        return stored


class GgufNumber(msgspec.Struct, frozen=True):
    """A number of a file's metadata as a tensor ``[1]``. ``key``: under which it is."""

    file: Path
    name: str
    key: str
    value: float
    dtype: str = "float32"
    shape: tuple[int, ...] = (1,)
    nbytes: int = 4
    form: Format | None = None

    def read(self) -> NDArray[np.float32]:
        """Return the number."""
        return np.array([self.value], np.float32)

    def codes(self, form: Format) -> None:
        """Return None: it is no matrix."""

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        """Raise ModelError: it is no stack."""
        raise self.fail("is a number, not a stack of matrices")

    def fail(self, reason: str) -> ModelError:
        """Return an error that names the file and the key."""
        return ModelError(f"{self.file}: {self.key} {reason}")
