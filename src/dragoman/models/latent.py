"""Latent attention: its memory, and its tensors in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.optional_parts import Latent
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import Format, Quantized, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WHOLE, _KEYS, _VALUES = ".kv_b_proj.weight", ".k_b_proj.weight", ".v_b_proj.weight"


def buffer_floats(spec: DecoderSpec, latent: Latent) -> int:
    """Return the floats of a token between the layer's input and that of the last product."""
    return latent.query_rank + spec.head_dim + spec.query_width + spec.heads * max(latent.rank, _query(latent))


def _query(latent: Latent) -> int:
    return latent.plain + latent.rotated


def divide_keys_and_values(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the matrices of keys and of values as ``k_b_proj`` and ``v_b_proj``, where a file has one
    of both, head by head: a query is multiplied by the transposed matrix of its head's keys.

    Raises ModelError where one does not have the shape that the config says.
    """
    if spec.latent is None:
        return dict(tensors)
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith(_WHOLE):
            found[name] = tensor
            continue
        shape = (spec.heads * (spec.latent.plain + spec.latent.value), spec.latent.rank)
        if tensor.shape != shape:
            raise tensor.fail(f"its shape is {list(tensor.shape)}, where the config asks for {list(shape)}")
        module = name.removesuffix(_WHOLE)
        found[module + _KEYS] = _HeadKeys(module + _KEYS, tensor, spec.heads, spec.latent)
        found[module + _VALUES] = _HeadValues(module + _VALUES, tensor, spec.heads, spec.latent)
    return found


class _HeadPart(msgspec.Struct, frozen=True):
    """Rows of each head of a matrix ``[heads · (plain + value), rank]``, as a ``Tensor``."""

    name: str
    whole: Tensor
    heads: int
    latent: Latent

    @property
    def file(self) -> Path:
        return self.whole.file

    @property
    def dtype(self) -> str:
        return self.whole.dtype

    def fail(self, reason: str) -> ModelError:
        return self.whole.fail(reason)

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        raise self.fail("is not a stack of matrices")

    def _by_head(self) -> NDArray[Any]:
        return self.whole.read().reshape(self.heads, -1, self.latent.rank)


class _HeadKeys(_HeadPart, frozen=True):
    """The first rows of each head, transposed: ``[heads · rank, plain]``.

    Integers of a quantized matrix have their scales along its inputs, which are outputs here.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.heads * self.latent.rank, self.latent.plain)

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes * self.latent.plain // (self.latent.plain + self.latent.value)

    @property
    def form(self) -> Format | None:
        return self.whole.form and Format("bfloat16")

    def read(self) -> NDArray[Any]:
        keys = self._by_head()[:, : self.latent.plain]
        return np.ascontiguousarray(keys.transpose(0, 2, 1)).reshape(self.shape)

    def codes(self, form: Format) -> Quantized | None:
        return None


class _HeadValues(_HeadPart, frozen=True):
    """The last rows of each head: ``[heads · value, rank]``."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.heads * self.latent.value, self.latent.rank)

    @property
    def nbytes(self) -> int:
        return self.whole.nbytes * self.latent.value // (self.latent.plain + self.latent.value)

    @property
    def form(self) -> Format | None:
        return self.whole.form

    def read(self) -> NDArray[Any]:
        return np.ascontiguousarray(self._by_head()[:, self.latent.plain :]).reshape(self.shape)

    def codes(self, form: Format) -> Quantized | None:
        codes = self.whole.codes(form)
        if codes is None:
            return None
        rows = np.arange(self.whole.shape[0]).reshape(self.heads, -1)[:, self.latent.plain :]
        return codes.rows(rows.reshape(-1))
