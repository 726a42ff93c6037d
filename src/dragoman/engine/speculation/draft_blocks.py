"""The blocks in which a draft model or a head keeps the keys and values of the texts that it has read."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from typing import Protocol

from dragoman.engine.arrays import Int32
from dragoman.models.batch import PoolSize


class BlockOwner(Protocol):
    """A text that has blocks.

    Attributes:
        read: leading tokens whose keys and values are in the blocks.
        table: ``[groups, blocks of the longest text]`` ids of its blocks; -1: none. owned: the same, each once, by
            group.
    """

    read: int
    table: Int32
    owned: list[list[int]]


class BlockLimits(Protocol):
    """The part of a runner that says which blocks there are. ``max_tokens``: rows of a step."""

    @property
    def block_size(self) -> int: ...
    @property
    def pools(self) -> SequenceOf[PoolSize]: ...
    @property
    def max_context(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class DraftBlocks:
    """Gives blocks to texts and takes them back. Each group of layers has a pool of its own.

    Attributes:
        width: blocks of the longest text.
        free: ids of blocks that no text has, by group.
    """

    def __init__(self, limits: BlockLimits) -> None:
        self._size = size = limits.block_size
        self._pools = limits.pools
        self.width = math.ceil(limits.max_context / size)
        # Layers with a window use a ring of blocks: what a step writes is never what a row of it still sees.
        self._rings = [
            min(self.width, math.ceil((pool.window + limits.max_tokens) / size) + 1) if pool.window else self.width
            for pool in limits.pools
        ]
        self.free = [list(range(pool.blocks - 1, -1, -1)) for pool in limits.pools]

    def allocate(self, text: BlockOwner, tokens: int) -> bool:
        """Give a text blocks for so many tokens. Returns False where too few are free; it keeps those that it got."""
        blocks = math.ceil(tokens / self._size)
        for group, (owned, free, ring) in enumerate(zip(text.owned, self.free, self._rings, strict=True)):
            while len(owned) < min(blocks, ring):
                if not free:
                    return False
                owned.append(free.pop())
            filled = int((text.table[group] >= 0).sum())
            for index in range(filled, blocks):
                text.table[group, index] = owned[index % ring]
        return True

    def still_has(self, text: BlockOwner, tokens: int) -> bool:
        """Return whether its rings still have what a token after so many sees."""
        for pool, ring in zip(self._pools, self._rings, strict=True):
            if (
                pool.window
                and max(0, tokens - pool.window) // self._size < math.ceil(text.read / self._size) - ring + 1
            ):
                return False
        return True

    def release(self, text: BlockOwner) -> None:
        """Take all blocks of a text back. Nothing of it is read then."""
        for free, owned in zip(self.free, text.owned, strict=True):
            free += owned
            owned.clear()
        text.table.fill(-1)
        text.read = 0
