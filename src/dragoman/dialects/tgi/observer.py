"""What happens on this server, in TGI's metrics and in its line of the log: whoever asked, in whatever dialect."""

from __future__ import annotations

import logging
import re
from time import perf_counter

from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason
from dragoman.core.observer import ObservedGeneration, ObservedRequest, ObservedStep, Observer, RequestEnd
from dragoman.dialects.tgi.errors import failure_label, visible
from dragoman.dialects.tgi.metrics import BATCH_BOUNDS, Series, steps_to
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.dialects.wire import Instruments

log = logging.getLogger("dragoman.tgi")

MAX_LOGGED = 512
_QUOTED = re.compile(r'".*"', re.DOTALL)
"""What an error quotes is somebody's text."""

COUNTED = frozenset(
    {
        "/",
        "/generate",
        "/generate_stream",
        "/invocations",
        "/v1/chat/completions",
        "/v1/completions",
        "/chat_tokenize",
        "/vertex",
    }
)
"""Of this dialect's operations, those that are requests; of others', those that generate."""

SUCCESSES = frozenset({FinishReason.LENGTH, FinishReason.EOS, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING})
ACCEPTED_BOUNDS = tuple(float(k) for k in range(17))


class TgiObserver(Observer):
    """Fills the series."""

    def __init__(self, settings: TgiSettings, instruments: Instruments) -> None:
        self.series = Series()
        self._settings = settings
        self._instruments = instruments
        self._limits: tuple[int, int] | None = None
        self._arrivals: dict[ObservedRequest, float] = {}
        self._validated: dict[ObservedGeneration, float] = {}
        self._max_tokens = 0
        self._new = 0
        self._methods: dict[str, _Inferences] = {}
        instruments.write(self.text)
        self._warn_of_limits()

    def text(self) -> str:
        """The series in the text format of Prometheus."""
        state = self._instruments.state()
        gauges = {
            "tgi_queue_size": state.get("requests_waiting", 0),
            "tgi_batch_current_size": state.get("sequences_running", 0),
            "tgi_batch_current_max_tokens": self._max_tokens,
            "tgi_batch_max_total_tokens": state.get("kv_tokens", 0),
        }
        return self.series.text(gauges)

    def arrived(self, request: ObservedRequest) -> None:
        if request.dialect == "tgi" and request.operation in COUNTED:
            self._count(request)

    def submitted(self, generation: ObservedGeneration) -> None:
        if generation.request.dialect != "tgi":
            self._count(generation.request)
        arrival = self._arrivals.get(generation.request)
        self._validated[generation] = generation.validation_s if arrival is None else perf_counter() - arrival
        self._max_tokens += _most(generation)

    def prompted(self, generation: ObservedGeneration) -> None:
        self._new += generation.sequences

    def finished(self, generation: ObservedGeneration) -> None:
        validation_s = self._validated.pop(generation, None)
        if validation_s is None:
            return
        self._max_tokens -= _most(generation)
        if len(generation.finishes) < generation.sequences or not SUCCESSES.issuperset(generation.finishes):
            return
        if self._limits is None:
            card = self._instruments.models()[0]
            self._limits = self._settings.limits(card.context_tokens, card.encoder_context_tokens)
        max_input, max_total = self._limits
        tokens = generation.tokens / generation.sequences
        per_token_s = generation.inference_s / max(1.0, tokens)
        observe = self.series.observe
        observe("tgi_request_validation_duration", validation_s)
        observe("tgi_request_queue_duration", generation.queue_s)
        observe("tgi_request_inference_duration", generation.inference_s)
        observe("tgi_request_mean_time_per_token_duration", per_token_s)
        observe("tgi_request_input_length", generation.prompt_tokens, steps_to(max_input))
        observe("tgi_request_generated_tokens", tokens, steps_to(max_total))
        observe("tgi_request_max_new_tokens", generation.max_tokens, steps_to(max_total))
        _log_success(generation, validation_s, per_token_s)

    def ended(self, request: ObservedRequest, end: RequestEnd) -> None:
        if self._arrivals.pop(request, None) is None:
            return
        if end.error is None:
            self.series.count("tgi_request_success")
            self.series.observe("tgi_request_duration", end.seconds)
            return
        label = failure_label(end.error)
        self.series.count("tgi_request_failure", err=label)
        if label != "dropped" and request.dialect == "tgi" and isinstance(end.error, DragomanError):
            log.error("%s", _QUOTED.sub('"…"', visible(end.error))[:MAX_LOGGED])

    def step(self, step: ObservedStep) -> None:
        method = "prefill" if step.prompt_tokens else "decode"
        inferences = self._methods.get(method)
        if inferences is None:
            inferences = self._methods[method] = _Inferences(self.series, method)
        inferences.add(step)
        if step.drafted_tokens:
            self.series.observe("tgi_request_skipped_tokens", step.accepted_tokens, ACCEPTED_BOUNDS)
        if self._new:
            self.series.observe("tgi_batch_next_size", self._new, BATCH_BOUNDS)
            if step.running > self._new:
                self.series.count("tgi_batch_concat", reason="chunking")
            self._new = 0

    def _warn_of_limits(self) -> None:
        """What the operator asked for and the model cannot hold is lowered, but not in silence."""
        card = self._instruments.models()[0]
        context = card.context_tokens
        limits = self._settings.limits(context, card.encoder_context_tokens)
        asked = (self._settings.max_input_tokens, self._settings.max_total_tokens)
        for name, wanted, had in zip(("input", "total"), asked, limits, strict=True):
            if wanted is not None and wanted > had:
                log.warning("max_%s_tokens is %d, not %d: the model's context is %d", name, had, wanted, context)

    def _count(self, request: ObservedRequest) -> None:
        if request not in self._arrivals:
            self._arrivals[request] = perf_counter()
            self.series.count("tgi_request_count")


class _Inferences:
    """The steps of one method. Every one of them succeeds: where one does not, the engine's process is gone."""

    def __init__(self, series: Series, method: str) -> None:
        names = ("tgi_batch_inference_count", "tgi_batch_inference_success")
        self._counters = [series.counter(name, method=method) for name in names]
        parts = ("inference", "forward", "decode", "filter")
        self._durations = [series.histogram(f"tgi_batch_{part}_duration", method=method) for part in parts]

    def add(self, step: ObservedStep) -> None:
        for counter in self._counters:
            counter.value += 1
        seconds = (step.seconds, step.forward_s, max(0.0, step.seconds - step.forward_s), step.dispatch_s)
        for histogram, part_s in zip(self._durations, seconds, strict=True):
            histogram.observe(part_s)


def _most(generation: ObservedGeneration) -> int:
    """The tokens that it may come to hold."""
    return generation.prompt_tokens + generation.sequences * generation.max_tokens


def _log_success(generation: ObservedGeneration, validation_s: float, per_token_s: float) -> None:
    total_s = validation_s + generation.queue_s + generation.inference_s
    fields = {
        "total_time": _shown(total_s),
        "validation_time": _shown(validation_s),
        "queue_time": _shown(generation.queue_s),
        "inference_time": _shown(generation.inference_s),
        "time_per_token": _shown(per_token_s),
        "seed": str(generation.seeds[0]) if generation.asked.sampling.temperature > 0 else "None",
    }
    line = " ".join(f'{name}="{value}"' for name, value in fields.items())
    log.info("Success %s", line, extra={"title": "Success", "fields": fields})


def _shown(seconds: float) -> str:
    """As Rust shows a duration."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s" if seconds >= 1 else f"{seconds * 1e3:.6f}ms"
