"""The memory of the engine: a pool of fixed-size blocks, shared by equal prefixes, reclaimed when nobody owns them."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from dragoman.engine.window import Window

NOT_HELD = -1
"""In place of a block that its sequence does not see any more. It has no owner: releasing and sharing pass over it."""


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Name of a full block: its tokens and, through ``parent``, everything before them.

    ``parent`` is the hash of the block before, or the sequence's salt for the first. A cryptographic digest, because
    two prompts with one name would read each other's keys and values.
    """
    return hashlib.blake2b(array("i", token_ids).tobytes(), key=parent, digest_size=16).digest()


class KeptBlocks(Protocol):
    """Who keeps copies of the named blocks that somebody owns: see ``block_store``."""

    def hold(self, name: bytes, block: int) -> None: ...
    def let_go(self, name: bytes) -> None: ...


class KVCache:
    """Which block belongs to whom. The contents live in the runner; this class only counts.

    A block is *owned* (by one or more sequences), *cached* (no owner, but its contents have a name and can be shared
    again) or *free*. Cached blocks are handed out anew, least recently used first, when no free one is left.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._owners = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.store: KeptBlocks | None = None

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` can hand out: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def owners(self, block: int) -> int:
        return self._owners[block]

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest prefix that is in memory. Takes no ownership."""
        blocks = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def match_window(self, hashes: Sequence[bytes], window: Window) -> list[int]:
        """The same where a token sees a window: of the longest prefix that a sequence can go on behind, the blocks that
        the next token sees, and NOT_HELD for those before.
        """
        if not window.positions:
            return self.match(hashes)
        if self._block_of.keys().isdisjoint(hashes):  # most often so, and soon said of thousands
            return []
        blocks = [self._block_of.get(name, NOT_HELD) for name in hashes]
        end = unbroken = 0  # where the blocks without a gap before the current one begin
        for index, block in enumerate(blocks):
            if block == NOT_HELD:
                unbroken = index + 1
            elif unbroken <= window.first_block((index + 1) * self.block_size):
                end = index + 1
        first = window.first_block(end * self.block_size)
        return [NOT_HELD] * first + blocks[first:end]

    def ownerless(self, blocks: Iterable[int]) -> int:
        """How many of these blocks ``available`` would lose if they were shared."""
        return sum(block != NOT_HELD and self._owners[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block; cached ones come back into use."""
        for block in blocks:
            if block == NOT_HELD:
                continue
            if self._owners[block] == 0:
                del self._cached[block]
                if self.store is not None and (name := self._hash_of[block]) is not None:
                    self.store.hold(name, block)
            self._owners[block] += 1

    def allocate(self) -> int:
        """A block with one owner and no name. The caller has made sure that one is available."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            name = self._hash_of[block]
            assert name is not None
            del self._block_of[name]
            self._hash_of[block] = None
        self._owners[block] = 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Give up ownership of a sequence's blocks, in order. The end of a prefix is forgotten before its start."""
        for block in reversed(blocks):
            if block == NOT_HELD:
                continue
            self._owners[block] -= 1
            if self._owners[block] == 0:
                name = self._hash_of[block]
                if name is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None
                    if self.store is not None:
                        self.store.let_go(name)

    def name(self, block: int, name: bytes) -> None:
        """Make a full, computed block known to others. Where one of the same name is known already, that one stays."""
        if name not in self._block_of and self._hash_of[block] is None:
            self._block_of[name] = block
            self._hash_of[block] = name
            if self.store is not None:
                self.store.hold(name, block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Walk everything, given the block tables of all running sequences. AssertionError names what is wrong."""
        owners = [0] * self.num_blocks
        for table in tables:
            held = [block for block in table if block != NOT_HELD]
            assert len(set(held)) == len(held), "a block appears twice in one table"
            for block in held:
                owners[block] += 1
        if owners != self._owners:
            wrong = next(block for block in range(self.num_blocks) if owners[block] != self._owners[block])
            raise AssertionError(f"block {wrong}: {self._owners[wrong]} != {owners[wrong]} owners")
        free, cached = set(self._free), self._cached.keys()
        owned = {block for block, count in enumerate(owners) if count}
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached, "a block is free and cached"
        assert not free & owned, "a block is free and owned"
        assert not cached & owned, "a block is cached and owned"
        assert len(free | cached | owned) == self.num_blocks, "a block is neither free nor cached nor owned"
        assert all(self._hash_of[block] == name for name, block in self._block_of.items()), "a name leads elsewhere"
        named = self.num_blocks - self._hash_of.count(None)
        assert named == len(self._block_of), "a block carries a name that does not lead to it"
        assert all(self._hash_of[block] is not None for block in cached), "a block is cached without a name"
