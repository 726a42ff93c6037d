"""Observations of requests, generations and engine steps, and the observers that count, measure or trace them.

The serving code reports each observation once, to all observers, and does not depend on any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from time import perf_counter

import msgspec

from dragoman.core.caller import NO_CALLER, Caller, is_deferrable
from dragoman.core.events import FinishReason
from dragoman.core.request import GenerationRequest

NOTHING: Mapping[str, str] = {}

FAILED_FINISHES = frozenset({FinishReason.CANCELLED, FinishReason.TIMEOUT, FinishReason.ERROR})


class ObservedRequest:
    """One request as it arrived: the same object in every call about it.

    Attributes:
        dialect: dialect of its operation; empty for a request that did not come over HTTP.
        method: HTTP method; MESSAGE for a message of a WebSocket, each of which is a request.
        operation: path of the operation, without values from the client.
        headers: the request's, by names in lower case.
        caller: its sender.
        arrived: time of arrival, on the clock of ``perf_counter``.
        answer_headers: headers that observers add to its answer.
        generations: those it has made so far; one for each prompt.
        gathers: False: ``generations`` stays empty, for internal requests that never end.
    """

    __slots__ = (
        "answer_headers",
        "arrived",
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
        self.arrived = perf_counter()
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

    ``status`` is the answer's, 499 where the client left before there was one. ``error``: the exception that was
    raised, or sent within a stream; ``Cancelled`` when the client left. ``seconds``: since it arrived.
    """

    status: int
    seconds: float
    error: Exception | None = None


def do_nothing() -> None:
    """What ``ObservedGeneration.cancel`` is before its submission and after its end."""


class ObservedGeneration:
    """The sequences generated from one prompt. Values that are not known yet are 0, or empty.

    Attributes:
        requested: the request in the core's form, without images. It contains user data.
        model: name of the model, or of the adapter, that generates them.
        sequences: number generated, including those that ``best_of`` drops. seeds: of the sequences.
        max_tokens: maximum tokens of each, after fitting to the context.
        tokens: generated so far, of all sequences.
        validation_s: from arrival until submission to the engine. queue_s: from there to its first step.
        preparation_s: as validation_s, from the arrival of its HTTP request, whose body is read first.
        inference_s: from there to its end. first_token_s: from arrival to the first token.
        cancel: ends it with the tokens that it has; does nothing before its submission and after its end.
        finishes: finish reasons of its sequences; fewer than ``sequences`` when the whole generation was cancelled.
        is_deferrable: it waits while anything else is computed, so its times say nothing of the server.
    """

    __slots__ = (
        "cached_tokens",
        "cancel",
        "finishes",
        "first_token_s",
        "inference_s",
        "is_deferrable",
        "max_tokens",
        "model",
        "preparation_s",
        "prompt_tokens",
        "queue_s",
        "request",
        "requested",
        "seeds",
        "sequences",
        "tokens",
        "validation_s",
    )

    def __init__(self, request: ObservedRequest, requested: GenerationRequest, sequences: int) -> None:
        self.request = request
        self.requested = requested
        self.sequences = sequences
        self.model = ""
        self.is_deferrable = is_deferrable.get()
        self.prompt_tokens = self.cached_tokens = self.max_tokens = self.tokens = 0
        self.preparation_s = self.validation_s = self.queue_s = self.inference_s = self.first_token_s = 0.0
        self.seeds: tuple[int, ...] = ()
        self.cancel: Callable[[], None] = do_nothing
        self.finishes: list[FinishReason] = []

    @property
    def is_complete(self) -> bool:
        """Whether every sequence ended by its end token, a stop or its length."""
        return len(self.finishes) == self.sequences and FAILED_FINISHES.isdisjoint(self.finishes)

    @property
    def total_s(self) -> float:
        """Seconds from arrival to the end."""
        return self.validation_s + self.queue_s + self.inference_s

    @property
    def tokens_per_sequence(self) -> float:
        """Tokens generated so far, averaged over its sequences."""
        return self.tokens / self.sequences

    @property
    def seconds_per_token(self) -> float:
        """Inference seconds for each token of a sequence."""
        return self.inference_s / max(1.0, self.tokens_per_sequence)

    @property
    def most_tokens(self) -> int:
        """Tokens it has when every sequence reaches its maximum length."""
        return self.prompt_tokens + self.sequences * self.max_tokens


class ObservedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the engine, reported at its end.

    Attributes:
        seconds: of the whole step in the engine's process. forward_s: of the model's computation in it.
        dispatch_s: duration of delivering its tokens to their answers, in the server's process.
        running, waiting: sequences in the batch, and in the queue.
        prompt_tokens, generated_tokens: computed and drawn in it. drafted_tokens, accepted_tokens: draft tokens, and
            those of them that were drawn.
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
    """Base of observers, which override the methods they need. Called on the event loop: no call may wait, or raise."""

    def arrived(self, request: ObservedRequest) -> None:
        """Handle an arrival: dialect and operation are known, and the caller is authorized; the body is not checked
        yet."""

    def submitted(self, generation: ObservedGeneration) -> None:
        """Handle a generation submitted to the engine after all checks: ``prompt_tokens``, ``validation_s``
        are known."""

    def prompted(self, generation: ObservedGeneration) -> None:
        """Handle a computed prompt: ``cached_tokens``, ``queue_s`` are known."""

    def first_token(self, generation: ObservedGeneration) -> None:
        """Handle the first token: ``first_token_s`` is known."""

    def next_token(self, generation: ObservedGeneration, seconds: float) -> None:
        """Handle one more token of a sequence, so many seconds after the previous one. Called very often."""

    def finished(self, generation: ObservedGeneration) -> None:
        """Handle the end of a generation, for whatever reason: everything is known."""

    def ended(self, request: ObservedRequest, end: RequestEnd) -> None:
        """Handle the end of a request: the answer is complete, or the client left."""

    def step(self, step: ObservedStep) -> None:
        """Handle a step of the engine."""


class Observers:
    """All observers of a server.

    For each kind of observation there is a list of the same name with the methods to call: those that an observer
    overrides. Frequent observations cost nothing where no observer overrides them.
    """

    def __init__(self, *observers: Observer) -> None:
        self.arrived: list[Callable[[ObservedRequest], None]] = []
        self.submitted: list[Callable[[ObservedGeneration], None]] = []
        self.prompted: list[Callable[[ObservedGeneration], None]] = []
        self.first_token: list[Callable[[ObservedGeneration], None]] = []
        self.next_token: list[Callable[[ObservedGeneration, float], None]] = []
        self.finished: list[Callable[[ObservedGeneration], None]] = []
        self.ended: list[Callable[[ObservedRequest, RequestEnd], None]] = []
        self.step: list[Callable[[ObservedStep], None]] = []
        self._all: list[Observer] = []
        self.add(*observers)

    def add(self, *observers: Observer) -> None:
        """Add observers."""
        for observer in observers:
            self._all.append(observer)
            for name, methods in vars(self).items():
                if name != "_all" and getattr(type(observer), name) is not getattr(Observer, name):
                    methods.append(getattr(observer, name))

    def add_once(self, kind: type[Observer]) -> None:
        """Add an observer of this kind, unless there is one."""
        if not any(type(each) is kind for each in self):
            self.add(kind())

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._all)


current_request: ContextVar[ObservedRequest] = ContextVar("current_request")
"""The request that the running task works for."""
