"""Computing threads, shared by the models that have work.

Each engine has threads of its own. With as many as processors in every one, two models with work would wait for each
other's threads in the middle of a loop; so each gets its share of the processors for as long as several have work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Generic

from dragoman.serving.pool_loader import ModelT
from dragoman.serving.residency import Resident

GROW_AFTER_S = 0.05
"""A model gets the threads of others when they have been without work for so long: the next request may be near."""


class ThreadShares(Generic[ModelT]):
    """``threads``: of the machine; None: they are not shared."""

    def __init__(self, threads: int | None) -> None:
        self._threads = threads
        self._given: dict[Resident[ModelT], int] = {}
        self._busy: tuple[Resident[ModelT], ...] = ()
        self._growth: asyncio.TimerHandle | None = None

    def share(self, busy: Sequence[Resident[ModelT]]) -> None:
        """Share the threads among the models with work: fewer for one at once, more after a moment."""
        if self._threads is None:
            return
        self._busy = tuple(busy)
        self._give(shares(self._threads, len(busy)), may_grow=False)
        if self._growth is None:
            self._growth = asyncio.get_running_loop().call_later(GROW_AFTER_S, self._grow)

    def close(self) -> None:
        if self._growth is not None:
            self._growth.cancel()
        self._threads = None

    def _grow(self) -> None:
        self._growth = None
        if self._threads is not None:
            self._give(shares(self._threads, len(self._busy)), may_grow=True)

    def _give(self, counts: Sequence[int], *, may_grow: bool) -> None:
        assert self._threads is not None
        self._given = {each: count for each, count in self._given.items() if not each.freed.is_set()}
        for each, count in zip(self._busy, counts, strict=True):
            now = self._given.get(each, self._threads)
            if count < now or (may_grow and count != now):
                self._given[each] = count
                each.loaded.set_threads(count)


def shares(threads: int, models: int) -> tuple[int, ...]:
    """Return the threads of each model: equal numbers, the first ones one more where that leaves some; at least one."""
    if not models:
        return ()
    each, left = divmod(threads, models)
    return tuple(max(1, each + (number < left)) for number in range(models))
