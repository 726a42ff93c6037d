"""Recording the events of the prefix cache, for the outputs of steps."""

from __future__ import annotations

from dragoman.engine.block_events import BlockEvent, BlocksRemoved, BlocksStored
from dragoman.engine.sequence import Sequence


class BlockRecorder:
    """Collects events, in order, until they are taken.

    Removals are reported of those blocks alone whose storing was: blocks that were restored after a crash are not,
    until they are computed again.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[BlockEvent] = []
        self._reported: set[bytes] = set()

    def stored(self, sequence: Sequence, first: int, end: int) -> None:
        """Record that the sequence's blocks from ``first`` to before ``end`` have got their names."""
        names, group = sequence.hashes[first:end], sequence.group
        inputs = (group.embeddings, group.encoder, group.images)
        is_salted = bool(group.request.cache_salt) or any(each is not None for each in inputs)
        tokens = slice(first * self._block_size, end * self._block_size)
        self._reported.update(names)
        self._events.append(
            BlocksStored(
                names=names,
                parent=sequence.hashes[first - 1] if first else None,
                token_ids=[] if is_salted else sequence.token_ids[tokens],
                adapter=None if group.adapter is None else group.adapter.name,
            )
        )

    def removed(self, name: bytes) -> None:
        """Record that a block has lost its name."""
        if name not in self._reported:
            return
        self._reported.discard(name)
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksRemoved):
            last.names.append(name)
        else:
            self._events.append(BlocksRemoved([name]))

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events
