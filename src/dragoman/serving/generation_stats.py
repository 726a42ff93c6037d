"""Timing and counts of one generation, reported to the observers."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from dragoman.core.events import FinishReason
from dragoman.core.observer import ObservedGeneration, ObservedRequest, Observers, current_request, do_nothing
from dragoman.core.request import EngineRequest, GenerationRequest

NOBODY = ObservedRequest(gathers=False)
"""The request of a generation that was not asked for over HTTP."""


class GenerationStats:
    """Timing of one generation, from the arrival of its request. The event loop's own clock is too coarse: a
    millisecond, in uvloop."""

    def __init__(self, observers: Observers, requested: GenerationRequest, sequences: int) -> None:
        self._observers = observers
        self._next_token = observers.next_token
        self._seen = ObservedGeneration(current_request.get(NOBODY), requested, sequences)
        self._last = [0.0] * sequences
        self._submitted = 0.0
        self.arrived = perf_counter()

    def submit(self, submitted: EngineRequest, model: str, cancel: Callable[[], None], began: float) -> None:
        """Note that the engine has the request. ``model``: its name, or its adapter's. ``cancel`` ends it. ``began``:
        when it was handed over, by ``perf_counter``: from there on it may wait in the engine's queue."""
        seen = self._seen
        seen.model, seen.cancel = model, cancel
        self._submitted = began
        seen.prompt_tokens, seen.max_tokens, seen.seeds = submitted.prompt_tokens, submitted.max_tokens, submitted.seeds
        seen.preparation_s = seen.validation_s = self._submitted - self.arrived
        if seen.request.gathers:
            seen.preparation_s = self._submitted - seen.request.arrived
            seen.request.generations.append(seen)
        for tell in self._observers.submitted:
            tell(seen)

    def prompt(self, cached_tokens: int, queue_s: float) -> None:
        """Note that the prompt is computed."""
        self._seen.cached_tokens, self._seen.queue_s = cached_tokens, queue_s
        for tell in self._observers.prompted:
            tell(self._seen)

    def token(self, sequence: int) -> None:
        """Note one more token of a sequence."""
        now, seen, last = perf_counter(), self._seen, self._last
        seen.tokens += 1
        before, last[sequence] = last[sequence], now
        if before:
            for next_token in self._next_token:
                next_token(seen, now - before)
        elif not seen.first_token_s:
            seen.first_token_s = now - self.arrived
            for tell in self._observers.first_token:
                tell(seen)

    def finish(self, reason: FinishReason) -> None:
        """Note that one of the sequences ended."""
        self._seen.finishes.append(reason)

    def leave(self) -> ObservedGeneration:
        """Note that the generation is over, however it ended."""
        seen = self._seen
        seen.inference_s = max(0.0, perf_counter() - self._submitted - seen.queue_s)
        for tell in self._observers.finished:
            tell(seen)
        # Tasks that a request started know of it for as long as they run: they would keep the engine's client, and the
        # model that it serves, in memory.
        seen.cancel = do_nothing
        return seen
