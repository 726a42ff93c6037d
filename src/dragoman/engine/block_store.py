"""Copies of full blocks in memory that outlives the engine's process, so that the next one need not compute them again.

The server holds a file in memory and gives it to each process of an engine. A process copies every block into it that
is full, and that a sequence owns: 0.2 ms for 1 MB, the 32 tokens of a model that takes 90 ms to compute them. The next
process finds there, by the same names as in the prefix cache, what its requests had computed before the last one died.

What a process writes last may be half a block, and a process that dies of its own fault may have written anywhere. A
copy is valid from when its name is written, after everything else, and has a checksum. A process that dies while it
reads the copies leaves a mark, and the next one does without them.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.engine.kv_cache import KVCache

log = logging.getLogger("dragoman.engine")

_PAGE = 4096
_MAGIC = b"DRGMKV01"
_HEAD = np.dtype([("magic", "S8"), ("model", "S64"), ("slots", "<i8"), ("block_bytes", "<i8"), ("reading", "<i8")])
_ENTRY = np.dtype([("name", "V16"), ("checksum", "<u8"), ("valid", "<i8")])


class BlockStore:
    """``KVCache`` tells it which blocks get a name, an owner, and none any more. At most ``limit_bytes`` are copied.

    ``blocks``: uint8 ``[num_blocks, block_bytes]``, the memory of the cache. ``model``: names all that decides what is
    in a block beside its name.
    """

    def __init__(self, file: int, blocks: NDArray[np.uint8], model: str, limit_bytes: int) -> None:
        self._blocks = blocks
        slots = min(limit_bytes // blocks.shape[1], len(blocks))
        table = -(-(_HEAD.itemsize + slots * _ENTRY.itemsize) // _PAGE) * _PAGE
        size = table + slots * blocks.shape[1]
        if os.fstat(file).st_size != size:
            os.ftruncate(file, 0)
            os.ftruncate(file, size)  # all zeros, and no memory before it is written
        memory = np.frombuffer(mmap.mmap(file, size), np.uint8)
        self._head = memory[: _HEAD.itemsize].view(_HEAD)
        self._entries = memory[_HEAD.itemsize : _HEAD.itemsize + slots * _ENTRY.itemsize].view(_ENTRY)
        self._copies = memory[table:].reshape(slots, blocks.shape[1])
        head = np.array([(_MAGIC, model.encode()[:64], slots, blocks.shape[1], 0)], _HEAD)
        if self._head[0] != head[0]:
            self._entries["valid"] = 0
            self._head[:] = head
        self._held: dict[bytes, int] = {}
        """By name the slots of blocks that somebody owns."""
        self._kept: OrderedDict[bytes, int] = OrderedDict()
        """Those of others, which are overwritten first, the longest ownerless before the others."""
        self._free = list(range(slots - 1, -1, -1))

    def restore(self, cache: KVCache) -> int:
        """Put what was copied into an empty cache. Returns how many blocks came back."""
        self._head["reading"] = 1
        restored = 0
        for slot in np.flatnonzero(self._entries["valid"]).tolist():
            name = self._entries["name"][slot].tobytes()
            if not cache.available or kernels.checksum(self._copies[slot]) != int(self._entries["checksum"][slot]):
                self._entries["valid"][slot] = 0
                continue
            block = cache.allocate()
            self._blocks[block] = self._copies[slot]
            cache.name(block, name)
            self._kept[name] = slot
            cache.release([block])
            restored += 1
        used = set(self._kept.values())
        self._free = [slot for slot in self._free if slot not in used]
        self._head["reading"] = 0
        return restored

    def hold(self, name: bytes, block: int) -> None:
        """A block that has this name is owned: keep a copy of it, if there is room."""
        if name in self._held:
            return
        slot = self._kept.pop(name, None)
        if slot is None:
            if self._kept:
                _, slot = self._kept.popitem(last=False)
            elif self._free:
                slot = self._free.pop()
            else:
                return
            entry, copy = self._entries[slot : slot + 1], self._copies[slot]
            entry["valid"] = 0
            copy[:] = self._blocks[block]
            entry["name"] = np.void(name)
            entry["checksum"] = kernels.checksum(copy)
            entry["valid"] = 1
        self._held[name] = slot

    def let_go(self, name: bytes) -> None:
        """Nobody owns the block any more."""
        slot = self._held.pop(name, None)
        if slot is not None:
            self._kept[name] = slot


def open_block_store(
    file: int, blocks: NDArray[np.uint8], model: str, limit_bytes: int, cache: KVCache
) -> BlockStore | None:
    """Return a store whose blocks are in the cache, which it serves from now on; None where it cannot be had."""
    try:
        if limit_bytes < blocks.shape[1]:
            return None
        store = BlockStore(file, blocks, model, limit_bytes)
        restored = store.restore(cache)
    except (OSError, ValueError) as error:
        log.warning("no blocks are kept for a restart: %s", error)
        return None
    if restored:
        log.info("%d blocks that were computed before are used again", restored)
    cache.store = store
    return store
