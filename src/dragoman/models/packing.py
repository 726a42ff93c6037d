"""Packing of a checkpoint, and the views of packed bytes that the program reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.five_bits import round_to_five_bits
from dragoman.models.layout import Entry, Layout
from dragoman.models.progress import PACKING, Progress, ignore_progress
from dragoman.models.tensors import Blocks, Codes, Format, Quantized, to_float32

PackedBytes = Sequence[NDArray[np.uint8]]
"""Bytes of each entry of a layout, in its order."""


def pack_checkpoint(
    checkpoint: Checkpoint,
    layout: Layout,
    progress: Progress = ignore_progress,
    ready: Mapping[str, NDArray[np.uint8]] | None = None,
) -> PackedBytes:
    """Read and pack every parameter, except those whose bytes are ``ready``, by name. The next one is read while one is
    packed, so a cold disk costs its time only once."""

    done = ready or {}

    def read(entry: Entry) -> NDArray[Any] | Quantized:
        if entry.parameter.name in done:
            return done[entry.parameter.name]
        codes = checkpoint.codes(entry.parameter, entry.form) if entry.form else None
        return checkpoint.read(entry.parameter) if codes is None else codes

    def pack(entry: Entry, tensor: NDArray[Any] | Quantized) -> NDArray[np.uint8]:
        if entry.form is None or entry.parameter.name in done:
            assert isinstance(tensor, np.ndarray)
            return np.ascontiguousarray(tensor).view(np.uint8).reshape(-1)
        return pack_matrix(entry.form, tensor)

    packed: list[NDArray[np.uint8]] = []
    with ThreadPoolExecutor(1) as reader:
        coming = [reader.submit(read, layout.entries[0])]
        for number, entry in enumerate(layout.entries):
            tensor = coming.pop().result()
            if number + 1 < len(layout.entries):
                coming.append(reader.submit(read, layout.entries[number + 1]))
            packed.append(pack(entry, tensor))
            progress(PACKING, (entry.offset + entry.nbytes) / layout.nbytes)
    return packed


def pack_matrix(form: Format, tensor: NDArray[Any] | Quantized) -> NDArray[np.uint8]:
    """Return the bytes of a matrix in a format: of its floats, or of numbers of that format."""
    if isinstance(tensor, Blocks):
        return kernels.pack_blocks(tensor.data, tensor.inputs, cast("kernels.BlockPrecision", form.precision)).data
    if isinstance(tensor, Codes):
        codes = (tensor.values, tensor.scales, tensor.minimums, form.precision, tensor.order)
        return kernels.pack_codes(*codes, wide=form.wide).data
    if form.precision == "iq4_nl":
        return kernels.pack_blocks(kernels.quantize_blocks(tensor), tensor.shape[1], form.precision).data
    if form.precision == "q5_k":
        return pack_matrix(form, round_to_five_bits(to_float32(tensor)))
    return kernels.pack(tensor, form.precision, minimum=form.minimum, wide=form.wide).data


def split_bytes(layout: Layout, memory: NDArray[np.uint8]) -> PackedBytes:
    """Return the entries of a layout as views of one memory area."""
    return [memory[entry.offset : entry.offset + entry.nbytes] for entry in layout.entries]


def entry_checksums(packed: PackedBytes) -> list[int]:
    """Return the checksum of each entry's bytes."""
    return [kernels.checksum(data) for data in packed]


class Weights(Mapping[str, Any]):
    """Parameters of a decoder as views of packed bytes, by canonical name, and by module and layer."""

    def __init__(self, layout: Layout, packed: PackedBytes) -> None:
        pairs = zip(layout.entries, packed, strict=True)
        self._found = {entry.parameter.name: _view(entry, data) for entry, data in pairs}

    def for_encoder(self) -> Weights:
        """Return the weights of the encoder and the shared token table, under the names of a decoder's."""
        found = copy(self)
        found._found = {
            name.replace("encoder_", ""): view
            for name, view in self._found.items()
            if "encoder_" in name or name == "embedding.weight"
        }
        return found

    def for_head(self, weights: Weights, *, tied: bool) -> Weights:
        """Return the weights of a head, with the tables of its decoder's ``weights``. ``tied``: that has one for
        both."""
        found = copy(self)
        tables = {"embedding.weight": "embedding.weight", "head.weight": f"{'embedding' if tied else 'head'}.weight"}
        found._found = self._found | {name: weights[stored] for name, stored in tables.items()}
        return found

    def with_embedding(self, weights: Weights) -> Weights:
        """Return the weights of a head, with the decoder's table of embeddings where it has none."""
        found = copy(self)
        found._found = {"embedding.weight": weights["embedding.weight"]} | self._found
        return found

    def matrix(self, module: str, layer: int | None = None) -> kernels.PackedMatrix:
        """Return the packed weight of a module."""
        found = self._found[_name(module, "weight", layer)]
        assert isinstance(found, kernels.PackedMatrix)
        return found

    def vector(self, module: str, layer: int | None = None) -> NDArray[np.float32]:
        """Return a float32 weight: of a norm, or the table of learned positions."""
        return np.asarray(self._found[_name(module, "weight", layer)])

    def bias(self, module: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """Return a module's bias; None where it has none."""
        found = self._found.get(_name(module, "bias", layer))
        return None if found is None else np.asarray(found)

    def __getitem__(self, name: str) -> Any:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _name(module: str, kind: str, layer: int | None) -> str:
    return f"{module}.{kind}" if layer is None else f"layers.{layer}.{module}.{kind}"


def _view(entry: Entry, data: NDArray[np.uint8]) -> Any:
    if entry.form is None:
        return data.view(np.float32).reshape(entry.parameter.shape)
    outputs, inputs = entry.parameter.shape
    form = entry.form
    return kernels.PackedMatrix(data, outputs, inputs, form.precision, form.minimum, form.wide, form.order != 0)
