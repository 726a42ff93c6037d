"""Loading of an adapter from a folder into a slot of a program; what cannot be served is refused before memory is
taken."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.core.errors import ModelError
from dragoman.models.adapters import AdapterInfo
from dragoman.models.adapters.config import AdapterConfig, read_adapter_config
from dragoman.models.adapters.modules import Module, change_bytes
from dragoman.models.adapters.source import require_files
from dragoman.models.adapters.tensors import Change, digest_of, read_contents, read_floats
from dragoman.models.description import ModelInfo
from dragoman.models.families import FAMILIES, Family
from dragoman.models.memory import available_memory
from dragoman.models.packing import Weights
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import BLOCK_PRECISIONS, ELEMENTS

_ROWS_AT_ONCE = 4096  # rows of a matrix that are unpacked at a time for their lengths
_FREE_BYTES = 256 << 20  # left to the rest of the machine


def load_adapter(
    folder: Path,
    name: str,
    matrices: Mapping[str, kernels.PackedMatrix],
    weights: Weights,
    spec: DecoderSpec,
    card: ModelInfo,
    *,
    limit_bytes: int | None = None,
) -> tuple[dict[str, kernels.LowRank], AdapterInfo]:
    """Read an adapter. Return its change of each product by the product's name, and its description.

    ``matrices``: of the products that can be changed, by name. ``limit_bytes``: memory it may take; None: what the
    machine has left. Raises ModelError naming file, field or tensor.
    """
    require_files(folder)
    config = read_adapter_config(folder)
    family = FAMILIES[spec.architecture]
    if family.renumbers:
        raise ModelError(
            f"{folder}: adapters of {spec.architecture} are not supported: they count its layers otherwise"
        )
    contents = read_contents(folder, config, spec, family)
    changes = contents.changes
    for change in changes:
        if change.target.module.product not in matrices:
            raise change.a.fail(f"adapters cannot change {change.target.module.name} of {spec.architecture}")
    _require_room(folder, changes, card, limit_bytes)
    for table, tensor in contents.copies:
        own = weights.matrix("embedding" if spec.tied else table)
        if not _is_copy(tensor, own):
            raise tensor.fail("differs from the model's own table, which an adapter cannot replace")
    products = {
        product: _pack(
            [each for each in changes if each.target.module.product == product], matrices[product], spec, family, card
        )
        for product in dict.fromkeys(change.target.module.product for change in changes)
    }
    return products, _info(folder, name, config, changes, products, card)


def _pack(
    changes: Sequence[Change], matrix: kernels.PackedMatrix, spec: DecoderSpec, family: Family, card: ModelInfo
) -> kernels.LowRank:
    """Pack all changes of one product, that with ``matrix``."""
    packed = kernels.LowRank(changes[0].target.module.inputs, _precision(card))
    for change in changes:
        module, factor = change.target.module, change.target.factor
        order = _row_order(module, spec, family)
        a, b = read_floats(change.a), read_floats(change.b)[order]
        scale = None
        if change.lengths is not None:
            scale = read_floats(change.lengths)[order] / _row_lengths(matrix, module, a, b, factor)
            if not np.isfinite(scale).all():
                raise change.lengths.fail("scales a row of length 0")
        packed.add(module.start, a, b, factor, scale)
    return packed


def _is_copy(tensor: StoredTensor, matrix: kernels.PackedMatrix) -> bool:
    """Return whether a tensor packs to exactly the bytes of a packed matrix."""
    if tensor.shape != matrix.shape or tensor.dtype not in ELEMENTS or matrix.precision in BLOCK_PRECISIONS:
        return False
    precision = cast("kernels.Precision", matrix.precision)
    packed = kernels.pack(tensor.read(), precision, minimum=matrix.minimum, wide=matrix.wide)
    return np.array_equal(packed.data, matrix.data)


def _precision(card: ModelInfo) -> kernels.LowRankPrecision:
    return "float32" if card.precision == "float32" else "bfloat16"


def _row_order(module: Module, spec: DecoderSpec, family: Family) -> NDArray[np.intp]:
    """Return the stored row of each row of a module."""
    order = family.row_order(spec, module.parameter)
    if order is None:
        return np.arange(module.size)
    own = order[module.start : module.start + module.size] - module.start
    if not ((own >= 0) & (own < module.size)).all():
        raise ModelError(f"adapters of {module.name} are not supported: its rows are stored among those of others")
    return own


def _row_lengths(
    matrix: kernels.PackedMatrix,
    module: Module,
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    factor: float,
) -> NDArray[np.float32]:
    """Return ‖W + factor · B · A‖ by row, with W as packed, since products use it so."""
    lengths = np.empty(module.size, np.float32)
    for start in range(0, module.size, _ROWS_AT_ONCE):
        rows = np.arange(start, min(start + _ROWS_AT_ONCE, module.size))
        changed = kernels.gather_rows(matrix, rows + module.start) + np.float32(factor) * (b[rows] @ a)
        lengths[rows] = np.linalg.norm(changed, axis=1)
    return lengths


def _require_room(folder: Path, changes: Sequence[Change], card: ModelInfo, limit_bytes: int | None) -> None:
    needed = sum(change_bytes(change.target, card.precision) for change in changes)
    if limit_bytes is not None and needed > limit_bytes:
        raise ModelError(f"{folder}: needs {needed >> 20} MiB, and {limit_bytes >> 20} MiB are left for adapters")
    largest = max(sum(tensor.nbytes for tensor in change.tensors) for change in changes)
    left = available_memory() - _FREE_BYTES
    if needed + 4 * largest > left:
        raise ModelError(
            f"{folder}: needs {(needed + 4 * largest) >> 20} MiB, and {max(left, 0) >> 20} MiB are available"
        )


def _info(
    folder: Path,
    name: str,
    config: AdapterConfig,
    changes: Sequence[Change],
    products: Mapping[str, kernels.LowRank],
    card: ModelInfo,
) -> AdapterInfo:
    digest = digest_of(changes)
    fingerprint = hashlib.blake2b(f"{card.fingerprint} {digest}".encode(), digest_size=8)
    return AdapterInfo(
        name=name,
        source=str(folder),
        rank=max(change.target.rank for change in changes),
        scaling=max((change.target.factor for change in changes), key=abs),
        target_modules=tuple(sorted({change.target.module.last_name for change in changes})),
        nbytes=sum(packed.nbytes for packed in products.values()),
        digest=digest,
        fingerprint=f"fp_{fingerprint.hexdigest()}",
        warnings=_warnings(config, card),
    )


def _warnings(config: AdapterConfig, card: ModelInfo) -> tuple[str, ...]:
    made_for = config.base_model.rstrip("/").rpartition("/")[2]
    if not made_for or made_for.lower() == card.name.rstrip("/").rpartition("/")[2].lower():
        return ()
    return (f"was made for {config.base_model[:200]}, and the model is called {card.name}",)
