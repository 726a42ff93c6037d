"""A loaded adapter, as the other rooms may know it."""

from __future__ import annotations

import msgspec


class AdapterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about an adapter without seeing its weights.

    Attributes:
        source: the folder that it was read from.
        rank, scaling: of the low-rank products, the largest where modules differ; scaling is the factor of the product.
        target_modules: the modules of the model that it changes, by the last part of their names in the checkpoint.
        nbytes: of memory.
        digest: equal for two adapters exactly when their weights, scalings and targets are, whatever their names.
        fingerprint: like that of ``ModelInfo``, of the model with this adapter.
        warnings: what the operator should hear, such as an adapter that was made for another model's name.
    """

    name: str
    source: str
    rank: int
    scaling: float
    target_modules: tuple[str, ...]
    nbytes: int
    digest: str
    fingerprint: str
    warnings: tuple[str, ...] = ()
