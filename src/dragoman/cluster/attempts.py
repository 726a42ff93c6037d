"""What one request has met with on replicas so far, and what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from dragoman.cluster.answer import Frames
from dragoman.cluster.running import Changed, RunningRequest
from dragoman.cluster.upstream import NotAsked, ReplicaLost, ReplicaRefused
from dragoman.core.errors import EngineUnavailable, GenerationFailed

AGAIN_S = 0.2
"""Seconds after which a request that was accepted asks again where there is no room to continue it."""
MOST_LOSSES = 6
"""Replicas that a request may lose without a token in between: it may be what ends them."""


class ReplicaDeclined(Exception):
    """A replica takes no new requests now; ``answer`` is what it said."""

    def __init__(self, answer: Frames) -> None:
        super().__init__()
        self.answer = answer


class NotOnReplica(Exception):
    """A replica has not what the request names; ``answer`` is what it said."""

    def __init__(self, answer: Frames) -> None:
        super().__init__()
        self.answer = answer


class Attempts:
    """The attempts to have one request answered. ``wait_s`` and ``continue_s`` are those of the ingress' settings."""

    def __init__(self, running: RunningRequest, *, wait_s: float, continue_s: float) -> None:
        self._running = running
        self._wait_s, self._continue_s = wait_s, continue_s
        self._clock = asyncio.get_running_loop().time
        self.lost_at = 0.0
        """When the client's answer stopped, on the clock of the event loop; 0: it did not."""
        self._losses, self._reason = 0, ""
        self._entries = 0
        """What the journal held when the newest attempt began."""
        self._avoid: set[str] = set()
        """Replicas that declined or were lost; ``_declined``: what the newest said, unless one was lost since."""
        self._declined: Frames | None = None
        self._without: set[str] = set()
        """Replicas that have not what the request names; ``_absent``: what the first of them said."""
        self._absent: Frames | None = None
        self._different: dict[str, str] = {}
        """Replicas whose answer is another one than the client has the beginning of, each with the reason."""

    def begin(self) -> float:
        """Begin another attempt. Returns for how many seconds it may wait for a replica."""
        self._entries = self._running.entries
        if not self.lost_at:
            return self._wait_s
        return max(0.0, self._continue_s - (self._clock() - self.lost_at))

    def unfit(self, ready: Collection[str]) -> frozenset[str]:
        """Return the replicas that are asked again only where there is no other one of those that are ready."""
        lacking = self._without | self._different.keys()
        unfit = lacking | self._avoid
        return frozenset(lacking if unfit.issuperset(ready) else unfit)

    def answer_of(self, name: str) -> Frames | None:
        """Return what a replica is known to say, which is then the answer: all others have been asked."""
        if self._absent is not None and name in self._without:
            return self._absent
        return self._declined if name in self._avoid else None

    def not_there(self, name: str, error: NotOnReplica) -> None:
        """A replica has not what the request names."""
        self._running.forget_attempt()
        self._without.add(name)
        self._absent = self._absent or error.answer

    def differs(self, name: str, error: Changed) -> None:
        """A replica gives another answer. Those before it may be of its version, and those after it not."""
        self._running.forget_attempt()
        self._different[name] = str(error)

    def check_answers(self, name: str) -> None:
        """Raise GenerationFailed where a replica is known to give another answer, as all do then."""
        reason = self._different.get(name)
        if reason is not None:
            why = f"no other one can continue it: {reason}." if reason else "another one answers differently."
            raise GenerationFailed(f"The replica of this request was lost, and {why}")

    async def declined(self, name: str, error: ReplicaDeclined) -> None:
        """A replica has no room. A request that was accepted before waits for some. Raises EngineUnavailable."""
        self._avoid.add(name)
        if not self.lost_at and not self._running.entries:
            self._declined = error.answer
            return
        await self._wait("The replica of this request was lost, and no other one has had room for it.")

    async def not_asked(self, error: NotAsked) -> None:
        """The ingress had no room. A request that was accepted before waits for some. Raises EngineUnavailable."""
        if not self.lost_at and not self._running.entries:
            raise EngineUnavailable(str(error)) from None
        await self._wait(f"The replica of this request was lost. {error}")

    async def _wait(self, message: str) -> None:
        """Wait for the next attempt. Raises EngineUnavailable with this message where the time for it is over."""
        self.lost_at = self.lost_at or self._clock()
        await asyncio.sleep(AGAIN_S)
        if self._clock() - self.lost_at > self._continue_s:
            raise EngineUnavailable(message) from None

    def lost(self, name: str, error: ReplicaLost) -> None:
        """A replica broke off. Raises GenerationFailed for a request that may be what ends them."""
        has_advanced = self._running.entries > self._entries
        self._reason = str(error)
        if not self.lost_at or has_advanced:
            self.lost_at = self._clock()
        self._losses = 1 if has_advanced else self._losses + 1
        self._avoid.add(name)
        self._declined = None
        if self._losses >= MOST_LOSSES and not isinstance(error, ReplicaRefused):
            raise GenerationFailed(
                f"{self._losses} replicas ended while they computed this request, the last one because {self._reason}."
            ) from None

    def no_replica(self, error: EngineUnavailable) -> EngineUnavailable:
        """Return the error where none took the request in time."""
        if not self._reason:
            return error
        return EngineUnavailable(f"The replica of this request was lost ({self._reason}), and there is no other one.")
