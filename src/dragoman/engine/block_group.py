"""Block groups: the blocks of the layers that keep keys and values of the same positions.

Layers that see a window of positions free the blocks before it, and layers that see all keep them; so a model that has
both kinds has a pool of blocks for each, and a sequence has a list of blocks in each. One chain of names serves all
groups: a block's name says which tokens it follows from, in whichever layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np

from dragoman.engine.arrays import Int32
from dragoman.engine.kv_cache import NO_BLOCK, KVCache
from dragoman.engine.runner import Runner
from dragoman.engine.sequence import HeldBlocks, Sequence
from dragoman.engine.window import Window


class BlockGroup:
    """The cache of one group, and the blocks that running sequences hold in it.

    Attributes:
        index: number of the group. own: its blocks are own blocks, which have no names.
        table: ``[rows, width]`` ids of the blocks of a sequence's tokens; -1 after the last and before the window.
        copies: pairs of blocks (from, to) to copy before the scheduled step.
        loading: lists of blocks that are owned while what is on disk is read into some of them.
    """

    def __init__(self, index: int, cache: KVCache, window: Window, *, own: bool = False) -> None:
        self.index = index
        self.own = own
        self.cache = cache
        self.window = window
        self.table: Int32 = np.empty((0, 0), np.int32)
        self.copies: list[tuple[int, int]] = []
        self.loading: list[list[int]] = []
        self._block_size = cache.block_size
        self._has_window = window.positions > 0

    # Starting and stopping -------------------------------------------------------------------------------------------

    def blocks_needed(self, num_tokens: int, cached: list[int]) -> int:
        """Return the number of available blocks that ``allocate`` takes."""
        first = self.window.first_block(len(cached) * self._block_size)
        return self.window.end_block(num_tokens, first) - len(cached) + self.cache.ownerless(cached)

    def allocate(self, num_tokens: int, cached: list[int]) -> HeldBlocks:
        """Return the blocks of a sequence of so many tokens, or of a window of them: the cached ones, which it owns
        already, and new ones."""
        first = self.window.first_block(len(cached) * self._block_size)
        new = self.window.end_block(num_tokens, first) - len(cached)
        return HeldBlocks(cached + [self.cache.allocate() for _ in range(new)], first)

    def share(self, held: HeldBlocks) -> HeldBlocks:
        """Return the same blocks for another sequence. Either copies the last one before it writes."""
        self.cache.share(held.ids)
        held.shares_last = True
        return HeldBlocks(list(held.ids), held.first, shares_last=True)

    def attach(self, sequence: Sequence) -> None:
        """Write the blocks of a sequence into its row."""
        ids = sequence.blocks[self.index].ids
        self.table[sequence.row, : len(ids)] = ids

    def detach(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence, and clear its row."""
        ids = sequence.blocks[self.index].ids
        self.cache.release(ids)
        self.table[sequence.row, : len(ids)] = NO_BLOCK

    # Running ---------------------------------------------------------------------------------------------------------

    def free_out_of_window(self, running: Iterable[Sequence]) -> None:
        """Free the blocks that the next tokens of running sequences do not see."""
        if not self._has_window:
            return
        for sequence in running:
            held = sequence.blocks[self.index]
            first = self.window.first_block(sequence.computed)
            if first <= held.first:
                continue
            unseen = slice(held.first, first)
            self.cache.release(held.ids[unseen])
            held.ids[unseen] = [NO_BLOCK] * (first - held.first)
            self.table[sequence.row, unseen] = NO_BLOCK
            held.first = first

    def needs_block(self, sequence: Sequence) -> bool:
        """Return whether a sequence needs a new block to write its next token into."""
        held = sequence.blocks[self.index]
        if held.shares_last:
            return True
        if not self._has_window:  # it started with all blocks but those of its output
            return sequence.computed == len(held.ids) * self._block_size
        return len(held.ids) < self.window.end_block(len(sequence.token_ids), held.first)

    def keeps_last_block(self, sequence: Sequence) -> bool:
        """Return whether the shared block that a sequence would write into has no other owner any more, and no name."""
        held = sequence.blocks[self.index]
        last = held.ids[-1]
        if not self._writes_into_shared(sequence, held) or self.cache.owners(last) > 1 or self.cache.is_named(last):
            return False
        held.shares_last = False
        return True

    def add_block(self, sequence: Sequence) -> None:
        """Allocate a block for the next token, after the others or, as a copy, in place of a shared one."""
        held = sequence.blocks[self.index]
        block = self.cache.allocate()
        if self._writes_into_shared(sequence, held):
            shared = held.ids.pop()
            self.copies.append((shared, block))
            self.cache.release([shared])
        held.shares_last = False
        self.table[sequence.row, len(held.ids)] = block
        held.ids.append(block)

    def _writes_into_shared(self, sequence: Sequence, held: HeldBlocks) -> bool:
        return held.shares_last and sequence.computed < len(held.ids) * self._block_size

    def name_blocks(self, sequence: Sequence, first: int, end: int) -> list[bool]:
        """Name the full blocks of a sequence from ``first`` to before ``end``, but for own blocks. Returns which of the
        names are new."""
        if self.own:
            return [False] * (end - first)
        ids, hashes = sequence.blocks[self.index].ids, sequence.hashes
        return [self.cache.name(ids[index], hashes[index]) for index in range(first, end)]

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Check what running sequences hold, between steps. AssertionError names the broken invariant."""
        size = self._block_size
        tables = []
        for sequence in running:
            held = sequence.blocks[self.index]
            tables.append(held.ids if self.index else held.ids + sequence.encoder_blocks)
            row = self.table[sequence.row]
            assert row.tolist() == held.ids + [-1] * (len(row) - len(held.ids)), "a table row differs from its blocks"
            assert held.ids[: held.first] == [NO_BLOCK] * held.first, "a block before the window was not freed"
            assert held.first <= self.window.first_block(sequence.computed), "a block in the window was freed"
            assert NO_BLOCK not in held.ids[held.first :], "a block in the window is missing"
            most = self.window.most_blocks(len(sequence.token_ids))
            assert len(held.ids) - held.first <= most, "a sequence has more blocks than its window needs"
            assert sequence.computed <= len(held.ids) * size, "computed beyond its blocks"
        self.cache.check_integrity(tables + self.loading)


def groups_for(runner: Runner, step_tokens: int) -> list[BlockGroup]:
    """Return the groups of a model, whose sequences compute at most so many tokens in a step."""
    size = runner.block_size
    return [
        BlockGroup(index, KVCache(pool.blocks, size), Window(pool.window, step_tokens, size), own=pool.own)
        for index, pool in enumerate(runner.pools)
    ]


def longest_sequence(groups: Iterable[BlockGroup], max_context: int) -> int:
    """Return the maximum tokens of a sequence, within a context, that each group has blocks for."""
    return min(group.window.longest(max_context, group.cache.num_blocks) for group in groups)


def match_prefix(groups: SequenceOf[BlockGroup], hashes: list[bytes]) -> list[list[int]]:
    """Return, for each group, the cached blocks that the next token sees after the longest prefix that all groups can
    continue, and NO_BLOCK for those before a window. All are equally long; no ownership is taken.

    A prefix ends with a full block, after which a token has an own block that is new."""
    if not groups[0].window.positions and all(group.own for group in groups[1:]):
        found = groups[0].cache.match(hashes)
        return [found, *([NO_BLOCK] * len(found) for _ in groups[1:])]
    end = len(hashes)
    with_window: list[BlockGroup] = []
    for group in groups:
        if group.own:
            continue
        if group.window.positions:
            end = 0 if group.cache.has_none_of(hashes) else end
            with_window.append(group)
        else:
            end = len(group.cache.match(hashes[:end]))
    end = _end_of_windows(with_window, hashes, end)
    firsts = [group.window.first_block(end * group.cache.block_size) for group in groups]
    return [
        [NO_BLOCK] * first + group.cache.match(hashes[first:end]) for group, first in zip(groups, firsts, strict=True)
    ]


def _end_of_windows(groups: list[BlockGroup], hashes: list[bytes], end: int) -> int:
    """Return the most blocks of a prefix, up to ``end``, whose last window is cached in each group."""
    unbroken = [end] * len(groups)
    """For each group, the first of the cached blocks without a gap up to ``end``."""
    place = 0
    while place < len(groups):
        group = groups[place]
        first = group.window.first_block(end * group.cache.block_size)
        at = min(unbroken[place], end)
        while at > first and group.cache.has(hashes[at - 1]):
            at -= 1
        unbroken[place] = at
        if at > first:  # that block is in the window of all longer prefixes
            end, place = at - 1, 0
        else:
            place += 1
    return end
