"""Crash recovery: the state of every unfinished request, so that a crash of the engine process loses nothing.

**Which request caused a crash?** The process announces the requests of a step before it runs it. When it dies, each
of them is blamed, and everything unfinished is replayed. A request that then advances by one more token of each of
its sequences is cleared. One that is blamed again instead is a *suspect*. Suspects are replayed first, one at a time
and alone, those last that have crashed alone before: the computation of a request does not depend on the rest of the
batch, so one that kills the process kills it again, alone. One that is cleared pauses until all suspects are tested;
then all continue.

A request fails after three crashes without a token in between, in two of which it was alone: no other request can
have caused those. So only the culprit fails, whatever it was batched with. A process killed from outside does not
fail requests: it would have to be killed twice in a row while the same request runs alone, before its next token.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict, deque

import msgspec

from dragoman.core.events import (
    BeamStep,
    EngineEvent,
    FinishEvent,
    FinishReason,
    ProgressEvent,
    PromptEvent,
    TokenEvent,
)
from dragoman.core.request import EngineRequest
from dragoman.core.service import PROMPT_COST, TOKEN_COST
from dragoman.engine_client.event_stream import EventStream

log = logging.getLogger(__name__)

SUSPECT_DEATHS = 2
MOST_DEATHS = 3
MOST_DEATHS_ALONE = 2
CULPRIT_S = 600.0
"""Time for which a request like a failed culprit is refused."""
MOST_CULPRITS = 1024


class InFlightRequest:
    """A request and its delivered events."""

    def __init__(self, request: EngineRequest) -> None:
        count = len(request.seeds)
        self.request = request
        self.request_id = request.request_id
        self.generated = [list(ids) for ids in request.generated] or [[] for _ in range(count)]
        self.finished = list(request.finished) or [False] * count
        self.mirostat = list(request.mirostat) or [None] * count
        self.beam_steps = list(request.beam_steps)
        self.prompt_seen = False
        self.deaths = 0
        self.deaths_alone = 0
        self._without_progress: set[int] = set()
        """Sequences without a delivered token since the crash that their request is blamed for."""

    @property
    def is_over(self) -> bool:
        return all(self.finished)

    @property
    def open_sequences(self) -> list[int]:
        return [index for index, finished in enumerate(self.finished) if not finished]

    @property
    def num_sequences(self) -> int:
        """Number of sequences that the engine computes for it."""
        return self.finished.count(False) if self.request.beams is None else self.request.num_sequences

    def replay_order(self) -> tuple[bool, int]:
        """Sort key of a replay: started requests by the tokens they may still generate, then the others in order of
        arrival."""
        done = max(map(len, self.generated), default=0) or len(self.beam_steps)
        return not done, self.request.max_tokens - done if done else 0

    def record_beam_step(self, step: BeamStep) -> None:
        """Record a step of a beam search. Its tokens are delivered all together, at its end."""
        if step.index == len(self.beam_steps):
            self.beam_steps.append(step)
            self._without_progress.clear()
            self.deaths = self.deaths_alone = 0

    def accept(self, event: EngineEvent) -> bool:
        """Record an event. Returns False if it was delivered before, or its sequence is finished.

        Raises ValueError if the event leaves a gap, which no working engine does.
        """
        if isinstance(event, ProgressEvent):
            return not self.prompt_seen
        if isinstance(event, PromptEvent):
            first, self.prompt_seen = not self.prompt_seen, True
            return first
        if self.finished[event.sequence]:
            return False
        if isinstance(event, TokenEvent):
            generated = self.generated[event.sequence]
            if event.index != len(generated):
                if event.index > len(generated):
                    raise ValueError(f"token {event.index} of {event.request_id} came after {len(generated)}")
                return False
            generated.append(event.token_id)
            self.mirostat[event.sequence] = event.mirostat
        self.finished[event.sequence] = event.finish is not None
        self._without_progress.discard(event.sequence)
        if not self._without_progress:
            self.deaths = self.deaths_alone = 0
        return True

    def blame(self, alone: bool) -> None:
        """Record a crash while this request was computed, with others or ``alone``."""
        self.deaths += 1
        self.deaths_alone += alone
        self._without_progress = set(self.open_sequences)

    def as_replay(self) -> EngineRequest:
        """Return the request that continues after the delivered events."""
        logprobs = self.request.logprobs
        if logprobs is not None and self.prompt_seen:
            logprobs = msgspec.structs.replace(logprobs, prompt=False)
        return msgspec.structs.replace(
            self.request,
            logprobs=logprobs,
            generated=tuple(map(tuple, self.generated)),
            finished=tuple(self.finished),
            mirostat=tuple(self.mirostat) if self.request.sampling.mirostat_mode else (),
            beam_steps=tuple(self.beam_steps),
            service=self.service,
        )

    @property
    def service(self) -> float:
        """Service the engine has computed for it, as ``fair_queue`` counts it; 0 before the first event."""
        if not self.prompt_seen:
            return 0.0
        before = sum(map(len, self.request.generated))
        drawn = max(sum(map(len, self.generated)) - before, len(self.beam_steps) * self.num_sequences)
        images = sum(image.tiles.service for image in self.request.images)
        return PROMPT_COST * (self.request.prompt_tokens + images) + TOKEN_COST * drawn

    def failure_events(self, message: str) -> list[EngineEvent]:
        """Return the events that end every open sequence with an error."""
        return [FinishEvent(self.request_id, index, FinishReason.ERROR, message) for index in self.open_sequences]


class CrashIsolation:
    """Selects the requests that may be in the engine: all, or one suspect alone."""

    def __init__(self) -> None:
        self._suspects: deque[InFlightRequest] = deque()
        self.alone: InFlightRequest | None = None

    def blame(self, requests: list[InFlightRequest]) -> list[InFlightRequest]:
        """Record a crash with these requests in its step. Returns those that have crashed too often."""
        for request in requests:
            request.blame(alone=len(requests) == 1)
        return [r for r in requests if r.deaths >= MOST_DEATHS and r.deaths_alone >= MOST_DEATHS_ALONE]

    def begin(self, unfinished: list[InFlightRequest]) -> list[InFlightRequest]:
        """Return the requests to replay into a new process now."""
        suspects = [request for request in unfinished if request.deaths >= SUSPECT_DEATHS]
        self._suspects = deque(sorted(suspects, key=lambda request: request.deaths_alone))
        return self.next(unfinished)

    def next(self, unfinished: list[InFlightRequest]) -> list[InFlightRequest]:
        """Return the requests to send after the suspect that ran alone is cleared or finished."""
        while self._suspects:
            suspect = self._suspects.popleft()
            if not suspect.is_over:
                self.alone = suspect
                return [suspect]
        self.alone = None
        return unfinished

    def is_cleared(self, request: InFlightRequest) -> bool:
        """Return whether the suspect that runs alone got past the point of its crashes, or is finished."""
        return request is self.alone and (request.deaths == 0 or request.is_over)


class Culprits:
    """Digests of the requests that failed for killing the process. Sent again, they would kill it again."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, request: EngineRequest, now: float) -> None:
        """Remember a request for some minutes. The oldest are dropped when there are too many."""
        digest = _digest(request)
        self._until.pop(digest, None)
        self._until[digest] = now + CULPRIT_S
        while len(self._until) > MOST_CULPRITS:
            self._until.popitem(last=False)

    def knows(self, request: EngineRequest, now: float) -> bool:
        """Return whether a request like it is remembered. Costs nothing while none is."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        return bool(self._until) and _digest(request) in self._until


def _digest(request: EngineRequest) -> bytes:
    """Return a digest of the computation: without the caller and the random numbers."""
    what = msgspec.structs.replace(
        request.without_pixels,
        request_id="",
        seeds=(len(request.seeds),),
        priority=0,
        tenant="",
        weight=1.0,
        max_running=None,
        cache_salt="",
        service=0.0,
        progress=False,
        seeded=False,
        resumable=False,
    )
    return hashlib.blake2b(msgspec.msgpack.encode(what), digest_size=16).digest()


def refused(request: EngineRequest) -> EventStream:
    """Return a stream that fails at once, for a request like one that killed the process repeatedly."""
    log.warning("refused a request like one that killed the engine process")
    stream = EventStream(lambda: None)
    message = "the engine process died computing this request a short while ago"
    stream.deliver(InFlightRequest(request).failure_events(message), ended=True)
    return stream
