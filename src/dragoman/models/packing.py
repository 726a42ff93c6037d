"""Packing a checkpoint into one piece of memory, and the views of it that the program reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.models.layout import Entry, Layout
from dragoman.models.weights import Checkpoint


def pack_checkpoint(checkpoint: Checkpoint, layout: Layout, memory: NDArray[np.uint8]) -> None:
    """Read, convert and pack every parameter into its place in ``memory``; one tensor at a time is held besides."""
    for entry in layout.entries:
        tensor = checkpoint.read(entry.parameter)
        place = memory[entry.offset : entry.offset + entry.nbytes]
        if entry.precision is None:
            place[:] = tensor.view(np.uint8).reshape(-1)
        else:
            place[:] = kernels.pack(tensor, entry.precision).data


class Weights(Mapping[str, Any]):
    """The parameters of a decoder as views of packed bytes, by canonical name, and by module and layer."""

    def __init__(self, layout: Layout, memory: NDArray[np.uint8]) -> None:
        self._found = {entry.parameter.name: _view(entry, memory) for entry in layout.entries}

    def matrix(self, module: str, layer: int | None = None) -> kernels.PackedMatrix:
        """The packed weight of a module."""
        found = self._found[_name(module, "weight", layer)]
        assert isinstance(found, kernels.PackedMatrix)
        return found

    def vector(self, module: str, layer: int | None = None) -> NDArray[np.float32]:
        """A float32 weight: of a norm, or the table of learned positions."""
        return np.asarray(self._found[_name(module, "weight", layer)])

    def bias(self, module: str, layer: int | None = None) -> NDArray[np.float32] | None:
        """A module's bias, where it has one."""
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


def _view(entry: Entry, memory: NDArray[np.uint8]) -> Any:
    data = memory[entry.offset : entry.offset + entry.nbytes]
    if entry.precision is None:
        return data.view(np.float32).reshape(entry.parameter.shape)
    outputs, inputs = entry.parameter.shape
    return kernels.PackedMatrix(data, outputs, inputs, entry.precision)
