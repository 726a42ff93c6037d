"""What the client keeps of every unfinished request, so that the death of the engine process loses nothing.

**Whose fault was it?** The process says which requests are in a step before it runs it. When it dies, each of them is
blamed for the death, and everything unfinished is replayed. A request that then gets past the point where it was, by
one more token of each of its sequences, is cleared of all blame. One that is blamed again instead is a *suspect*.
Suspects are replayed first, one at a time and with nothing beside them, those last that have died so before: the
computation of a request does not depend on its company, so one that kills the process kills it again, alone. One that
is cleared pauses until all suspects are tried; then everything goes on together.

A request is failed after three deaths without a token between them, of which two met it alone: nobody else can have
caused those. So the culprit alone pays, whatever it was computed with. Requests that are merely there when the process
is killed from outside live on; twice in a row it would have to meet the same one alone, before its next token.
"""

from __future__ import annotations

import hashlib
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

SUSPECT_DEATHS = 2
MOST_DEATHS = 3
MOST_DEATHS_ALONE = 2
CULPRIT_S = 600.0
"""How long a request like one that was failed is not run."""
MOST_CULPRITS = 1024


class InFlightRequest:
    """A request and what has been delivered of it."""

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
        self._behind: set[int] = set()
        """Sequences that have delivered nothing since the death their request is blamed for."""

    @property
    def is_over(self) -> bool:
        return all(self.finished)

    @property
    def open_sequences(self) -> list[int]:
        return [index for index, finished in enumerate(self.finished) if not finished]

    @property
    def num_sequences(self) -> int:
        """How many the engine has to take."""
        return self.finished.count(False) if self.request.beams is None else self.request.num_sequences

    def left_to_do(self) -> tuple[bool, int]:
        """Sort key of a replay: those that have begun by what they may still generate, then the others as they came."""
        done = max(map(len, self.generated), default=0) or len(self.beam_steps)
        return not done, self.request.max_tokens - done if done else 0

    def follow(self, step: BeamStep) -> None:
        """Note how far a beam search has come. Its tokens are delivered when it is over, all together."""
        if step.index == len(self.beam_steps):
            self.beam_steps.append(step)
            self._behind.clear()
            self.deaths = self.deaths_alone = 0

    def accept(self, event: EngineEvent) -> bool:
        """Note an event. False: it has been delivered before, or belongs to a sequence that is over.

        ValueError: the event leaves a gap, which no working engine does.
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
        self._behind.discard(event.sequence)
        if not self._behind:
            self.deaths = self.deaths_alone = 0
        return True

    def blame(self, alone: bool) -> None:
        """The process died computing this request, among others or ``alone``."""
        self.deaths += 1
        self.deaths_alone += alone
        self._behind = set(self.open_sequences)

    def as_replay(self) -> EngineRequest:
        """The request that goes on behind what has been delivered."""
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
        """What the engine has computed for it, as ``fair_queue`` counts; 0 before the first event."""
        if not self.prompt_seen:
            return 0.0
        before = sum(map(len, self.request.generated))
        drawn = max(sum(map(len, self.generated)) - before, len(self.beam_steps) * self.num_sequences)
        return PROMPT_COST * self.request.prompt_tokens + TOKEN_COST * drawn

    def failures(self, message: str) -> list[EngineEvent]:
        """The events that end every open sequence with an error."""
        return [FinishEvent(self.request_id, index, FinishReason.ERROR, message) for index in self.open_sequences]


class CrashIsolation:
    """Which requests may be in the engine: all, or one suspect alone."""

    def __init__(self) -> None:
        self._suspects: deque[InFlightRequest] = deque()
        self.alone: InFlightRequest | None = None

    def blame(self, requests: list[InFlightRequest]) -> list[InFlightRequest]:
        """The process died with these in its step. Returns those that have died too often."""
        for request in requests:
            request.blame(alone=len(requests) == 1)
        return [r for r in requests if r.deaths >= MOST_DEATHS and r.deaths_alone >= MOST_DEATHS_ALONE]

    def begin(self, unfinished: list[InFlightRequest]) -> list[InFlightRequest]:
        """A new process is ready: which requests to replay into it now."""
        suspects = [request for request in unfinished if request.deaths >= SUSPECT_DEATHS]
        self._suspects = deque(sorted(suspects, key=lambda request: request.deaths_alone))
        return self.next(unfinished)

    def next(self, unfinished: list[InFlightRequest]) -> list[InFlightRequest]:
        """The suspect that was alone is cleared or over: which requests to send now."""
        while self._suspects:
            suspect = self._suspects.popleft()
            if not suspect.is_over:
                self.alone = suspect
                return [suspect]
        self.alone = None
        return unfinished

    def is_cleared(self, request: InFlightRequest) -> bool:
        """Whether the suspect that is alone has got past the point of its deaths, or is over."""
        return request is self.alone and (request.deaths == 0 or request.is_over)


class Culprits:
    """What the requests looked like that were failed for killing the process. Sent again, they would kill it again."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def add(self, request: EngineRequest, now: float) -> None:
        """Remember a request for some minutes. The oldest are forgotten when there are too many."""
        digest = _digest(request)
        self._until.pop(digest, None)
        self._until[digest] = now + CULPRIT_S
        while len(self._until) > MOST_CULPRITS:
            self._until.popitem(last=False)

    def knows(self, request: EngineRequest, now: float) -> bool:
        """Return whether one like it is remembered. Costs nothing while none is."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        return bool(self._until) and _digest(request) in self._until


def _digest(request: EngineRequest) -> bytes:
    """Return a digest of what is computed: not whose it is, nor which random numbers are drawn."""
    what = msgspec.structs.replace(
        request,
        request_id="",
        seeds=(len(request.seeds),),
        priority=0,
        tenant="",
        weight=1.0,
        max_running=None,
        cache_salt="",
        service=0.0,
        progress=False,
    )
    return hashlib.blake2b(msgspec.msgpack.encode(what), digest_size=16).digest()
