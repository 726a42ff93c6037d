"""A generation in the engine: what its events mean to the client, to statistics and to limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from dragoman.core.errors import SHUTTING_DOWN, GenerationCancelled, ShuttingDown
from dragoman.core.events import (
    EngineEvent,
    FinishEvent,
    FinishReason,
    GenerationEvent,
    ProgressEvent,
    PromptEvent,
    TextDelta,
    TokenEvent,
)
from dragoman.core.progress import ProgressReport
from dragoman.core.request import EngineRequest, GenerationRequest
from dragoman.serving.admission import Admission, Place
from dragoman.serving.deadline import Deadline
from dragoman.serving.generation_stats import GenerationStats
from dragoman.serving.model import ServedModel
from dragoman.serving.output_processor import OutputProcessor, prompt_ready
from dragoman.serving.recorder import Recording


class Cancel(Protocol):
    """Ends a request, or one of its sequences."""

    def __call__(self, sequence: int | None = None, /) -> None: ...


class TimeLimits(NamedTuple):
    """Seconds that a generation may take in all, and until its first token; None: as long as it needs."""

    whole_s: float | None
    queue_s: float | None

    @property
    def shorter_s(self) -> float | None:
        return min((limit for limit in self if limit is not None), default=None)


class RunningGeneration:
    """One request that the engine has. ``read`` turns each of its events into what the client gets.

    ``arrived``: the time of the event loop at which the limits begin. ``earlier_text``: of a generation that is
    continued. ``recording`` and ``report``: None where nothing is recorded, or nobody asked for progress.
    """

    def __init__(
        self,
        model: ServedModel,
        request: GenerationRequest,
        submitted: EngineRequest,
        output_processors: Sequence[OutputProcessor],
        *,
        adapter: str,
        earlier_text: str,
        place: Place,
        admission: Admission,
        stats: GenerationStats,
        recording: Recording | None,
        report: ProgressReport | None,
        arrived: float,
        limits: TimeLimits,
        cancel: Cancel,
    ) -> None:
        self._model = model
        self._request = request
        self._submitted = submitted
        self._output_processors = output_processors
        self._adapter = adapter
        self._earlier_text = earlier_text
        self._place = place
        self._admission = admission
        self._stats = stats
        self._recording = recording
        self._report = report
        self._limits = limits
        self._cancel = cancel
        self._deadline = Deadline(arrived, limits.whole_s, cancel)
        self._first_token = Deadline(arrived, limits.queue_s, cancel)
        self.running = len(output_processors)
        """Sequences that have not ended."""
        self.cached_tokens = 0
        """Of the prompt, as far as it is known."""

    def read(self, event: EngineEvent) -> GenerationEvent | None:
        """Return what the client gets for an event of the engine, None where it is nothing.

        Raises ShuttingDown, Overloaded, GenerationCancelled or GenerationFailed where the request ended without a
        result.
        """
        if isinstance(event, ProgressEvent):
            self._tell(event)
            return None
        if isinstance(event, PromptEvent):
            return self._prompt_computed(event)
        output_processor = self._output_processors[event.sequence]
        if output_processor.finish is not None:
            return None  # a stop string ended it here; the engine did not know yet
        if isinstance(event, TokenEvent):
            delta = self._token(event, output_processor)
        else:
            delta = self._end_of(event, output_processor)
        if delta.finish is not None:
            self._finish(event.sequence, delta.finish, output_processor)
        return delta

    def lift_limits(self) -> None:
        """Stop the clocks of both limits."""
        self._deadline.lift()
        self._first_token.lift()

    def _tell(self, event: ProgressEvent) -> None:
        if self._report is not None and event.position:
            self._report.queued(event.position)
        elif self._report is not None:
            self._report.prefill(event.done, event.total)

    def _prompt_computed(self, event: PromptEvent) -> GenerationEvent:
        if self._report is not None:
            self._report.end()
        self._place.run()
        self._first_token.lift()
        self.cached_tokens = event.cached_tokens
        self._stats.prompt(event.cached_tokens, event.queue_s)
        return prompt_ready(self._model, self._request, self._submitted, event, self._earlier_text, self._adapter)

    def _token(self, event: TokenEvent, output_processor: OutputProcessor) -> TextDelta:
        self._stats.token(event.sequence)
        if self._recording is not None:
            event = self._recording.note(event)
        delta = output_processor.push(event)
        if self._request.resumable:
            delta = msgspec.structs.replace(delta, token_ids=(event.token_id,), mirostat=event.mirostat)
        if event.score is not None:
            delta = msgspec.structs.replace(delta, score=event.score)
        return delta

    def _end_of(self, event: FinishEvent, output_processor: OutputProcessor) -> TextDelta:
        if event.message == SHUTTING_DOWN:
            raise ShuttingDown
        deadline = self._deadline
        if self._place.waits:
            self._place.check()
            if self._first_token.has_passed and not deadline.has_passed:
                raise self._admission.late(self._place, f"waited {self._limits.queue_s:g} s for its first token")
            if event.finish is FinishReason.CANCELLED and not deadline.has_passed:
                raise GenerationCancelled("The generation was cancelled.")
            raise deadline.failure(event.message or "The generation was cancelled.")
        return output_processor.stop(deadline.reason(event.finish), deadline.words(event.message))

    def _finish(self, sequence: int, finish: FinishReason, output_processor: OutputProcessor) -> None:
        self._stats.finish(finish)
        if self._recording is not None:
            self._recording.finish(sequence, finish)
        self._admission.rate.finish(output_processor.num_tokens)
        self.running -= 1
        if self.running and finish is FinishReason.STOP_STRING:
            self._cancel(sequence)
