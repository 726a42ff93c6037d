"""Models in memory: who uses each, and which of them make room for another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple

from dragoman.serving.model_registry import ModelSource
from dragoman.serving.pool_loader import ModelMemory, ModelT

HOLD_LOADS = 4.0
"""A model stays for at least so many times as long as its load took, so that loads take a fifth of the time at most."""
LONGEST_HOLD_S = 60.0


class Resident(Generic[ModelT]):
    """A model in memory, and the count of requests that use it.

    Attributes:
        memory: estimated. users: requests that hold it. used_s: when the last one came or left, on the loop's clock.
        load_s: how long its load took, which ended at ``loaded_s``. idle_s: seconds after its last request at which it
            is unloaded; None: never. has_own_idle_s: a request has set that. is_pinned: it is never unloaded to make
            room, nor for being idle. is_closing: its engine is being ended. freed: it has ended.
    """

    def __init__(
        self,
        source: ModelSource,
        loaded: ModelT,
        memory: ModelMemory,
        on_change: Callable[[Resident[Any]], None],
        *,
        load_s: float = 0.0,
        idle_s: float | None = None,
        is_pinned: bool = False,
    ) -> None:
        """``on_change`` is called when the first user comes, and when the last one leaves."""
        self.source, self.loaded, self.memory = source, loaded, memory
        self.load_s, self.idle_s, self.has_own_idle_s = load_s, idle_s, False
        self.is_pinned = is_pinned
        self.is_closing = False
        self.users = 0
        self.loaded_s = self.used_s = asyncio.get_running_loop().time()
        self.freed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._nap: asyncio.TimerHandle | None = None
        self._on_change = on_change

    @property
    def held_until_s(self) -> float:
        """Return when it may make room for another model: after the time that its load was worth, or when it has been
        idle for as long as a load takes."""
        hold_s = min(HOLD_LOADS * self.load_s, LONGEST_HOLD_S)
        held = self.loaded_s + hold_s
        return held if self.users else min(held, self.used_s + min(self.load_s, LONGEST_HOLD_S))

    def enter(self) -> None:
        self.used_s = asyncio.get_running_loop().time()
        self.users += 1
        if self.users == 1:
            self._idle.clear()
            self._on_change(self)

    def leave(self) -> None:
        self.used_s = asyncio.get_running_loop().time()
        self.users -= 1
        if not self.users:
            self._idle.set()
            self._on_change(self)

    async def wait_idle(self) -> None:
        """Return when no request uses it."""
        while self.users:
            await self._idle.wait()

    def restart_nap(self, doze: Callable[[Resident[ModelT]], None]) -> None:
        """Call ``doze`` when it has been idle for ``idle_s`` from now on."""
        self.end_nap()
        if self.idle_s is not None and not self.users and not self.is_pinned:
            self._nap = asyncio.get_running_loop().call_later(self.idle_s, doze, self)

    def end_nap(self) -> None:
        if self._nap is not None:
            self._nap.cancel()
            self._nap = None


class RequestLease:
    """A request's hold on the model that answers it. It is released while the request itself asks for another."""

    def __init__(self) -> None:
        self.resident: Resident[Any] | None = None

    def take(self, resident: Resident[Any]) -> None:
        if self.resident is not resident:
            self.release()
            self.resident = resident
            resident.enter()

    def release(self) -> None:
        resident, self.resident = self.resident, None
        if resident is not None:
            resident.leave()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """For the duration, release the model. After an error it is taken again, unless another one was taken, or it
        is being closed."""
        before = self.resident
        self.release()
        try:
            yield
        except BaseException:
            if self.resident is None and before is not None and not before.is_closing:
                self.take(before)
            raise


class RoomChoice(NamedTuple):
    """What is done to make room. ``leave``: models that are unloaded, after the requests that run on them.
    ``wait_until_s``: when to look again, where that is sooner than any change; None: only after a change."""

    leave: tuple[Resident[Any], ...] = ()
    wait_until_s: float | None = None


def choose_leaving(
    residents: Iterable[Resident[Any]], short_bytes: int, now_s: float, *, is_urgent: bool = False
) -> RoomChoice | None:
    """Return which models make room of ``short_bytes``: idle ones, the least recently used first. Where all that may
    leave are busy, the least recently loaded one takes no more requests, and leaves when those that run are over.

    A model that came a moment ago stays (``Resident.held_until_s``), unless it ``is_urgent``, as an operator's wish is.
    None: those that are not pinned are too small together.
    """
    movable = [each for each in residents if not each.is_pinned]
    if sum(each.memory.serving_bytes for each in movable) < short_bytes:
        return None
    ready = [each for each in movable if is_urgent or each.held_until_s <= now_s]
    idle = sorted((each for each in ready if not each.users), key=lambda each: each.used_s)
    chosen, found_bytes = [], 0
    for each in (*idle, *sorted((each for each in ready if each.users), key=lambda each: each.loaded_s)):
        if found_bytes >= short_bytes:
            break
        chosen.append(each)
        found_bytes += each.memory.serving_bytes
    if found_bytes < short_bytes:
        return RoomChoice(wait_until_s=min((each.held_until_s for each in movable if each not in ready), default=None))
    # A large one may make a smaller one, chosen before, unnecessary.
    for each in tuple(chosen):
        if found_bytes - each.memory.serving_bytes >= short_bytes:
            chosen.remove(each)
            found_bytes -= each.memory.serving_bytes
    return RoomChoice(leave=tuple(chosen))
