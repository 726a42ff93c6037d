"""What happens to requests, told to whoever counts, measures or traces it.

One stream of observations fills every dialect's own metrics, and spans: nobody who serves knows their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar

import msgspec

from dragoman.core.caller import NO_CALLER, Caller
from dragoman.core.events import FinishReason
from dragoman.core.request import GenerationRequest

NOTHING: Mapping[str, str] = {}


class ObservedRequest:
    """One request as it arrived: the same object in every call about it.

    Attributes:
        dialect: whose operation it asks for; empty, where nobody asked over HTTP.
        method: as HTTP has it; MESSAGE for one of those on a WebSocket, each of which is a request.
        operation: the path of what it asks for, without what a client put into the path.
        headers: the request's, by names in lower case.
        caller: who sent it.
        answer_headers: what observers add to the headers of its answer.
        generations: those that it made so far; one for each prompt.
        gathers: False: ``generations`` stays empty, for nobody asked and it never ends.
    """

    __slots__ = (
        "answer_headers",
        "caller",
        "dialect",
        "gathers",
        "generations",
        "headers",
        "method",
        "operation",
        "request_id",
    )

    def __init__(
        self,
        dialect: str = "",
        operation: str = "",
        method: str = "",
        request_id: str = "",
        headers: Mapping[str, str] = NOTHING,
        *,
        caller: Caller = NO_CALLER,
        gathers: bool = True,
    ) -> None:
        self.gathers = gathers
        self.caller = caller
        self.dialect = dialect
        self.operation = operation
        self.method = method
        self.request_id = request_id
        self.headers = headers
        self.answer_headers: dict[str, str] = {}
        self.generations: list[ObservedGeneration] = []


class RequestEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended.

    ``status`` is the answer's, 499 where the client left before there was one. ``error``: what was raised, or answered
    inside of a stream; ``Cancelled`` when the client left. ``seconds``: since it arrived.
    """

    status: int
    seconds: float
    error: Exception | None = None


class ObservedGeneration:
    """The sequences made of one prompt. What is not known yet is 0, or empty.

    Attributes:
        asked: the request in the core's words. It holds somebody's text.
        model: name of the model, or of the adapter, that makes them.
        sequences: how many are made of it, those included that ``best_of`` will drop. seeds: theirs.
        max_tokens: most tokens of each, as it was fitted to the context.
        tokens: generated so far, of all sequences.
        validation_s: from arrival until it was handed to the engine. queue_s: from there to its first step.
        inference_s: from there to its end. first_token_s: from arrival to the first token.
        finishes: how its sequences ended; fewer than ``sequences`` when somebody ended it all.
    """

    __slots__ = (
        "asked",
        "cached_tokens",
        "finishes",
        "first_token_s",
        "inference_s",
        "max_tokens",
        "model",
        "prompt_tokens",
        "queue_s",
        "request",
        "seeds",
        "sequences",
        "tokens",
        "validation_s",
    )

    def __init__(self, request: ObservedRequest, asked: GenerationRequest, sequences: int) -> None:
        self.request = request
        self.asked = asked
        self.sequences = sequences
        self.model = ""
        self.prompt_tokens = self.cached_tokens = self.max_tokens = self.tokens = 0
        self.validation_s = self.queue_s = self.inference_s = self.first_token_s = 0.0
        self.seeds: tuple[int, ...] = ()
        self.finishes: list[FinishReason] = []


class ObservedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the engine, told when it is over.

    Attributes:
        seconds: of the whole step in the engine's process. forward_s: those of them that the model's computation took.
        dispatch_s: how long handing its tokens to their answers took, in the server's process.
        running, waiting: sequences in the batch, and behind it.
        prompt_tokens, generated_tokens: computed and drawn in it. drafted_tokens, accepted_tokens: guessed by lookup,
            and guessed rightly.
    """

    seconds: float
    forward_s: float
    dispatch_s: float
    running: int
    waiting: int
    prompt_tokens: int
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int


class Observer:
    """Overrides what it wants to hear of. Called on the event loop: no call may wait, or raise."""

    def arrived(self, request: ObservedRequest) -> None:
        """The dialect and operation are known, and the caller has been let in; the body is not checked yet."""

    def submitted(self, generation: ObservedGeneration) -> None:
        """It passed every check and was handed to the engine: ``prompt_tokens``, ``validation_s`` are known."""

    def prompted(self, generation: ObservedGeneration) -> None:
        """Its prompt is computed: ``cached_tokens``, ``queue_s`` are known."""

    def first_token(self, generation: ObservedGeneration) -> None:
        """``first_token_s`` is known."""

    def next_token(self, generation: ObservedGeneration, seconds: float) -> None:
        """One more token of a sequence, so many seconds after the one before. Called very often."""

    def finished(self, generation: ObservedGeneration) -> None:
        """It is over, however it ended: all is known."""

    def ended(self, request: ObservedRequest, end: RequestEnd) -> None:
        """The answer is complete, or nobody is there for it."""

    def step(self, step: ObservedStep) -> None:
        """The engine took a step."""


def listeners(observers: Iterable[Observer], method: str) -> list[Callable[..., None]]:
    """That method of each observer that overrides it: what is told very often is told to nobody else."""
    silent = getattr(Observer, method)
    return [getattr(each, method) for each in observers if getattr(type(each), method) is not silent]


current_request: ContextVar[ObservedRequest] = ContextVar("current_request")
"""The request that the running task works for."""
