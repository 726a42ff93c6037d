"""What the client keeps of every unfinished request, so that the death of the engine process loses nothing.

**Whose fault was it?** The process says which requests are in a step before it runs it. When it dies, each of them is
blamed for one death, and everything unfinished is replayed. A request blamed twice is a *suspect*. Suspects are
replayed first, one at a time and with nothing beside them. The computation of a request does not depend on its company,
so a request that kills the process kills it again, alone: that is its third death, and it is failed. One that gets past
the point where it was, by one more token of each of its sequences, is cleared of all blame and waits for the others.
Then all go on together. A request that is merely there when the process is killed from outside therefore survives any
number of deaths; only one that is killed alone, before its next token, after two other deaths, is failed.
"""

from __future__ import annotations

from collections import deque

import msgspec

from dragoman.core.events import EngineEvent, FinishEvent, FinishReason, PromptEvent, TokenEvent
from dragoman.core.request import EngineRequest

SUSPECT_DEATHS = 2
MOST_DEATHS = 3


class Unfinished:
    """A request and what has been delivered of it."""

    def __init__(self, request: EngineRequest) -> None:
        count = len(request.seeds)
        self.request = request
        self.generated = [list(ids) for ids in request.generated] or [[] for _ in range(count)]
        self.finished = list(request.finished) or [False] * count
        self.prompt_seen = False
        self.deaths = 0
        self.replayed: set[int] = set()
        """Sequences that have not delivered anything since they were replayed as a suspect's."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_over(self) -> bool:
        return all(self.finished)

    @property
    def open_sequences(self) -> list[int]:
        return [index for index, finished in enumerate(self.finished) if not finished]

    def accept(self, event: EngineEvent) -> bool:
        """Note an event. False: it has been delivered before, or belongs to a sequence that is over.

        ValueError: the event leaves a gap, which no working engine does.
        """
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
        self.finished[event.sequence] = event.finish is not None
        self.replayed.discard(event.sequence)
        return True

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
        )

    def failures(self, message: str) -> list[EngineEvent]:
        """The events that end every open sequence with an error."""
        return [FinishEvent(self.request_id, index, FinishReason.ERROR, message) for index in self.open_sequences]


class Quarantine:
    """Which requests may be in the engine: all, or one suspect alone."""

    def __init__(self) -> None:
        self._suspects: deque[Unfinished] = deque()
        self.alone: Unfinished | None = None

    def blame(self, requests: list[Unfinished]) -> list[Unfinished]:
        """The process died with these in its step. Returns those that have died too often."""
        for request in requests:
            request.deaths += 1
        return [request for request in requests if request.deaths >= MOST_DEATHS]

    def begin(self, unfinished: list[Unfinished]) -> list[Unfinished]:
        """A new process is ready: which requests to replay into it now."""
        self._suspects = deque(request for request in unfinished if request.deaths >= SUSPECT_DEATHS)
        return self.next(unfinished)

    def next(self, unfinished: list[Unfinished]) -> list[Unfinished]:
        """The suspect that was alone is cleared or over: which requests to send now."""
        while self._suspects:
            suspect = self._suspects.popleft()
            if not suspect.is_over:
                self.alone = suspect
                suspect.replayed = set(suspect.open_sequences)
                return [suspect]
        self.alone = None
        return unfinished

    def is_cleared(self, request: Unfinished) -> bool:
        """Whether the suspect that is alone has got past the point of its deaths, or is over."""
        return request is self.alone and not (request.replayed & set(request.open_sequences))
