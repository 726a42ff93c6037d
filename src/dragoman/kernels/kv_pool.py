"""Keys and values of all layers, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.kernels import _native

BLOCK_TOKENS = 32

KVPrecision = Literal["float32", "bfloat16", "int8", "int4"]

_WIDENING = frozenset({"armv8", "avx2", "avx512_vnni", "avx_vnni", "neon", "portable"})
"""Instruction sets that multiply bfloat16 as float32, half as many numbers at a time as int8."""


def multiplies_bfloat16() -> bool:
    """Return whether the instruction set has products of bfloat16. With them, attention of many rows is faster on keys
    and values in bfloat16 than in int8, which saves memory alone; without them it is slower."""
    return _native.instruction_set() not in _WIDENING


class KVPool:
    """Keys and values of blocks of 32 tokens each, for all layers. Layers of one group share blocks.

    ``blocks``: of each group, or one number where there is one group. ``groups``: that of each layer; None: the first.
    ``kv_heads`` and ``head_dim``: of all layers, or one number for each. ``latent``: the first numbers of a token's key
    that are its value as well, a multiple of 32 (latent attention); 0: values are kept beside keys. ``own_blocks``: of
    a further group, the last, in which a pool in int4 keeps all layers in bfloat16: each token reads the block that its
    own position is in from there; 0: it reads all in int4. The memory is allocated by the system as it is touched.
    ValueError on invalid sizes (``head_dim`` at most 1024), MemoryError where the address space is limited.
    """

    def __init__(
        self,
        *,
        layers: int,
        blocks: int | Sequence[int],
        kv_heads: int | Sequence[int],
        head_dim: int | Sequence[int],
        precision: KVPrecision,
        groups: Sequence[int] | None = None,
        latent: int = 0,
        own_blocks: int = 0,
    ) -> None:
        heads, dims = ([sizes] * layers if isinstance(sizes, int) else list(sizes) for sizes in (kv_heads, head_dim))
        if len(heads) != layers:
            raise ValueError(f"there are heads of {len(heads)} layers for {layers}")
        self.blocks = (blocks,) if isinstance(blocks, int) else tuple(blocks)
        self.native = _native.KVPool(
            blocks=list(self.blocks),
            kv_heads=heads,
            head_dims=dims,
            groups=[0] * layers if groups is None else list(groups),
            precision=precision,
            latent=latent,
            own_blocks=own_blocks,
        )
        self.layers = layers
        if own_blocks:
            self.blocks = (*self.blocks, own_blocks)
        self.precision = precision

    @property
    def nbytes(self) -> int:
        """Size of the whole pool in bytes when every block has been used."""
        return sum(len(self.native.data(group)) for group in range(len(self.blocks)))

    @property
    def bytes_per_block(self) -> int:
        """Size of one block of the first group over all its layers in bytes."""
        return self.native.bytes_per_block(0)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes of the first group as a view, [blocks][layers][kv_heads][keys, values], without values in a latent
        pool; reading touches them."""
        return self.native.data(0)

    def block_data(self, group: int) -> NDArray[np.uint8]:
        """Return the bytes of a group as a view ``[blocks, bytes]``."""
        return self.native.data(group).reshape(self.blocks[group], -1)

    def copy_blocks(self, sources: ArrayLike, targets: ArrayLike, group: int = 0) -> None:
        """Copy block ``sources[i]`` to ``targets[i]`` in all layers of a group, in ascending order of i.

        ValueError, before anything is copied, when a block is not in the pool.
        """
        self.native.copy_blocks(group, *(np.ascontiguousarray(each, dtype=np.int32) for each in (sources, targets)))
