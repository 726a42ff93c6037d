"""Safetensors files: one, or several with an index, read tensor by tensor.

The format is a length, a JSON header and raw little-endian data (https://huggingface.co/docs/safetensors). It is
read here directly because NumPy lacks bfloat16: such tensors are returned as uint16.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.core.regular_file import require_regular
from dragoman.core.stand_ins import HEAD_BYTES, broken_link_problem, stand_in_problem
from dragoman.models.tensors import ELEMENTS, Codes, Format, Tensor, TensorFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors", re.ASCII)
_MOST_PARTS = 1000
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LARGEST_HEADER_BYTES = 100 << 20
# Element types of a decoder's weights, by their names in the file.
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# All types of whole bytes. NumPy has no float8: such numbers are returned as bytes.
_STORED = {
    **ELEMENTS,
    "F64": "<f8",
    **{f"I{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), "|u1"),
}


def choose_weight_files(
    names: Iterable[str], read_index: Callable[[], dict[str, Any]], place: str | Path
) -> tuple[str, ...]:
    """Return which of a model's files hold its weights.

    ``read_index()`` gives the content of ``model.safetensors.index.json`` when that is among the names; ``place`` is
    the folder, or the hub id, that they are in. Raises ModelError when there are none, or only pickled ones, naming the
    place, a file and what to do.
    """
    present = sorted(names)
    if SINGLE_NAME in present:  # as in transformers, also beside an index, which then is an older one
        return (SINGLE_NAME,)
    if INDEX_NAME in present:
        shards = read_index().get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) and "/" not in s for s in shards.values()):
            raise ModelError(f"{place}: {INDEX_NAME} has no weight_map from tensors to files")
        return _all_present(set(shards.values()), present, f"which {INDEX_NAME} names", place)
    candidates = [name for name in present if name.endswith(".safetensors") and "/" not in name]
    if series := _series(candidates):
        return _all_present(series, present, f"one of {len(series)} files", place)
    if len(candidates) == 1:
        return (candidates[0],)
    if candidates:
        raise ModelError(
            f"{place}: has {len(candidates)} safetensors files ({candidates[0]}, …) and no {INDEX_NAME} to join them; "
            "fetch that file from where the model came from"
        )
    if pickled := [name for name in present if name.endswith(_PICKLE_SUFFIXES) and "/" not in name]:
        raise ModelError(
            f"{place}: {pickled[0]} is a pickle file, which can run any code when it is opened, so it is not read. "
            "Convert the model once, where you trust it: AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained("
            "FOLDER, safe_serialization=True) with transformers; or use a repository that has safetensors files"
        )
    raise ModelError(f"{place}: has no weights: there is no *.safetensors file{_remedy(place)}")


def _all_present(wanted: set[str], present: list[str], which: str, place: str | Path) -> tuple[str, ...]:
    """Return the files in order. Raises ModelError for one that is not there; ``which`` says what makes it wanted."""
    if missing := sorted(wanted - set(present)):
        count = f" ({len(missing)} files are missing in all)" if len(missing) > 1 else ""
        raise ModelError(f"{place}: {missing[0]} is missing, {which}{count}{_remedy(place)}")
    return tuple(sorted(wanted))


def _series(names: list[str]) -> set[str]:
    """Return all parts of the one model whose parts the names are; empty where they are something else."""
    parts = [_PART.fullmatch(name) for name in names]
    models = {(part["stem"], part["count"]) if part else None for part in parts}
    if len(models) != 1 or (model := models.pop()) is None or not 1 <= int(model[1]) <= _MOST_PARTS:
        return set()
    stem, count = model
    return {f"{stem}-{part:05d}-of-{count}.safetensors" for part in range(1, int(count) + 1)}


def _remedy(place: str | Path) -> str:
    """What helps where a file of a folder is missing; nobody here can add one to a repository."""
    if isinstance(place, str):
        return ""
    return "; copy it into the folder, or `dragoman models pull OWNER/NAME` fetches a whole model from the hub"


class StoredTensor(msgspec.Struct, frozen=True):
    """Position of a tensor in a file. ``dtype``: float32, float16 or bfloat16, else the file's own name of a type."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return self.stop - self.start

    @property
    def form(self) -> Format | None:
        """None: ``dtype`` describes the type."""
        return None

    def read(self) -> NDArray[Any]:
        """Return its numbers. Raises ModelError on a type that is not a decoder's."""
        if self.dtype not in ELEMENTS:
            raise self.fail(f"its type {self.dtype} is not supported; known: {', '.join(DTYPES)}")
        return self.read_stored()

    def read_stored(self) -> NDArray[Any]:
        """Return its numbers of any type, as parts of quantized weights have them; float8 numbers as bytes.

        Raises ModelError on types of less than a byte.
        """
        if self.dtype not in _STORED:
            raise self.fail(f"its type {self.dtype} is not supported")
        value = np.empty(self.shape, _STORED[self.dtype])
        self.read_bytes(value.reshape(-1).view(np.uint8).data)
        return value

    def read_bytes(self, target: memoryview) -> None:
        """Fill ``target`` with its bytes. Read, not mapped: a file cut short meanwhile is an error, not a signal."""
        done = 0
        try:
            with self.file.open("rb", buffering=0) as stream:
                while done < len(target):
                    count = os.preadv(stream.fileno(), [target[done:]], self.start + done)
                    if count == 0:
                        raise self.fail("the file was cut short while it was read")
                    done += count
        except OSError as error:
            raise self.fail(f"cannot be read: {error.strerror}") from error

    def codes(self, form: Format) -> Codes | None:
        """Return None: its numbers are not quantized."""
        return None

    def matrix(self, index: int, count: int | None = None) -> StoredTensor:
        """Return one matrix of a stack: a part of its bytes."""
        shape = self.shape[1:] if count is None else (self.shape[0] // count, *self.shape[1:])
        nbytes = self.nbytes // (count or self.shape[0])
        start = self.start + index * nbytes
        return replace(self, shape=shape, start=start, stop=start + nbytes)

    def fail(self, reason: str) -> ModelError:
        """Return an error that names file and tensor."""
        return ModelError(f"{self.file}: tensor {self.name}: {reason}")


class Header(msgspec.Struct, frozen=True):
    """Header of a safetensors file. ``raw`` is the JSON as stored, used to tell files apart."""

    tensors: dict[str, StoredTensor]
    raw: bytes


def read_header(file: Path) -> Header:
    """Read and check a safetensors header. Raises ModelError naming the file, and the tensor where one is wrong."""
    require_regular(file, ModelError)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
            if problem := stand_in_problem(file, head):
                raise ModelError(problem)
            length = int.from_bytes(head[:8], "little")
            if size < 8 or not 0 < length <= min(size - 8, _LARGEST_HEADER_BYTES):
                raise ModelError(f"{file}: is truncated or not a safetensors file ({size:,} bytes); fetch it again")
            stream.seek(8)
            raw = stream.read(length)
        entries = json.loads(raw)
    except OSError as error:
        raise ModelError(broken_link_problem(file) or f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: its safetensors header is corrupt: {error}") from None
    if not isinstance(entries, dict):
        raise ModelError(f"{file}: its safetensors header is corrupt: not a JSON object")
    entries.pop("__metadata__", None)
    tensors = {name: _read_entry(file, name, entry, 8 + length, size) for name, entry in entries.items()}
    end = 8 + length
    for tensor in sorted(tensors.values(), key=lambda t: (t.start, t.stop)):
        if tensor.start != end:
            raise tensor.fail("its bytes overlap those of another tensor, or leave a gap")
        end = tensor.stop
    if end != size:
        raise ModelError(f"{file}: holds {size - end} bytes that belong to no tensor")
    return Header(tensors, raw)


def _read_entry(file: Path, name: str, entry: object, data_start: int, size: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise ModelError(f"{file}: tensor {name}: its header entry is corrupt")
    tensor = StoredTensor(file, name, dtype, tuple(shape), data_start + start, data_start + stop)
    if not all(isinstance(n, int) and 0 <= n < 2**40 for n in shape) or not 0 <= start <= stop:
        raise tensor.fail("its header entry is corrupt")
    if tensor.stop > size:
        raise tensor.fail(f"the file is truncated: it ends at byte {size}, the tensor at {tensor.stop}")
    dtype = DTYPES.get(dtype, dtype)
    if dtype in _STORED and math.prod(shape) * int(_STORED[dtype][2:]) != stop - start:
        raise tensor.fail(f"its shape {list(shape)} does not fit its {stop - start} bytes")
    return StoredTensor(file, name, dtype, tuple(shape), tensor.start, tensor.stop)


def read_safetensors(folder: Path, names: Iterable[str]) -> TensorFiles:
    """Return the tensors of all files. Raises ModelError on a corrupt file and on a tensor that is in two files."""
    headers = {name: read_header(folder / name) for name in names}
    tensors: dict[str, Tensor] = {}
    for tensor in (tensor for header in headers.values() for tensor in header.tensors.values()):
        if tensor.name in tensors:
            raise tensor.fail(f"is in {tensors[tensor.name].file} too")
        tensors[tensor.name] = tensor
    files = {folder / name: header.raw for name, header in headers.items()}
    where = str(next(iter(files))) if len(files) == 1 else f"{len(files)} weight files ({INDEX_NAME})"
    return TensorFiles(tensors, files, where)


def stored_dtype(headers: Iterable[Header]) -> str:
    """Return the type of most bytes in the files, not counting parts of quantized weights."""
    sizes: dict[str, int] = {}
    for header in headers:
        for tensor in header.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.stop - tensor.start
    numbers = [dtype for dtype in sizes if dtype in ELEMENTS]
    return max(numbers or sizes, key=lambda dtype: sizes[dtype], default="float32")
