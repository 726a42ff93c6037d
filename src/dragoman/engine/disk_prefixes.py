"""Prefixes on disk: which blocks and states of a sequence's prefix are read from there, and which are written.

A sequence that is about to start, and whose prefix is longer on disk than in memory, waits while the missing blocks are
read into free ones, where that takes less time than to compute them. Other sequences run meanwhile. What was read is
cached then, as if it had been computed here, and the sequence starts like any other. ``docs/disk-cache.md`` has the
rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from dragoman.engine.block_group import BlockGroup
from dragoman.engine.prefix_store.segment import STATES, key_of
from dragoman.engine.prefix_store.store import Load, PrefixStore
from dragoman.engine.runner import Runner
from dragoman.engine.state_slots import SNAPSHOT_TOKENS, StateSlots


def model_digest(fingerprint: str, runner: Runner) -> bytes:
    """Return a digest of everything that decides the bytes of a block besides its name: the model's fingerprint, which
    has weights, precisions and kernels, and the sizes of blocks and states."""
    pools = [(pool.window, data.shape[1]) for pool, data in zip(runner.pools, runner.block_data, strict=True)]
    states = runner.state_data.shape[1] if runner.num_states else 0
    text = f"{fingerprint} {runner.block_size} {pools} {states} {SNAPSHOT_TOKENS}"
    return hashlib.blake2b(text.encode(), digest_size=32, person=b"prefix cache").digest()


def open_store(
    path: Path,
    limit_bytes: int | None,
    fingerprint: str,
    runner: Runner,
    groups: Sequence[BlockGroup],
    states: StateSlots | None,
    *,
    label: str = "",
    compares: bool = True,
) -> PrefixStore:
    """Return the store of a model's blocks. It starts in a thread; nothing here waits for the disk."""
    caches = [group.cache for group in groups]

    def is_current(key: bytes, row: int) -> bool:
        if key[0] == STATES:
            return states is not None and states.slot_of(key[1:]) == row
        return caches[key[0]].has_name(row, key[1:])

    state_data = runner.state_data if runner.num_states else None
    model = model_digest(fingerprint, runner)
    return PrefixStore(
        path, limit_bytes, model, runner.block_data, state_data, is_current, label=label, compares=compares
    )


class _Piece(NamedTuple):
    """One row that a load reads into. ``group``: ``STATES`` for a state."""

    group: int
    name: bytes
    row: int


class _Reading(NamedTuple):
    """Blocks that are read for a sequence. ``held``: for each group, the blocks that it owns, in order."""

    load: Load
    pieces: list[_Piece]
    held: list[list[int]]


class DiskPrefixes:
    """The prefix cache on disk of a scheduler's sequences."""

    def __init__(self, store: PrefixStore, groups: Sequence[BlockGroup], states: StateSlots | None) -> None:
        self.store = store
        self._groups, self._states = groups, states
        self._block_size = groups[0].cache.block_size
        self._loads: list[_Reading] = []
        for group in groups:
            group.cache.is_on_disk = self._stored(group.index)
        if states is not None:
            states.on_kept = self._save_state

    # Writing ---------------------------------------------------------------------------------------------------------

    def save(self, group: int, blocks: list[int], names: list[bytes], first: int, is_new: Iterable[bool]) -> None:
        """Have the blocks of a sequence written from ``first`` on, as far as their names are new."""
        for place, new in enumerate(is_new, first):
            if new:
                end = (place + 1) * self._block_size
                self.store.save(key_of(group, names[place]), blocks[place], self._block_size, end)

    @property
    def keeps_tails(self) -> bool:
        """Whether the last block of a prompt is kept though it is not full: where all layers see all, and none has a
        state."""
        return len(self._groups) == 1 and not self._groups[0].window.positions and self._states is None

    def save_tail(self, block: int, name: bytes, tokens: int, end: int) -> None:
        """Have the block written that begins with the last tokens of a prompt of ``end``."""
        self._groups[0].cache.note_tail(block, name)
        self.store.save(key_of(0, name), block, tokens, end)

    def _save_state(self, name: bytes, slot: int) -> None:
        self.store.save(key_of(STATES, name), slot, SNAPSHOT_TOKENS, 0)

    # Reading ---------------------------------------------------------------------------------------------------------

    @property
    def is_reading(self) -> bool:
        """Whether a sequence may wait for the disk."""
        return bool(self._loads) or self.store.is_starting

    def is_coming(self, names: Collection[bytes]) -> bool:
        """Return whether one of these blocks, or the state at the end of one, is being read."""
        return any(
            key_of(group, name) in each.load.keys
            for each in self._loads
            if each.load.is_awaited
            for name in names
            for group in (*range(len(self._groups)), STATES)
        )

    def begin(self, names: list[bytes], cached: list[list[int]], spare: int) -> Load | None:
        """Begin to read what a prefix with these names has on disk beyond its ``cached`` blocks; None where there is
        nothing, or no room, or to compute it is cheaper. ``spare``: blocks of each group that stay available."""
        known = len(cached[0])
        end = self._longest(names, known)
        if end <= known:
            return None
        wanted: list[tuple[int, bytes]] = []
        present: list[list[int]] = []
        for group in self._groups:
            first = group.window.first_block(end * self._block_size)
            here = [group.cache.match([name]) for name in names[first:end]]
            missing = [name for name, found in zip(names[first:end], here, strict=True) if not found]
            wanted += [(group.index, name) for name in missing]
            present.append([block for found in here for block in found])
            if group.cache.available < group.cache.ownerless(present[-1]) + len(missing) + spare:
                return None
        if self._states is not None and not self._states.has(names[end - 1]):
            wanted.append((STATES, names[end - 1]))
        keys = [key_of(*each) for each in wanted]
        if not wanted or not self.store.is_cheaper((end - known) * self._block_size, keys):
            return None
        for group, blocks in zip(self._groups, present, strict=True):
            group.cache.share(blocks)
        return self._start(wanted, present)

    def _start(self, wanted: Iterable[tuple[int, bytes]], held: list[list[int]]) -> Load | None:
        pieces = []
        for group, name in wanted:
            if group == STATES:
                assert self._states is not None
                slot = self._states.take_for_load()
                if slot is None:
                    self._release(held)
                    return None
                pieces.append(_Piece(group, name, slot))
            else:
                block = self._groups[group].cache.allocate()
                held[group].append(block)
                pieces.append(_Piece(group, name, block))
        load = self.store.load([(key_of(piece.group, piece.name), piece.row) for piece in pieces])
        self._loads.append(_Reading(load, pieces, held))
        for each, blocks in zip(self._groups, held, strict=True):
            each.loading.append(blocks)
        return load

    def _longest(self, names: list[bytes], known: int) -> int:
        """Return how many blocks of a prefix are in memory or on disk, in each group those that its next token sees."""
        end = len(names)
        windows = []
        for group in self._groups:
            if group.window.positions:
                windows.append(group)
                continue
            has = self._has(group)
            end = next((place for place in range(known, end) if not has(names[place])), end)
        while end > known:
            if self._states is not None and not self._has_state(names[end - 1]):
                end -= 1
                continue
            gap = self._last_gap(windows, names, end)
            if gap is None:
                return end
            end = gap
        return known

    def _last_gap(self, windows: Iterable[BlockGroup], names: list[bytes], end: int) -> int | None:
        """Return the last block that is missing in the last window of a prefix; None: there is none."""
        gap = None
        for group in windows:
            has, first = self._has(group), group.window.first_block(end * self._block_size)
            for place in range(end - 1, first - 1, -1):
                if not has(names[place]):
                    gap = place if gap is None else min(gap, place)
                    break
        return gap

    def _stored(self, index: int) -> Callable[[bytes], bool]:
        return lambda name: self.store.has(key_of(index, name))

    def _has(self, group: BlockGroup) -> Callable[[bytes], bool]:
        index, cache, store = group.index, group.cache, self.store
        return lambda name: cache.has(name) or store.has(key_of(index, name))

    def _has_state(self, name: bytes) -> bool:
        return (self._states is not None and self._states.has(name)) or self.store.has(key_of(STATES, name))

    def finish(self) -> None:
        """Cache what has been read since the last time."""
        for each in [each for each in self._loads if each.load.is_finished]:
            self._loads.remove(each)
            for piece, is_read in zip(each.pieces, each.load.read, strict=True):
                if piece.group == STATES:
                    assert self._states is not None
                    self._states.end_load(piece.name, piece.row, is_read=is_read)
                elif is_read:
                    self._groups[piece.group].cache.name(piece.row, piece.name)
            for group, blocks in zip(self._groups, each.held, strict=True):
                group.loading.remove(blocks)
            self._release(each.held)

    def _release(self, held: Iterable[list[int]]) -> None:
        for group, blocks in zip(self._groups, held, strict=True):
            group.cache.release(blocks)

    def close(self) -> None:
        """Have all cached blocks written that are not, as far as there is time, and stop."""
        for group in self._groups:
            for name, block in group.cache.names():
                self.store.save(key_of(group.index, name), block, self._block_size, 0)
        self.store.close()
