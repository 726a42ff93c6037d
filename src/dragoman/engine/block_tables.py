"""Block tables: the row and the blocks of every running sequence.

Blocks are allocated and freed, shared and copied, matched in the cache and named for it here. The scheduler decides
which sequences get them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as SequenceOf

import numpy as np

from dragoman.engine.arrays import Int32
from dragoman.engine.block_group import BlockGroup, match_prefix
from dragoman.engine.block_recorder import BlockRecorder
from dragoman.engine.disk_prefixes import DiskPrefixes
from dragoman.engine.encoder import EncoderInputs
from dragoman.engine.kv_cache import block_hash
from dragoman.engine.sequence import Sequence
from dragoman.engine.state_slots import StateSlots

LEAST_TAIL_BLOCKS = 32
"""Full blocks of a prompt from which on its last, incomplete block is kept on disk too: one more of so many."""


class BlockTables:
    """The tables that the runner reads, and the blocks of the sequences that have a row in them.

    Attributes:
        groups: the blocks of the layers that keep the same positions; names are reported of the first.
        blocks: ``[groups, rows, width]`` ids of the blocks of a sequence's tokens; -1 after the last.
        encoder_blocks: ``[rows, encoder_width]`` of its encoder's input.
        free_rows: rows without a sequence.
        events: where new names are reported to; None: nowhere.
        computing: names of the blocks that running sequences are going to fill, with the number of sequences.
        states: slots of recurrent layers' states; None where the model has no such layers.
        disk: the prefix cache on disk; None: there is none.
    """

    def __init__(
        self,
        groups: SequenceOf[BlockGroup],
        inputs: EncoderInputs,
        *,
        rows: int,
        width: int,
        encoder_width: int,
        prefix_cache: bool,
        states: StateSlots | None = None,
    ) -> None:
        self.groups = groups
        self._block_size = groups[0].cache.block_size
        self._inputs = inputs
        self._prefix_cache = prefix_cache
        self.states = states
        self.blocks: Int32 = np.full((len(groups), rows, width), -1, np.int32)
        for group, table in zip(groups, self.blocks, strict=True):
            group.table = table
        self.encoder_blocks: Int32 = np.full((rows, encoder_width), -1, np.int32)
        self.free_rows = list(range(rows - 1, -1, -1))
        self.computing: Counter[bytes] = Counter()
        self.events: BlockRecorder | None = None
        self.disk: DiskPrefixes | None = None

    @property
    def free_blocks(self) -> int:
        """Blocks without owner, in the first group; fewer where a larger part of another group's is owned, but for own
        blocks."""
        first = self.groups[0].cache
        free = first.available
        for group in self.groups[1:]:
            if group.own:
                continue
            free = min(free, group.cache.available * first.num_blocks // group.cache.num_blocks)
        return free

    def take_copies(self) -> dict[int, list[tuple[int, int]]]:
        """Return the pairs of blocks (from, to) to copy before the scheduled step, by group, once."""
        found = {}
        for group in self.groups:
            if group.copies:
                found[group.index], group.copies = group.copies, []
        return found

    def take_state_copies(self) -> list[tuple[int, int]]:
        """Return the pairs of state slots (from, to) to copy before the scheduled step, once."""
        return [] if self.states is None else self.states.take_copies()

    # Starting and stopping -------------------------------------------------------------------------------------------

    def must_wait(self, sequence: Sequence) -> bool:
        """Return whether another sequence is computing the block that this one could share next, or it is being read
        from disk."""
        if self._inputs.must_wait(sequence) or (self.disk is not None and self._waits_for_disk(sequence, self.disk)):
            return True
        coming = self.computing if self.states is None else self.states.saving
        if not coming or sequence.group.wants_prompt_logprobs:
            return False
        if sequence.waits_for is not None and sequence.waits_for in coming:
            return True
        hashes = self._shareable_hashes(sequence)
        known = len(self._cached_blocks(hashes)[0])
        following = hashes[known:] if self.states is not None else hashes[known : known + 1]
        sequence.waits_for = next((name for name in following if name in coming), None)
        return sequence.waits_for is not None

    def _waits_for_disk(self, sequence: Sequence, disk: DiskPrefixes) -> bool:
        if sequence.load is not None:
            return sequence.load.is_awaited
        if not disk.is_reading:
            return False
        hashes = self._shareable_hashes(sequence)
        if not hashes:
            return False
        known = len(self._cached_blocks(hashes)[0])
        return known < len(hashes) and (disk.store.is_starting or disk.is_coming(hashes[known : known + 1]))

    def begin_load(self, sequence: Sequence, *, spare: int) -> bool:
        """Begin to read what a sequence's prefix has on disk and not in memory, at most once for each start of it.
        Return whether it waits for that."""
        if self.disk is None or sequence.load is not None:
            return False
        hashes = self._shareable_hashes(sequence)
        cached = self._cached_blocks(hashes)
        if (tail := self._tail_name(sequence)) is not None and self._cached_tail(sequence, cached) is None:
            hashes = [*hashes, tail]
        sequence.load = self.disk.begin(hashes, cached, spare) if hashes else None
        return sequence.load is not None and sequence.load.is_awaited

    def fits(self, sequence: Sequence, *, freed: SequenceOf[Sequence] = (), spare: int = 0) -> bool:
        """Return whether there is memory for a sequence, and for ``spare`` blocks more in each group, when those of the
        sequences ``freed`` are free."""
        for group, needed in zip(self.groups, self._blocks_needed(sequence), strict=True):
            held = (each.blocks[group.index] for each in freed)
            available = group.cache.available + sum(len(each.ids) - each.first for each in held)
            if needed + spare > available:
                return False
        return True

    def _blocks_needed(self, sequence: Sequence) -> list[int]:
        """Return, for each group, the number of available blocks that ``allocate`` takes for all its tokens, or a
        window of them."""
        cached = self._cached_blocks(self._shareable_hashes(sequence))
        tokens = len(sequence.token_ids)
        needed = [group.blocks_needed(tokens, blocks) for group, blocks in zip(self.groups, cached, strict=True)]
        needed[0] += self._inputs.blocks_needed(sequence, len(cached[0]) * self._block_size)
        return needed

    def allocate(self, sequence: Sequence) -> None:
        """Give the sequence the cached blocks of its prefix, and new blocks for the rest of its tokens."""
        cached = self._cached_blocks(self._shareable_hashes(sequence))
        computed = len(cached[0]) * self._block_size
        tail = self._cached_tail(sequence, cached)
        if tail is not None:
            cached, computed = [[*cached[0], tail]], len(sequence.token_ids) - 1
        for group, blocks in zip(self.groups, cached, strict=True):
            group.cache.share(blocks)
        self._inputs.start(sequence, computed)
        tokens = len(sequence.token_ids)
        sequence.blocks = [group.allocate(tokens, blocks) for group, blocks in zip(self.groups, cached, strict=True)]
        sequence.blocks[0].shares_last = tail is not None
        sequence.computed = computed
        if sequence.group.cached_tokens is None:
            sequence.group.cached_tokens = sequence.cached_prompt_tokens
        if self._prefix_cache:
            self._extend_hashes(sequence, tokens // self._block_size)
            self.computing.update(sequence.hashes[computed // self._block_size :])
        if self.states is not None:
            self.states.start(sequence)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Return how many prompt tokens of a sequence that does not run would come from the cache, which stays as it
        is."""
        encoder = sequence.group.encoder
        if encoder is not None:
            return len(encoder) - self._inputs.tokens_to_encode(sequence)
        cached = self._cached_blocks(self._shareable_hashes(sequence))
        return min(len(cached[0]) * self._block_size, sequence.prompt_length)

    def images_needed(self, sequence: Sequence) -> list[int]:
        """Return the images whose embeddings a sequence with images needs when it starts, or has started with."""
        images = sequence.group.images
        assert images is not None
        computed = sequence.computed if sequence.blocks else self.cached_tokens(sequence)
        if images.cross_attention is not None:
            return self._inputs.missing_images(sequence, images.cross_attention, computed)
        return images.after(computed)

    def share(self, parent: Sequence, sequence: Sequence) -> None:
        """Give a sequence that does not run the blocks and position of its parent."""
        sequence.blocks = [group.share(held) for group, held in zip(self.groups, parent.blocks, strict=True)]
        self._inputs.share(parent)
        sequence.encoder_blocks = list(parent.encoder_blocks)
        sequence.run_blocks = dict(parent.run_blocks)
        sequence.encoded = parent.encoded
        sequence.computed = parent.computed
        if self.states is not None:
            self.states.fork(parent, sequence)

    def attach(self, sequence: Sequence) -> None:
        """Give a row to a sequence that has its blocks by ``allocate`` or ``share``."""
        sequence.waits_for = None
        sequence.row = self.free_rows.pop()
        for group in self.groups:
            group.attach(sequence)
        self.encoder_blocks[sequence.row, : len(sequence.encoder_blocks)] = sequence.encoder_blocks

    def detach(self, sequence: Sequence) -> None:
        """Free its row and all its blocks."""
        self._no_longer_computing(sequence.hashes[sequence.computed // self._block_size :])
        if self.states is not None:
            self.states.stop(sequence)
        for group in self.groups:
            group.detach(sequence)
        self._inputs.release(sequence)
        self.encoder_blocks[sequence.row, : len(sequence.encoder_blocks)] = -1
        self.free_rows.append(sequence.row)
        sequence.blocks = []
        sequence.load = None
        sequence.encoder_blocks = []
        sequence.run_blocks, sequence.unwritten_runs = {}, []
        sequence.encoded = False
        sequence.computed = 0
        sequence.row = -1

    # Running ---------------------------------------------------------------------------------------------------------

    def mark_computed(self, sequence: Sequence, num_tokens: int) -> None:
        """Record that ``num_tokens`` more tokens are in the sequence's blocks. Blocks that are full now can be
        shared."""
        size = self._block_size
        before, after = sequence.computed // size, (sequence.computed + num_tokens) // size
        first = sequence.computed
        sequence.computed += num_tokens
        if len(sequence.run_blocks) > 1 and self._inputs.advance(sequence):
            self.encoder_blocks[sequence.row, : len(sequence.encoder_blocks)] = sequence.encoder_blocks
        if after != before and self._prefix_cache:
            self._name_blocks(sequence, before, after)
        if first < sequence.prompt_length <= sequence.computed:
            self._save_tail(sequence)
        if self.states is not None:
            self.states.advance(sequence, first)

    def _name_blocks(self, sequence: Sequence, before: int, after: int) -> None:
        announced = len(sequence.hashes)
        self._extend_hashes(sequence, after)
        named = [group.name_blocks(sequence, before, after) for group in self.groups]
        if self.disk is not None:
            for group, new in zip(self.groups, named, strict=True):
                self.disk.save(group.index, sequence.blocks[group.index].ids, sequence.hashes, before, new)
        if self.events is not None:
            self._report(sequence, before, named[0])
        self._no_longer_computing(sequence.hashes[before : min(after, announced)])

    def _report(self, sequence: Sequence, first: int, named: list[bool]) -> None:
        """Record the runs of blocks that have new names."""
        assert self.events is not None
        start = None
        for index, is_new in enumerate([*named, False], first):
            if is_new and start is None:
                start = index
            elif not is_new and start is not None:
                self.events.stored(sequence, start, index)
                start = None

    def draft_room(self, rows: int) -> int:
        """Return how many of so many draft rows can have their states kept."""
        return rows if self.states is None else min(rows, self.states.draft_room)

    def add_draft(self, sequence: Sequence) -> None:
        """Prepare for the states after each row of the sequence's draft, if it has one."""
        if self.states is not None and sequence.draft:
            self.states.add_draft(sequence)

    def end_draft(self, sequence: Sequence) -> None:
        """Free what a verified draft had."""
        if self.states is not None:
            self.states.end_draft(sequence)

    def add_chunk(self, sequence: Sequence, length: int) -> None:
        """Prepare for the snapshots of states within a scheduled chunk."""
        if self.states is not None:
            self.states.add_chunk(sequence, length)

    # The end of a prompt ---------------------------------------------------------------------------------------------

    def _tail_name(self, sequence: Sequence) -> bytes | None:
        """Return the name of the block with the last tokens of the prompt, all of them, where nothing is generated yet.
        None: it is not kept. Its first tokens stay as they are, whatever is written after them."""
        length, last = sequence.prompt_length, (sequence.prompt_length - 1) // self._block_size
        if self.disk is None or not self.disk.keeps_tails or last < LEAST_TAIL_BLOCKS:
            return None
        if sequence.group.images is not None or sequence.group.cacheable_tokens < length:
            return None
        if len(sequence.token_ids) != length:
            return None
        self._extend_hashes(sequence, length // self._block_size)
        if length % self._block_size == 0:
            return sequence.hashes[last]
        return block_hash(sequence.hashes[last - 1], sequence.token_ids[last * self._block_size :])

    def _save_tail(self, sequence: Sequence) -> None:
        """Have the last block of a prompt written to disk, unless it is full: then it has its name."""
        last, held = divmod(sequence.prompt_length, self._block_size)
        if held > 1 and (name := self._tail_name(sequence)) is not None:
            assert self.disk is not None
            self.disk.save_tail(sequence.blocks[0].ids[last], name, held, sequence.prompt_length)

    def _cached_tail(self, sequence: Sequence, cached: list[list[int]]) -> int | None:
        """Return the cached block with the end of the prompt, behind the other cached ones. The sequence computes the
        last token again, in a copy, for which there is memory."""
        name = self._tail_name(sequence)
        if name is None or len(cached[0]) != (sequence.prompt_length - 1) // self._block_size:
            return None
        cache = self.groups[0].cache
        for block in cache.match([name]):
            if cache.available > cache.ownerless([*cached[0], block]):
                return block
        return None

    # Names -----------------------------------------------------------------------------------------------------------

    def _shareable_hashes(self, sequence: Sequence) -> list[bytes]:
        """Return the names of the leading full blocks that may come from the cache. The last token is always
        computed."""
        if not self._prefix_cache:
            return []
        tokens = min(len(sequence.token_ids) - 1, sequence.group.cacheable_tokens)
        count = tokens // self._block_size
        self._extend_hashes(sequence, count)
        return sequence.hashes[:count]

    def _cached_blocks(self, hashes: list[bytes]) -> list[list[int]]:
        """Return, for each group, the blocks of the longest prefix that is cached, and whose end has a state where
        layers need one."""
        if self.states is None:
            return match_prefix(self.groups, hashes)
        count = self.states.deepest(hashes)
        while count:
            blocks = match_prefix(self.groups, hashes[:count])
            if len(blocks[0]) == count:
                return blocks
            count = self.states.deepest(hashes[: count - 1])
        return [[] for _ in self.groups]

    def _extend_hashes(self, sequence: Sequence, count: int) -> None:
        hashes, size = sequence.hashes, self._block_size
        while len(hashes) < count:
            start = len(hashes) * size
            parent = hashes[-1] if hashes else sequence.hash_seed
            images = sequence.group.images
            salt = b"" if images is None else images.salt(start, start + size)
            hashes.append(block_hash(parent, sequence.token_ids[start : start + size], salt))

    def _no_longer_computing(self, hashes: list[bytes]) -> None:
        for name in hashes:
            self.computing[name] -= 1
            if not self.computing[name]:
                del self.computing[name]
