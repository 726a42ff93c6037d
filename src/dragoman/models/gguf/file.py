"""Header of a GGUF file: metadata, and the position of each tensor
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The header is read with ``pread``, never mapped: a file that is cut short while it is read then gives an error
message, where a mapping would end the process with SIGBUS. Every count and length is checked against the size of the
file before memory is allocated for it.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.core.regular_file import require_regular
from dragoman.core.stand_ins import HEAD_BYTES, stand_in_problem
from dragoman.models.gguf.block_types import BLOCK_TYPES, INTEGERS, INTEGERS_NAME, BlockType, type_name
from dragoman.models.gguf.parts import MAGIC

Value = int | float | bool | str | NDArray[Any] | list[Any]
"""A metadata value: arrays of numbers are NumPy arrays, arrays of texts and of arrays are lists."""

_VERSIONS = (2, 3)
_READ_BYTES = 1 << 20
_LARGEST_HEADER_BYTES = 256 << 20  # vocabularies of 262,144 tokens with merges take 12 MiB
_MOST_TENSORS = 1 << 16
_MOST_KEYS = 1 << 16
_MOST_ITEMS = 1 << 22  # texts and arrays in all arrays of a file
_DEEPEST_ARRAY = 4
_LONGEST_KEY_BYTES = 65_535
_LONGEST_NAME_BYTES = 1024
_MOST_DIMENSIONS = 4
_LARGEST_DIMENSION = 1 << 40
_LARGEST_ALIGNMENT = 1 << 20
_DEFAULT_ALIGNMENT = 32

_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9


class TensorInfo(NamedTuple):
    """A tensor's entry in the header.

    Attributes:
        kind: number of its block type. shape: in NumPy's order, the innermost dimension last.
        start, stop: position of its bytes in the file.
    """

    name: str
    kind: int
    shape: tuple[int, ...]
    start: int
    stop: int


class GgufFile(msgspec.Struct, frozen=True):
    """Header of one GGUF file. ``raw``: its bytes, used to tell files apart."""

    path: Path
    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    raw: bytes

    def fail(self, key: str, reason: str) -> ModelError:
        """Return an error that names the file and a key of its metadata."""
        return ModelError(f"{self.path}: {key} {reason}")


def read_gguf(path: Path) -> GgufFile:
    """Read and check a file's header. Raises ModelError naming the file, and the wrong key or tensor."""
    require_regular(path, ModelError)
    try:
        with path.open("rb", buffering=0) as stream:
            return _Reader(path, stream.fileno(), os.fstat(stream.fileno()).st_size).read()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


class _Reader:
    """One pass over a header. ``_field`` names the field that is being read, for errors."""

    def __init__(self, path: Path, file: int, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._buffer = bytearray()
        self._at = 0
        self._items = 0
        self._field = "its header"

    def read(self) -> GgufFile:
        version = self._read_version()
        self._field = "the count of tensors"
        tensor_count = self._count(_MOST_TENSORS, least_bytes=8 + 4 + 8 + 4 + 8)
        self._field = "the count of metadata keys"
        key_count = self._count(_MOST_KEYS, least_bytes=8 + 4 + 1)
        metadata = self._read_metadata(key_count)
        alignment = self._alignment(metadata)
        entries = [self._read_entry(number, alignment) for number in range(tensor_count)]
        raw = bytes(self._buffer[: self._at])
        tensors = self._place(entries, -(-self._at // alignment) * alignment, alignment)
        return GgufFile(self._path, version, metadata, tensors, raw)

    def _read_version(self) -> int:
        if self._size < 4 or bytes(self._take(4)) != MAGIC:
            problem = stand_in_problem(self._path, os.pread(self._file, HEAD_BYTES, 0))
            raise ModelError(problem or f"{self._path}: is not a GGUF file")
        version = self._number("<I")
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, *_VERSIONS):
            self._fail(f"is big-endian (GGUF version {swapped}); only little-endian files are read")
        if version not in _VERSIONS:
            self._fail(f"is GGUF version {version}; known: {', '.join(map(str, _VERSIONS))}")
        return version

    def _read_metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for number in range(count):
            self._field = f"metadata key {number}"
            key = self._text(_LONGEST_KEY_BYTES)
            if key in metadata:
                self._fail(f"metadata key {key!r} appears twice")
            self._field = f"metadata {key}"
            metadata[key] = self._value(self._number("<I"))
        return metadata

    def _value(self, kind: int) -> Value:
        if kind in _NUMBERS:
            return self._numbers(kind, 1)[0].item()  # type: ignore[no-any-return]
        if kind == _STRING:
            return self._text(_LARGEST_HEADER_BYTES)
        if kind == _ARRAY:
            return self._array(1)
        return self._fail(f"{self._field} is of type {kind}, which GGUF does not have")

    def _array(self, depth: int) -> Value:
        kind, count = self._number("<I"), self._number("<Q")
        if kind in _NUMBERS:
            return self._numbers(kind, count)
        if kind not in (_STRING, _ARRAY):
            self._fail(f"{self._field} is an array of type {kind}, which GGUF does not have")
        if depth > _DEEPEST_ARRAY:
            self._fail(f"{self._field} is an array of arrays, {depth} deep and more")
        self._items += count
        if self._items > _MOST_ITEMS or count * 8 > self._size - self._at:
            self._fail(f"{self._field} has {count} items, which is too many")
        if kind == _STRING:
            return [self._text(_LARGEST_HEADER_BYTES) for _ in range(count)]
        return [self._array(depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> NDArray[Any]:
        dtype = _NUMBERS[kind]
        data = self._take(count * dtype.itemsize)
        if kind == _BOOL and data and max(data) > 1:
            self._fail(f"{self._field} is a boolean that is neither 0 nor 1")
        return np.frombuffer(bytes(data), dtype)

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        fine = isinstance(value, int) and 8 <= value <= _LARGEST_ALIGNMENT and value & (value - 1) == 0
        if not fine:
            self._fail(f"metadata general.alignment must be a power of 2 from 8 to {_LARGEST_ALIGNMENT}, got {value!r}")
        return int(value)  # type: ignore[arg-type]

    def _read_entry(self, number: int, alignment: int) -> TensorInfo:
        self._field = f"the name of tensor {number}"
        name = self._text(_LONGEST_NAME_BYTES)
        self._field = f"the entry of tensor {name!r}"
        dimensions = self._number("<I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            self._fail(f"tensor {name}: it has {dimensions} dimensions; there may be 1 to {_MOST_DIMENSIONS}")
        sizes = [self._number("<Q") for _ in range(dimensions)]
        kind, offset = self._number("<I"), self._number("<Q")
        if not all(1 <= size <= _LARGEST_DIMENSION for size in sizes) or math.prod(sizes) > 1 << 48:
            self._fail(f"tensor {name}: its shape {sizes[::-1]} is not possible")
        if kind == INTEGERS and name == INTEGERS_NAME:
            block = BlockType(type_name(kind), 1, 8)
        elif kind not in BLOCK_TYPES:
            known = ", ".join(block.name for block in BLOCK_TYPES.values())
            self._fail(f"tensor {name}: its type {type_name(kind)} is not supported; known: {known}")
        else:
            block = BLOCK_TYPES[kind]
        if sizes[0] % block.values:
            self._fail(
                f"tensor {name}: rows of {sizes[0]} numbers are not whole blocks of {block.values} ({block.name})"
            )
        if offset % alignment:
            self._fail(f"tensor {name}: its offset {offset} is not a multiple of the alignment {alignment}")
        return TensorInfo(name, kind, tuple(sizes[::-1]), offset, offset + block.nbytes(math.prod(sizes)))

    def _place(self, entries: list[TensorInfo], data_start: int, alignment: int) -> dict[str, TensorInfo]:
        """Return the tensors with positions in the file. Raises ModelError unless they are contiguous except for
        padding."""
        tensors: dict[str, TensorInfo] = {}
        end = data_start
        for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
            placed = entry._replace(start=data_start + entry.start, stop=data_start + entry.stop)
            if placed.name in tensors:
                self._fail(f"tensor {placed.name} appears twice")
            if placed.stop > self._size:
                self._fail(
                    f"tensor {placed.name}: the file is truncated: it ends at byte {self._size}, "
                    f"the tensor at {placed.stop}"
                )
            if placed.start != end:
                self._fail(f"tensor {placed.name}: its bytes overlap those of another tensor, or leave a gap")
            end = -(-placed.stop // alignment) * alignment
            tensors[placed.name] = placed
        if self._size > end:
            self._fail(f"holds {self._size - end} bytes that belong to no tensor")
        return tensors

    def _count(self, most: int, least_bytes: int) -> int:
        count = self._number("<Q")
        if count > most:
            self._fail(f"{self._field} is {count}, which is too many")
        if count * least_bytes > self._size:
            self._fail(f"the file is truncated: it has {self._size} bytes, and {self._field} is {count}")
        return count

    def _number(self, form: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form)))[0])

    def _text(self, longest: int) -> str:
        length = self._number("<Q")
        if length > longest:
            self._fail(f"{self._field} is a text of {length} bytes, which is too long")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            self._fail(f"{self._field} is not valid UTF-8: {error.reason}")

    def _take(self, count: int) -> bytearray:
        """Return the next ``count`` bytes."""
        stop = self._at + count
        if stop > len(self._buffer):
            self._fill(stop)
        taken = self._buffer[self._at : stop]
        self._at = stop
        return taken

    def _fill(self, stop: int) -> None:
        if stop > self._size:
            self._fail(f"the file is truncated: it ends at byte {self._size}, inside of {self._field}")
        if stop > _LARGEST_HEADER_BYTES:
            self._fail(f"its header is longer than {_LARGEST_HEADER_BYTES} bytes, at {self._field}")
        while len(self._buffer) < stop:
            piece = os.pread(self._file, max(_READ_BYTES, stop - len(self._buffer)), len(self._buffer))
            if not piece:
                self._fail(f"the file was cut short while {self._field} was read")
            self._buffer += piece

    def _fail(self, reason: str) -> NoReturn:
        raise ModelError(f"{self._path}: {reason}")
