"""How far the prompts of waiting requests are, for those that ask."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.core.events import ProgressEvent
from dragoman.engine.fair_queue import FairQueue
from dragoman.engine.sequence import Sequence, SequenceGroup, Status


class PromptProgress:
    """Reports the progress of groups whose prompt is not computed yet."""

    def __init__(self) -> None:
        self._reported: dict[SequenceGroup, tuple[int, int]] = {}

    def add(self, group: SequenceGroup) -> None:
        """Report a group's progress from now on."""
        self._reported[group] = (0, 0)

    def events(self, waiting: FairQueue[Sequence]) -> Iterator[ProgressEvent]:
        """Yield what has changed since the last time."""
        for group, reported in list(self._reported.items()):
            sequence = next(iter(group.unfinished), None)
            if sequence is None or group.prompt_done:
                del self._reported[group]
                continue
            position = waiting.position(sequence) if sequence.status is Status.WAITING else 0
            now = (sequence.computed, position)
            if now != reported:
                self._reported[group] = now
                total = len(group.request.prompt)
                yield ProgressEvent(group.request_id, min(sequence.computed, total), total, position)
