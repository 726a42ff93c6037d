"""Reading safetensors checkpoints: one file or several with an index, tensor by tensor.

The format is a length, a JSON header and raw little-endian data (https://huggingface.co/docs/safetensors). It is read
here directly because the numbers wanted are bfloat16, which NumPy does not have: such tensors are given as uint16.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.families import Family
from dragoman.models.spec import DecoderSpec, Parameter, parameters

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LARGEST_HEADER_BYTES = 100 << 20
# The types that a decoder's weights have, by their names in the file, and NumPy's types for their bytes.
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_ELEMENTS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}


def choose_weight_files(names: Iterable[str], read_index: Callable[[], dict[str, Any]]) -> tuple[str, ...]:
    """Which of a model's files hold its weights.

    ``read_index()`` gives the content of ``model.safetensors.index.json`` when that is among the names. Raises
    ModelError when there are none, or only pickled ones, naming a file and what to do.
    """
    present = sorted(names)
    if INDEX_NAME in present:
        shards = read_index().get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(s, str) and "/" not in s for s in shards.values()):
            raise ModelError(f"{INDEX_NAME}: has no weight_map from tensors to files")
        if missing := sorted(set(shards.values()) - set(present)):
            raise ModelError(f"{INDEX_NAME} names {missing[0]}, which is missing ({len(missing)} missing in all)")
        return tuple(sorted(set(shards.values())))
    if SINGLE_NAME in present:
        return (SINGLE_NAME,)
    candidates = [name for name in present if name.endswith(".safetensors") and "/" not in name]
    if len(candidates) == 1:
        return (candidates[0],)
    if candidates:
        raise ModelError(f"{len(candidates)} safetensors files ({candidates[0]}, …) and no {INDEX_NAME} to join them")
    if pickled := [name for name in present if name.endswith(_PICKLE_SUFFIXES) and "/" not in name]:
        raise ModelError(
            f"{pickled[0]} is a pickle file, which can run any code when it is opened, so it is not read. Convert the "
            "model once, where you trust it: AutoModelForCausalLM.from_pretrained(SOURCE).save_pretrained(FOLDER, "
            "safe_serialization=True) with transformers; or use a repository that has safetensors files"
        )
    raise ModelError("no weights: there is no *.safetensors file")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: ``dtype`` is float32, float16 or bfloat16 for those that can be read."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    def fail(self, reason: str) -> ModelError:
        """An error that names file and tensor."""
        return ModelError(f"{self.file}: tensor {self.name}: {reason}")


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says about itself. ``raw`` is the JSON as stored, for telling files apart."""

    tensors: dict[str, StoredTensor]
    raw: bytes


def read_header(file: Path) -> Header:
    """Read and check a safetensors header. Raises ModelError naming the file, and the tensor where one is at fault."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or not 0 < length <= min(size - 8, _LARGEST_HEADER_BYTES):
                raise ModelError(f"{file}: is truncated or not a safetensors file")
            raw = stream.read(length)
        entries = json.loads(raw)
    except OSError as error:
        raise ModelError(f"{file}: cannot be read: {error.strerror}") from None
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
    if dtype in _DTYPES:
        dtype = _DTYPES[dtype]
        if math.prod(shape) * _ELEMENTS[dtype].itemsize != stop - start:
            raise tensor.fail(f"its shape {list(shape)} does not fit its {stop - start} bytes")
    return StoredTensor(file, name, dtype, tuple(shape), tensor.start, tensor.stop)


class Checkpoint:
    """The tensors of a model's weight files, under a family's names; each is read when it is asked for.

    Raises ModelError on a corrupt file, a tensor that is missing, of the wrong shape or type, or of no known use: a
    tensor left out silently would be a model that answers wrongly.
    """

    def __init__(self, folder: Path, files: Iterable[str], family: Family, spec: DecoderSpec) -> None:
        self.headers = {name: read_header(folder / name) for name in files}
        self._family = family
        self._tensors: dict[str, StoredTensor] = {}
        for tensor in (tensor for header in self.headers.values() for tensor in header.tensors.values()):
            if tensor.name in self._tensors:
                raise tensor.fail(f"is in {self._tensors[tensor.name].file} too")
            self._tensors[tensor.name] = tensor
        self._drop_base = not any(name.startswith(family.base) for name in self._tensors)
        self.spec = self._untie_if_stored_apart(spec)
        self.parts = {parameter.name: self._find(parameter) for parameter in parameters(self.spec)}
        self._refuse_leftovers()

    def read(self, parameter: Parameter) -> NDArray[Any]:
        """A parameter, its parts stacked along the outputs: vectors and tables as float32, matrices as they are stored.

        That is float32, float16, or bfloat16 as uint16.
        """
        stored = self.parts[parameter.name]
        one_type = len({part.dtype for part in stored}) == 1
        value: NDArray[Any]
        if one_type and not self._is_transposed(parameter):
            value = np.empty(parameter.shape, _ELEMENTS[stored[0].dtype])
            row = 0
            for part in stored:
                _read_into(value[row : row + part.shape[0]], part)
                row += part.shape[0]
        else:
            parts = [_read(part) if one_type else to_float32(_read(part)) for part in stored]
            value = np.concatenate([part.T for part in parts] if self._is_transposed(parameter) else parts)
        return value if parameter.matrix else to_float32(value)

    def _is_transposed(self, parameter: Parameter) -> bool:
        return parameter.matrix and parameter.module in self._family.transposed

    def _find(self, parameter: Parameter) -> tuple[StoredTensor, ...]:
        modules = self._family.names[parameter.module]
        sizes = parameter.parts if len(modules) == len(parameter.parts) else (sum(parameter.parts),)
        found = []
        for module, size in zip(modules, sizes, strict=True):
            name = self._stored_name(module, parameter)
            if name not in self._tensors:
                raise ModelError(f"{self._where()}: tensor {name} is missing")
            tensor = self._tensors[name]
            shape = (size, *parameter.shape[1:])
            if self._is_transposed(parameter):
                shape = shape[::-1]
            if tensor.shape != shape:
                raise tensor.fail(f"its shape is {list(tensor.shape)}, where the config asks for {list(shape)}")
            if tensor.dtype not in _ELEMENTS:
                raise tensor.fail(f"its type {tensor.dtype} is not supported; known: {', '.join(_DTYPES)}")
            found.append(tensor)
        return tuple(found)

    def _stored_name(self, module: str, parameter: Parameter) -> str:
        if self._drop_base:
            module = module.removeprefix(self._family.base)
        return f"{module.format(layer=parameter.layer)}.{parameter.kind}"

    def _untie_if_stored_apart(self, spec: DecoderSpec) -> DecoderSpec:
        """A config may call tables tied that the file holds with different values; then the file is right."""
        if not spec.tied:
            return spec
        untied = replace(spec, tied=False)
        head = next(p for p in parameters(untied) if p.module == "head")
        if self._stored_name(self._family.names["head"][0], head) not in self._tensors:
            return spec
        embedding = next(p for p in parameters(untied) if p.module == "embedding")
        table, output = (self._find(p)[0] for p in (embedding, head))
        return spec if np.array_equal(_read(table), _read(output)) else untied

    def _refuse_leftovers(self) -> None:
        used = {part.name for parts in self.parts.values() for part in parts}
        if self.spec.tied:
            used |= {f"{name}.weight" for name in self._family.names["head"]}
        left = [
            name
            for name in sorted(self._tensors.keys() - used)
            if not self._family.ignored.fullmatch(name.removeprefix(self._family.base))
        ]
        if left:
            raise self._tensors[left[0]].fail(
                f"is not part of {self.spec.architecture} as its config describes it ({len(left)} such tensors)"
            )

    def _where(self) -> str:
        files = [str(path) for path in {tensor.file for tensor in self._tensors.values()}]
        return files[0] if len(files) == 1 else f"{len(self.headers)} weight files ({INDEX_NAME})"


def _read(tensor: StoredTensor) -> NDArray[Any]:
    value = np.empty(tensor.shape, _ELEMENTS[tensor.dtype])
    _read_into(value, tensor)
    return value


def _read_into(out: NDArray[Any], tensor: StoredTensor) -> None:
    """Fill ``out`` with a tensor. Read, not mapped: a file that is cut short meanwhile is an error, not a signal."""
    target = out.reshape(-1).view(np.uint8).data
    done = 0
    try:
        with tensor.file.open("rb", buffering=0) as stream:
            while done < len(target):
                count = os.preadv(stream.fileno(), [target[done:]], tensor.start + done)
                if count == 0:
                    raise tensor.fail("the file was cut short while it was read")
                done += count
    except OSError as error:
        raise tensor.fail(f"cannot be read: {error.strerror}") from error


def stored_dtype(headers: Iterable[Header]) -> str:
    """The type of most bytes in the files."""
    sizes: dict[str, int] = {}
    for header in headers:
        for tensor in header.tensors.values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.stop - tensor.start
    return max(sizes, key=lambda dtype: sizes[dtype], default="float32")


def to_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """The same numbers. A bfloat16 (here uint16) is the upper half of a float32."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
