"""State slots: where recurrent layers keep the states of sequences, drafts and snapshots of prefixes.

A running sequence owns one slot, with the state after its computed tokens. Forks get copies. Every row of a draft gets
a slot, so that the state after the last accepted one is there whichever it is. Snapshots of the prefix cache are named
as the block whose end they belong to, and are evicted with it, or least recently used first.

Snapshots take what sequences leave, except some slots for drafts, and give way to sequences.

Copies are collected here and made before the next step, in the order of their requests. A slot is therefore free for
others as soon as its owner leaves it, even where a copy of it is still to be made.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator

from dragoman.engine.kv_cache import KVCache
from dragoman.engine.sequence import Sequence

SNAPSHOT_TOKENS = 256
"""Distance of snapshots in a text: what has to be computed again, at most, where a cached prefix is found."""


def slots_for(num_slots: int, cache: KVCache, running: int, drafts: int, prefix_cache: bool) -> StateSlots | None:
    """Return the slots of a model, whose snapshots leave with the cache's blocks; None where it has no states."""
    if not num_slots:
        return None
    states = StateSlots(num_slots, cache.block_size, running=running, drafts=drafts, prefix_cache=prefix_cache)
    cache.on_removed.append(states.forget)
    return states


class StateSlots:
    """Owners and names of slots. The contents are in the runner.

    Args:
        running: maximum number of running sequences. drafts: maximum number of draft rows of a step.

    Attributes:
        saving: names of the snapshots that running sequences are going to make, with the number of sequences.
        on_kept: called with the name and the slot of a snapshot that is in its slot.
    """

    def __init__(self, num_slots: int, block_size: int, *, running: int, drafts: int, prefix_cache: bool) -> None:
        assert running <= num_slots
        self.num_slots = num_slots
        self.saving: Counter[bytes] = Counter()
        self._running = running
        self._owned = 0
        self._prefix_cache = prefix_cache
        self._for_drafts = min(drafts, num_slots // 4)
        self._block_size = block_size
        self._free = list(range(num_slots - 1, -1, -1))
        self._snapshots: OrderedDict[bytes, int] = OrderedDict()
        self._copies: list[tuple[int, int]] = []
        self._settled: dict[bytes, int] = {}
        """Snapshots that are in their slots: those made by a copy are so after the next step has begun."""
        self._copied: tuple[list[tuple[bytes, int]], list[tuple[bytes, int]]] = ([], [])
        """Snapshots whose copies the step before has made, and those whose copies the next one makes."""
        self._loading: set[int] = set()
        """Slots that snapshots are read into."""
        self.on_kept: Callable[[bytes, int], None] | None = None

    @property
    def spare(self) -> int | None:
        """A free slot, which stays free: what is written into it is nobody's. None where there is none."""
        return self._free[-1] if self._free else None

    @property
    def draft_room(self) -> int:
        """Number of draft rows that can have a slot now. Sequences that fork in the same step must get theirs."""
        for_forks = max(0, self._running - self._owned - len(self._snapshots))
        return max(0, len(self._free) - for_forks)

    def take_copies(self) -> list[tuple[int, int]]:
        """Return the pairs of slots (from, to) to copy before the scheduled step, once."""
        copies, self._copies = self._copies, []
        made, waiting = self._copied
        self._copied = (waiting, [])
        for name, slot in made:
            if self._snapshots.get(name) == slot:
                self._settle(name, slot)
        return copies

    # Sequences -------------------------------------------------------------------------------------------------------

    def deepest(self, names: list[bytes]) -> int:
        """Return how many of the blocks of a prefix, given by name, end at its last snapshot."""
        for count in range(len(names), 0, -1):
            if names[count - 1] in self._snapshots:
                return count
        return 0

    def start(self, sequence: Sequence) -> None:
        """Give a slot to a sequence whose blocks are allocated: with the snapshot of its computed tokens, if any."""
        if sequence.computed:
            name = sequence.hashes[sequence.computed // self._block_size - 1]
            # The newest of all: its slot is taken only where there is no other, which leaves the state in place.
            self._snapshots.move_to_end(name)
            source = self._snapshots[name]
            sequence.state_slot = self._take()
            if source != sequence.state_slot:
                self._copies.append((source, sequence.state_slot))
        else:
            sequence.state_slot = self._take()
        if self._prefix_cache:
            positions = self._positions(sequence, sequence.computed, len(sequence.token_ids))
            sequence.saving = [(each, sequence.hashes[each // self._block_size - 1]) for each in positions]
            self.saving.update(name for _, name in sequence.saving)

    def fork(self, parent: Sequence, sequence: Sequence) -> None:
        """Give a sequence a slot with a copy of its parent's state."""
        sequence.state_slot = self._take()
        self._copies.append((parent.state_slot, sequence.state_slot))

    def stop(self, sequence: Sequence) -> None:
        """Free everything a sequence has."""
        self._owned -= 1
        self._free += {sequence.state_slot, *sequence.draft_slots}
        sequence.state_slot, sequence.draft_slots = -1, []
        self._no_longer_saving(sequence, len(sequence.token_ids))

    # The step --------------------------------------------------------------------------------------------------------

    def add_draft(self, sequence: Sequence) -> None:
        """Give each row of a sequence's draft a slot. The last row continues in the sequence's own."""
        sequence.draft_slots = [*(self._free.pop() for _ in sequence.draft), sequence.state_slot]

    def end_draft(self, sequence: Sequence) -> None:
        """Free the slots of a draft, except the one with the state after the accepted rows."""
        self._free += [slot for slot in sequence.draft_slots if slot != sequence.state_slot]
        sequence.draft_slots = []

    def add_chunk(self, sequence: Sequence, length: int) -> None:
        """Give slots to the snapshots within a chunk. One at its end is copied afterwards."""
        if not self._prefix_cache:
            return
        for position in self._positions(sequence, sequence.computed, sequence.computed + length - 1):
            name = sequence.hashes[position // self._block_size - 1]
            slot = None if name in self._snapshots else self._take_for_snapshot()
            if slot is not None:
                sequence.saves[position] = slot

    def advance(self, sequence: Sequence, before: int) -> None:
        """Record that the sequence has computed its tokens from ``before`` on, and name the snapshots among them."""
        if sequence.draft_slots:
            left, sequence.state_slot = sequence.state_slot, sequence.draft_slots.pop(0)
            if left not in (sequence.state_slot, *sequence.draft_slots):
                self._free.append(left)
        if not self._prefix_cache:
            return
        for position in self._positions(sequence, before, sequence.computed):
            name = sequence.hashes[position // self._block_size - 1]
            slot = sequence.saves.pop(position, None)
            is_copy = slot is None
            if slot is None and position == sequence.computed and name not in self._snapshots:
                slot = self._take_for_snapshot()
                if slot is not None:
                    self._copies.append((sequence.state_slot, slot))
            if slot is None:
                continue
            if name in self._snapshots:
                self._free.append(slot)
                continue
            self._snapshots[name] = slot
            if is_copy:
                self._copied[1].append((name, slot))
            else:
                self._settle(name, slot)
        self._no_longer_saving(sequence, sequence.computed)

    # Snapshots -------------------------------------------------------------------------------------------------------

    def forget(self, name: bytes) -> None:
        """Remove the snapshot at the end of a block that is not cached any more."""
        slot = self._snapshots.pop(name, None)
        if slot is not None:
            self._settled.pop(name, None)
            self._free.append(slot)

    def has(self, name: bytes) -> bool:
        """Return whether there is a snapshot at the end of a block."""
        return name in self._snapshots

    def slot_of(self, name: bytes) -> int | None:
        """Return the slot that has a snapshot; None where none has it, or not yet. From any thread."""
        return self._settled.get(name)

    def take_for_load(self) -> int | None:
        """Return a slot to read a snapshot into, until ``end_load``; None where snapshots have no room."""
        if len(self._loading) >= self.num_slots - self._running:
            return None
        slot = self._take_for_snapshot()
        if slot is not None:
            self._loading.add(slot)
        return slot

    def end_load(self, name: bytes, slot: int, *, is_read: bool) -> None:
        """Keep what was read as the snapshot at the end of a block, or free its slot."""
        self._loading.remove(slot)
        if is_read and name not in self._snapshots:
            self._snapshots[name] = self._settled[name] = slot
        else:
            self._free.append(slot)

    def _settle(self, name: bytes, slot: int) -> None:
        self._settled[name] = slot
        if self.on_kept is not None:
            self.on_kept(name, slot)

    def _evict(self) -> int:
        """Remove the snapshot that was used longest ago. Returns its slot."""
        name, slot = self._snapshots.popitem(last=False)
        self._settled.pop(name, None)
        return slot

    def _positions(self, sequence: Sequence, first: int, end: int) -> Iterator[int]:
        """Yield where snapshots are made after ``first`` tokens and up to ``end``: at regular distances, and at the
        last block that ends before the prompt's last token, where another request with the same prompt continues."""
        prompt_end = (sequence.prompt_length - 1) // self._block_size * self._block_size
        regular = range((first // SNAPSHOT_TOKENS + 1) * SNAPSHOT_TOKENS, end + 1, SNAPSHOT_TOKENS)
        if first < prompt_end <= end and prompt_end % SNAPSHOT_TOKENS:
            yield from sorted((*regular, prompt_end))
        else:
            yield from regular

    def _no_longer_saving(self, sequence: Sequence, computed: int) -> None:
        while sequence.saving and sequence.saving[0][0] <= computed:
            _, name = sequence.saving.pop(0)
            self.saving[name] -= 1
            if not self.saving[name]:
                del self.saving[name]

    def _take(self) -> int:
        self._owned += 1
        if not self._free:
            return self._evict()
        return self._free.pop()

    def _take_for_snapshot(self) -> int | None:
        if len(self._free) > self._for_drafts:
            return self._free.pop()
        return self._evict() if self._snapshots else None

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Check all invariants between steps. AssertionError names the broken one."""
        owned = [sequence.state_slot for sequence in running]
        kept = list(self._snapshots.values())
        assert not any(sequence.draft_slots or sequence.saves for sequence in running), "slots of a step are left over"
        assert sorted([*owned, *kept, *self._free, *self._loading]) == list(range(self.num_slots)), (
            "a slot has two owners or none"
        )
        assert self._settled.items() <= self._snapshots.items(), "a snapshot that is gone has a slot"
        assert len(owned) == self._owned, "the count of owned slots is wrong"
        saving = Counter(name for sequence in running for _, name in sequence.saving)
        assert saving == self.saving, "the counts of snapshots to come are wrong"
