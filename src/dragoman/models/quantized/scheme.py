"""The interface of quantization schemes, and helpers to read the config and the stored tensors of a module."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dragoman.core.errors import ModelError
from dragoman.core.lazy_imports import np
from dragoman.models.config import Config
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor, to_float32

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Scheme(Protocol):
    """A quantization scheme of checkpoints, with the options of one model's config.

    Attributes:
        summary: for people: the method, its bits and its groups.
        notes: options of the config without effect on how the model is served here, each a sentence.
    """

    @property
    def summary(self) -> str: ...
    @property
    def notes(self) -> tuple[str, ...]: ...

    def form(self, module: str) -> Format | None:
        """Return how the matrix of a module (``model.layers.0.mlp.up_proj``) is packed, by the config; None: as
        stored."""

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each quantized matrix as one, ``<module>.weight`` of shape ``[outputs, inputs]``.

        Raises ModelError, naming file and tensor, on pieces that are missing, do not fit each other, or contradict the
        config.
        """


class Options(Config):
    """The quantization block of the config; unknown fields are refused."""

    def refuse_unknown(self, decisive: Collection[str], harmless: Collection[str]) -> None:
        """Refuse a field that is neither read (``decisive``) nor only about how weights were made (``harmless``)."""
        for key, value in self.values.items():
            if key not in decisive and key not in harmless and value not in (None, False, {}, [], ""):
                raise ModelError(f"{self.where}: {key} = {str(value)[:80]} is not known")

    def one_of(self, key: str, default: Any, known: Collection[Any]) -> Any:
        """Return a value. Raises ModelError where it is not one of ``known``."""
        value = self._value(key, default)
        if isinstance(value, bool | dict | list) or value not in known:
            raise ModelError(f"{self.where}: {key} {value!r} is not supported; known: {', '.join(map(str, known))}")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of names, empty where there is none."""
        value = self.values.get(key) or []
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise ModelError(f"{self.where}: {key} must be a list of names, got {str(value)[:80]}")
        return tuple(value)


class Pieces(msgspec.Struct, frozen=True):
    """The tensors that a checkpoint stores for one module, by the part of their names after the module's."""

    module: str
    stored: Mapping[str, StoredTensor]

    def piece(self, name: str, dtypes: Collection[str] = (), shape: tuple[int, ...] | None = None) -> StoredTensor:
        """Return one of the tensors. Raises ModelError when it is missing, or not of these types or this shape."""
        if name not in self.stored:
            raise next(iter(self.stored.values())).fail(f"has no {self.module}.{name} beside it")
        found = self.stored[name]
        if dtypes and found.dtype not in dtypes:
            raise found.fail(
                f"its type {found.dtype} does not fit; this piece of a matrix must be {' or '.join(dtypes)}"
            )
        if shape is not None and found.shape != shape:
            raise found.fail(f"its shape is {list(found.shape)}, where {list(shape)} would fit")
        return found


FLOATS = ("float32", "float16", "bfloat16")


def find_pieces(stored: Mapping[str, StoredTensor], main: str, others: Iterable[str]) -> dict[str, Pieces]:
    """Return the modules that have a tensor called ``main``, each with its existing pieces."""
    names = (main, *others)
    modules = [name.removesuffix(f".{main}") for name in stored if name.endswith(f".{main}")]
    return {
        module: Pieces(module, {name: stored[f"{module}.{name}"] for name in names if f"{module}.{name}" in stored})
        for module in modules
    }


def replace_pieces(
    stored: Mapping[str, StoredTensor], modules: Mapping[str, Pieces], matrices: Iterable[Tensor]
) -> dict[str, Tensor]:
    """Return all tensors, with ``matrices`` in place of the pieces that they are made of."""
    used = {f"{module}.{name}" for module, pieces in modules.items() for name in pieces.stored}
    tensors: dict[str, Tensor] = {name: tensor for name, tensor in stored.items() if name not in used}
    for matrix in matrices:
        if matrix.name in tensors:
            raise matrix.fail("is stored both quantized and not")
        tensors[matrix.name] = matrix
    return tensors


def read_finite(tensor: StoredTensor) -> NDArray[np.float32]:
    """Return scales as float32. Raises ModelError where one is not finite."""
    values = to_float32(tensor.read())
    if not np.isfinite(values).all():
        raise tensor.fail("holds numbers that are not finite")
    return values
