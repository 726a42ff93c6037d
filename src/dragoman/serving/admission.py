"""Admission control: a bounded number of requests wait for their first token, of each caller no more than its share.

Where all places are taken, the youngest waiting request of the caller with the longest queue makes room for one of a
caller with a shorter queue, and that caller's next request is refused. The Retry-After of a refusal follows from the
measured rate of service; clients that are refused together get different times.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dragoman.core.caller import NO_CALLER, Caller
from dragoman.core.errors import Overloaded, ShuttingDown
from dragoman.core.explanation import Estimate
from dragoman.core.service import PROMPT_COST, TOKEN_COST
from dragoman.engine.messages import EngineStats

LONGEST_WAIT_S = 60.0
"""The longest time that is suggested: clients of the OpenAI package accept no longer one."""
SHORTEST_WAIT_S = 0.1
UNKNOWN_WAIT_S = 2.0
"""The time that is suggested before anything was measured."""
JITTER = 0.2
MOST_RETURNS = 1024


class CallerLoad(NamedTuple):
    """The load of one caller: requests that wait for their first token, and those that generate."""

    name: str
    waiting: int
    running: int


class Place:
    """The place of one request: waiting until its prompt is computed, then running, until it leaves."""

    __slots__ = ("_admission", "_cancel", "_is_here", "queue", "refusal", "request_id", "sequences", "service", "waits")

    def __init__(self, admission: Admission, queue: _Queue, request_id: str, sequences: int, service: float) -> None:
        self._admission = admission
        self._cancel: Callable[[], None] | None = None
        self._is_here = True
        self.queue = queue
        self.request_id = request_id
        self.sequences = sequences
        self.service = service
        self.refusal: Overloaded | None = None
        """The error that the request fails with, where it has lost its place."""
        self.waits = True

    def check(self) -> None:
        """Raise Overloaded where the request has lost its place."""
        if self.refusal is not None:
            raise self.refusal

    def submit(self, prompt_tokens: int, max_tokens: int, cancel: Callable[[], None]) -> None:
        """Set the request's size, now known, and ``cancel``, which ends it from now on. Raises Overloaded where its
        place is lost."""
        self.check()
        self.service = self._admission.rate.service_of(prompt_tokens, max_tokens, self.sequences)
        self._cancel = cancel

    def run(self) -> None:
        """Mark the request as running: its first token is there, or will be at once."""
        if self.waits and self._is_here:
            self.waits = False
            self.queue.waiting.pop(self, None)
            self.queue.running += 1
            self._admission.waiting -= 1
            self._admission.running += 1

    def leave(self) -> None:
        """Free the place. A second call does nothing."""
        if not self._is_here:
            return
        self._is_here = False
        if self.waits:
            self.queue.waiting.pop(self, None)
            self._admission.waiting -= 1
        else:
            self.queue.running -= 1
            self._admission.running -= 1
        self._admission.forget(self)

    def give_up(self, refusal: Overloaded) -> None:
        """Lose the place to another request."""
        self.refusal = refusal
        self.leave()
        if self._cancel is not None:
            self._cancel()


class _Queue:
    """The requests of one caller. ``waiting``: its waiting requests, in order."""

    __slots__ = ("caller", "running", "waiting")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.waiting: dict[Place, None] = {}
        self.running = 0

    @property
    def weight(self) -> float:
        return max(self.caller.limits.weight, 1e-3)

    @property
    def length(self) -> float:
        """Return the number of waiting requests, relative to the caller's weight."""
        return len(self.waiting) / self.weight

    @property
    def service(self) -> float:
        """Return the service that the waiting requests are likely to take."""
        return sum(place.service for place in self.waiting)


class Admission:
    """Counts requests, waiting and running, by caller. ``close`` stops admission.

    Attributes:
        max_waiting: requests that wait for their first token, of all callers together.
        rate: how fast they are served.
        deferrable: admission of deferrable work, which takes no place of others; its own sender bounds it.
    """

    def __init__(self, max_waiting: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_waiting = max_waiting
        self.rate = ServiceRate()
        self.waiting = 0
        self.running = 0
        self._clock = clock
        self._deferrable: Admission | None = None
        self._closed: str | None = None
        self._queues: dict[str, _Queue] = {}
        self._places: dict[str, Place] = {}
        self._returns: dict[str, float] = {}
        """By caller, the time at which the last refused request may be sent again."""

    @property
    def is_open(self) -> bool:
        return self._closed is None

    @property
    def deferrable(self) -> Admission:
        if self._deferrable is None:
            self._deferrable = Admission(sys.maxsize, clock=self._clock)
            self._deferrable.rate, self._deferrable._closed = self.rate, self._closed
        return self._deferrable

    def close(self, reason: str) -> None:
        self._closed = reason
        if self._deferrable is not None:
            self._deferrable.close(reason)

    @contextmanager
    def enter(
        self, caller: Caller = NO_CALLER, *, request_id: str = "", sequences: int = 1, limit_s: float | None = None
    ) -> Iterator[Place]:
        """Take a place for the duration. ``limit_s``: the time within which it has to have its first token.

        Raises Overloaded or ShuttingDown.
        """
        if self._closed is not None:
            raise ShuttingDown(self._closed)
        queue = self._queues.get(caller.share_key)
        if queue is None:
            queue = _Queue(caller)
        queue.caller = caller
        self._check(queue, sequences, limit_s)
        service = self.rate.service_of(0, 2**31, sequences)
        place = Place(self, queue, request_id, sequences, service)
        self._queues[caller.share_key] = queue
        queue.waiting[place] = None
        self.waiting += 1
        if request_id:
            self._places[request_id] = place
        try:
            yield place
        finally:
            place.leave()

    def forget(self, place: Place) -> None:
        """Drop the place of a request that has left."""
        queue = place.queue
        if self._places.get(place.request_id) is place:
            del self._places[place.request_id]
        if not queue.waiting and not queue.running:
            self._queues.pop(queue.caller.share_key, None)

    def _check(self, queue: _Queue, sequences: int, limit_s: float | None) -> None:
        """Raise Overloaded where there is no place for one more of this caller, or none in time."""
        most = queue.caller.limits.max_waiting
        waiting = sum(place.sequences for place in queue.waiting)
        if most is not None and waiting + (sequences if waiting else 1) > most:
            raise Overloaded(
                f"{waiting} of your sequences are waiting already, and {most} may. Try again later.",
                retry_after_s=self._return_s(queue),
            )
        if limit_s is not None and (wait_s := self._wait_s(queue)) is not None and wait_s > limit_s:
            message = f"The first token would come in about {wait_s:.0f} s, and this request may wait {limit_s:g} s."
            raise Overloaded(f"{message} Try again later.", retry_after_s=self._spread(wait_s))
        if self.waiting >= self.max_waiting:
            longest = max(self._queues.values(), key=lambda each: each.length, default=queue)
            if not longest.waiting or longest is queue or (len(queue.waiting) + 1) / queue.weight >= longest.length:
                message = f"{self.waiting} requests are waiting already. Try again later."
                raise Overloaded(message, retry_after_s=self._return_s(queue))
            message = "Other callers' requests took the places that were left. Try again later."
            next(reversed(longest.waiting)).give_up(Overloaded(message, retry_after_s=self._return_s(longest)))

    def late(self, place: Place, what: str) -> Overloaded:
        """Return the error of a request that has waited for too long."""
        return Overloaded(f"The request {what}. Try again later.", retry_after_s=self._return_s(place.queue))

    def turned_away(self, place: Place, refusal: Overloaded) -> Overloaded:
        """Return the engine's refusal of an admitted request, with the Retry-After that is measured here."""
        return Overloaded(refusal.message, retry_after_s=self._return_s(place.queue))

    # Estimates -------------------------------------------------------------------------------------------------------

    def _wait_s(self, queue: _Queue) -> float | None:
        """Return how long the next request of a caller waits: until its own queue is served, and as much of the
        others'.

        None: nothing is measured yet.
        """
        rate = self.rate.tokens_per_s
        if rate is None:
            return None
        own = queue.service
        each = own / queue.weight
        others = (other for other in self._queues.values() if other is not queue)
        return (own + sum(min(other.service, each * other.weight) for other in others)) / rate

    def _return_s(self, queue: _Queue) -> float:
        """Return the Retry-After in seconds. Each refused request gets another time: that in which one more place
        gets free."""
        rate = self.rate.tokens_per_s
        if rate is None or not queue.waiting:
            return self._spread(UNKNOWN_WAIT_S)
        weights = sum(other.weight for other in self._queues.values() if other.waiting)
        every_s = queue.service / len(queue.waiting) * weights / queue.weight / rate
        now, key = self._clock(), queue.caller.share_key
        if len(self._returns) > MOST_RETURNS:
            self._returns = {name: at for name, at in self._returns.items() if at > now}
        at = max(now, self._returns.get(key, now)) + every_s
        self._returns[key] = min(at, now + LONGEST_WAIT_S)
        return self._spread(at - now)

    def estimate(
        self, caller: Caller, prompt_tokens: int, cached_tokens: int, sequences: int, each: int, images: int = 0
    ) -> Estimate:
        """Return the likely cost of a request of the caller, in time and service, if it arrived now.

        ``each``: maximum tokens of each of its sequences. ``images``: prompt tokens that take as long as its images.
        """
        mean = self.rate.request_tokens
        expected = sequences * min(each, UNKNOWN_TOKENS if mean is None else round(mean))
        prompt = PROMPT_COST * (prompt_tokens - cached_tokens + images)
        service, rate = prompt + TOKEN_COST * expected, self.rate.tokens_per_s
        queue = self._queues.get(caller.share_key) or _Queue(caller)
        return Estimate(
            service=service,
            most_service=prompt + TOKEN_COST * sequences * each,
            expected_tokens=expected,
            most_tokens=sequences * each,
            quota_tokens=prompt_tokens + sequences * each,
            tokens_per_s=rate,
            wait_s=self._wait_s(queue),
            compute_s=None if rate is None else service / rate,
        )

    @staticmethod
    def _spread(wait_s: float) -> float:
        """Return about so many seconds, within bounds, with random jitter."""
        wait_s = min(max(wait_s, SHORTEST_WAIT_S), LONGEST_WAIT_S / (1 + JITTER))
        return wait_s * random.uniform(1 - JITTER, 1 + JITTER)

    def position(self, request_id: str) -> int | None:
        """Return the place of a waiting request in the order in which callers take turns, from 1; None: it does not
        wait."""
        place = self._places.get(request_id)
        if place is None or not place.waits:
            return None
        ahead = 0
        for each in place.queue.waiting:
            if each is place:
                break
            ahead += 1
        turns = (ahead + 1) / place.queue.weight
        others = (other for other in self._queues.values() if other is not place.queue)
        return ahead + 1 + sum(min(len(other.waiting), int(turns * other.weight)) for other in others)

    def loads(self) -> dict[str, CallerLoad]:
        """Return the load of each caller, by its share key."""
        return {
            key: CallerLoad(queue.caller.name, len(queue.waiting), queue.running) for key, queue in self._queues.items()
        }


MEMORY_S = 10.0
"""Busy seconds after which a measurement counts half."""
MEMORY_REQUESTS = 20
"""The number of requests, about, that the mean is taken over."""
UNKNOWN_TOKENS = 64
"""The generated tokens that are assumed of a request, up to its own limit, before any has finished."""


class ServiceRate:
    """Tokens of service (``core.service``) that the engine computes in a second while it is busy, and that requests
    take.

    ``request_tokens``: how many tokens a sequence generates on average.
    """

    def __init__(self) -> None:
        self._tokens = 0.0
        self._busy_s = 0.0
        self.request_tokens: float | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Return the measured rate; None before anything was measured."""
        return self._tokens / self._busy_s if self._busy_s > 0 and self._tokens > 0 else None

    def observe(self, before: EngineStats, after: EngineStats) -> None:
        """Add one more step of the engine, by its counts before and after it."""
        seconds = after.busy_s - before.busy_s
        if seconds <= 0:
            return
        computed = after.prompt_tokens - before.prompt_tokens - (after.cached_tokens - before.cached_tokens)
        computed += after.image_service - before.image_service
        tokens = PROMPT_COST * computed + TOKEN_COST * (after.generated_tokens - before.generated_tokens)
        kept = 1.0 / (1.0 + seconds / MEMORY_S)
        self._tokens = kept * self._tokens + tokens
        self._busy_s = kept * self._busy_s + seconds

    def finish(self, tokens: int) -> None:
        """Add a finished sequence that has generated so many tokens."""
        mean = self.request_tokens
        self.request_tokens = float(tokens) if mean is None else mean + (tokens - mean) / MEMORY_REQUESTS

    def service_of(self, prompt_tokens: int, max_tokens: int, sequences: int) -> float:
        """Return the service that a request is likely to take."""
        mean = UNKNOWN_TOKENS if self.request_tokens is None else self.request_tokens
        return PROMPT_COST * prompt_tokens + TOKEN_COST * sequences * min(max_tokens, mean)
