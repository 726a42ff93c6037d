"""KV cache: a pool of fixed-size blocks, shared by equal prefixes, reclaimed when they have no owner."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

NO_BLOCK = -1
"""Stands for a block that its sequence does not see any more. It has no owner: releasing and sharing skip it."""


def block_hash(parent: bytes, token_ids: Sequence[int], salt: bytes = b"") -> bytes:
    """Return the name of a full block: a digest of its tokens and, through ``parent``, of everything before them.

    ``parent`` is the hash of the previous block, or the sequence's hash seed for the first. ``salt``: of what else its
    keys and values depend on, and those after it. A cryptographic digest, because two prompts with one name would read
    each other's keys and values.
    """
    return hashlib.blake2b(array("i", token_ids).tobytes() + salt, key=parent, digest_size=16).digest()


class BlockCopies(Protocol):
    """Keeps copies of the named blocks that have an owner: see ``block_store``."""

    def retain(self, name: bytes, block: int) -> None: ...
    def release(self, name: bytes) -> None: ...


class KVCache:
    """Owners and names of blocks. The contents are in the runner; this class only counts.

    A block is *owned* (by one or more sequences), *cached* (no owner, but its contents have a name and can be shared
    again) or *free*. Cached blocks are reallocated, least recently used first, when no free one is left.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._owners = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free = list(range(num_blocks - 1, -1, -1))
        self._tails: dict[int, bytes] = {}
        """Names of what blocks begin with that are not full: see ``note_tail``."""
        self._cached: OrderedDict[int, None] = OrderedDict()
        self.store: BlockCopies | None = None
        self.is_on_disk: Callable[[bytes], bool] | None = None
        """Whether what has a name can be read from disk, which the store needs no copy of then."""
        self.on_removed: list[Callable[[bytes], None]] = []
        """Called with the name of a cached block that is allocated anew."""

    @property
    def available(self) -> int:
        """Number of blocks that ``allocate`` can return: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def spare(self) -> int | None:
        """A free block, which stays free: what is written into it is nobody's. None where there is none."""
        return self._free[-1] if self._free else None

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def owners(self, block: int) -> int:
        return self._owners[block]

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Return the cached blocks of the longest known prefix. Takes no ownership."""
        blocks = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def has(self, name: bytes) -> bool:
        """Return whether a block has this name."""
        return name in self._block_of

    def has_name(self, block: int, name: bytes) -> bool:
        """Return whether a block has this name, or begins with what has it; from any thread."""
        return self._hash_of[block] == name or self._tails.get(block) == name

    def is_named(self, block: int) -> bool:
        """Return whether a block can be found by a name."""
        return self._hash_of[block] is not None

    def note_tail(self, block: int, name: bytes) -> None:
        """Note the name of the tokens that an owned block begins with, until it is allocated anew. It can be found by
        that when it has no owner, unless it was filled and got its own name."""
        self._tails[block] = name

    def names(self) -> list[tuple[bytes, int]]:
        """Return all names, with their blocks."""
        return list(self._block_of.items())

    def has_none_of(self, hashes: Iterable[bytes]) -> bool:
        """Return whether no block has any of these names: the usual case, and fast for thousands."""
        return self._block_of.keys().isdisjoint(hashes)

    def ownerless(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks ``available`` would lose if they were shared."""
        return sum(block != NO_BLOCK and self._owners[block] == 0 for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to each block; cached ones become owned."""
        for block in blocks:
            if block == NO_BLOCK:
                continue
            if self._owners[block] == 0:
                del self._cached[block]
                if (name := self._hash_of[block]) is not None:
                    self._retain(name, block)
            self._owners[block] += 1

    def allocate(self) -> int:
        """Return a block with one owner and no name. The caller ensures that one is available."""
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            name = self._hash_of[block]
            assert name is not None
            del self._block_of[name]
            self._hash_of[block] = None
            for removed in self.on_removed:
                removed(name)
        self._tails.pop(block, None)
        self._owners[block] = 1
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Remove an owner from a sequence's blocks, in order. The end of a prefix is evicted before its start."""
        for block in reversed(blocks):
            if block == NO_BLOCK:
                continue
            self._owners[block] -= 1
            if self._owners[block] == 0:
                name = self._hash_of[block] or self._named_by_tail(block)
                if name is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None
                    if self.store is not None:
                        self.store.release(name)

    def _named_by_tail(self, block: int) -> bytes | None:
        """Give a block that nobody writes into any more the name of what it begins with, if it has none and that one is
        free. Returns it."""
        tail = self._tails.get(block)
        if tail is None or tail in self._block_of:
            return None
        self._block_of[tail] = block
        self._hash_of[block] = tail
        return tail

    def name(self, block: int, name: bytes) -> bool:
        """Give a full, computed block a name and return True. If another block has that name already, that one
        keeps it."""
        if name in self._block_of or self._hash_of[block] is not None:
            return False
        self._block_of[name] = block
        self._hash_of[block] = name
        self._retain(name, block)
        return True

    def _retain(self, name: bytes, block: int) -> None:
        if self.store is not None and not (self.is_on_disk is not None and self.is_on_disk(name)):
            self.store.retain(name, block)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Check all invariants, given the block tables of all running sequences. AssertionError names the
        broken one.

        Tests call this after each step, with thousands of blocks of which few are owned: what looks at all of them does
        it in C, and sets are compared by the smaller one.
        """
        owners = [0] * self.num_blocks
        owned: set[int] = set()
        for table in tables:
            present = [block for block in table if block != NO_BLOCK]
            assert len(set(present)) == len(present), "a block appears twice in one table"
            owned.update(present)
            for block in present:
                owners[block] += 1
        if owners != self._owners:
            wrong = next(block for block in range(self.num_blocks) if owners[block] != self._owners[block])
            raise AssertionError(f"block {wrong}: {self._owners[wrong]} != {owners[wrong]} owners")
        free, cached = set(self._free), self._cached.keys()
        assert len(free) == len(self._free), "a block is free twice"
        assert cached.isdisjoint(free), "a block is free and cached"
        assert free.isdisjoint(owned), "a block is free and owned"
        assert cached.isdisjoint(owned), "a block is cached and owned"
        assert len(free) + len(cached) + len(owned) == self.num_blocks, "a block is neither free nor cached nor owned"
        hash_of = self._hash_of.__getitem__
        assert list(map(hash_of, self._block_of.values())) == list(self._block_of), "a name has another block"
        named = self.num_blocks - self._hash_of.count(None)
        assert named == len(self._block_of), "a block has a name that does not map to it"
        assert None not in map(hash_of, cached), "a block is cached without a name"
