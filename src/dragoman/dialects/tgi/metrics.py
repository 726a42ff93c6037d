"""Observability of this dialect: measurements under TGI's metric names, and TGI's log lines."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

from dragoman.core.errors import Cancelled, DragomanError
from dragoman.core.measurements import (
    COMPLETED_INFERENCE_S,
    COMPLETED_MAX_TOKENS,
    COMPLETED_PREPARATION_S,
    COMPLETED_PROMPT_TOKENS,
    COMPLETED_QUEUE_S,
    COMPLETED_SECONDS_PER_TOKEN,
    COMPLETED_TOKENS,
    Outcome,
)
from dragoman.core.observer import ObservedGeneration, ObservedRequest, Observer, RequestEnd
from dragoman.dialects.api import MetricsContext
from dragoman.dialects.prometheus_text import Labels, counter, gauge, histogram
from dragoman.dialects.tgi.errors import failure_label, logged
from dragoman.dialects.tgi.settings import TgiSettings

DURATION_BOUNDS = tuple(float(f"{0.0001 * 1.5**k:.12g}") for k in range(1, 36))
BATCH_BOUNDS = tuple(float(k) for k in range(1, 1025))
ACCEPTED_BOUNDS = tuple(float(k) for k in range(17))

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
"""The operations of this dialect that count as requests; in other dialects, all that generate do."""

HELP = {
    "tgi_request_count": "Total number of requests",
    "tgi_request_success": "Number of successful requests",
    "tgi_request_failure": "Number of failed requests",
    "tgi_request_duration": "Total time spent processing the request",
    "tgi_request_validation_duration": "Time spent validating the request",
    "tgi_request_queue_duration": "Time spent in the queue per request",
    "tgi_request_inference_duration": "Request inference duration",
    "tgi_request_mean_time_per_token_duration": "Mean time per token per request",
    "tgi_request_generated_tokens": "Generated tokens per request",
    "tgi_request_input_length": "Input token length per request",
    "tgi_request_max_new_tokens": "Maximum new tokens per request",
    "tgi_request_skipped_tokens": "Speculated tokens per request",
    "tgi_queue_size": "Current queue size",
    "tgi_batch_current_size": "Current batch size",
    "tgi_batch_current_max_tokens": "Maximum tokens for the current batch",
    "tgi_batch_max_total_tokens": "Maximum tokens that all batches can hold",
    "tgi_batch_next_size": "Batch size of the next batch",
    "tgi_batch_inference_count": "Inference calls per method",
    "tgi_batch_inference_success": "Number of successful inference calls per method",
    "tgi_batch_inference_duration": "Batch inference duration",
    "tgi_batch_forward_duration": "Batch forward duration per method",
    "tgi_batch_decode_duration": "Batch decode duration per method",
    "tgi_batch_filter_duration": "Time spent filtering batches and sending generated tokens per method",
    "tgi_batch_concat": "Number of times a batch was concatenated",
}

GENERATION_DURATIONS = {
    "tgi_request_validation_duration": COMPLETED_PREPARATION_S,
    "tgi_request_queue_duration": COMPLETED_QUEUE_S,
    "tgi_request_inference_duration": COMPLETED_INFERENCE_S,
    "tgi_request_mean_time_per_token_duration": COMPLETED_SECONDS_PER_TOKEN,
}

STEP_DURATIONS = {
    "tgi_batch_inference_duration": "whole",
    "tgi_batch_forward_duration": "forward",
    "tgi_batch_decode_duration": "choosing",
    "tgi_batch_filter_duration": "dispatch",
}


class TgiMetrics:
    """The page of metrics. It covers all requests of the server, in any dialect; a series appears with its first value.

    ``tgi_batch_inference_failure`` never appears: where a step fails, the engine's process is gone.
    """

    def __init__(self, settings: TgiSettings, context: MetricsContext) -> None:
        self._state = context.state
        self._generations = generations = context.measurements.generations
        card = context.models()[0]
        max_input, max_total = settings.limits(card.context_tokens, card.encoder_context_tokens)
        shown = {name: (quantity, DURATION_BOUNDS) for name, quantity in GENERATION_DURATIONS.items()} | {
            "tgi_request_input_length": (COMPLETED_PROMPT_TOKENS, steps_to(max_input)),
            "tgi_request_generated_tokens": (COMPLETED_TOKENS, steps_to(max_total)),
            "tgi_request_max_new_tokens": (COMPLETED_MAX_TOKENS, steps_to(max_total)),
        }
        self._histograms = {
            name: (generations.histogram(quantity, bounds), bounds) for name, (quantity, bounds) in shown.items()
        }
        self._requests = context.measurements.requests()
        self._requests.add_bounds(DURATION_BOUNDS)
        self._steps = context.measurements.steps()
        self._steps.add_bounds(durations=DURATION_BOUNDS, accepted=ACCEPTED_BOUNDS, joined=BATCH_BOUNDS)

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, counts in self._counts().items():
            yield from counter(name, HELP[name], {labels: count for labels, count in counts.items() if count})
        for name, value in self._gauges().items():
            yield from gauge(name, HELP[name], value)
        for name, (values, bounds) in self._histograms.items():
            yield from histogram(name, HELP[name], bounds, {(): values} if values.count else {})
        seconds = self._requests.merged(lambda outcome: _is_request(outcome) and outcome.error is None)
        name = "tgi_request_duration"
        yield from histogram(name, HELP[name], DURATION_BOUNDS, {(): seconds} if seconds.count else {})
        for name, part in STEP_DURATIONS.items():
            series = {_method(kind): getattr(parts, part) for kind, parts in self._steps.durations.items()}
            yield from histogram(name, HELP[name], DURATION_BOUNDS, series)
        for name, values, bounds in (
            ("tgi_request_skipped_tokens", self._steps.accepted, ACCEPTED_BOUNDS),
            ("tgi_batch_next_size", self._steps.joined, BATCH_BOUNDS),
        ):
            yield from histogram(name, HELP[name], bounds, {(): values} if values.count else {})

    def _counts(self) -> dict[str, dict[Labels, int]]:
        requests, steps = self._requests, self._steps
        count = sum(many for (dialect, path), many in requests.arrivals.items() if dialect == "tgi" and path in COUNTED)
        count += sum(many for (dialect, _), many in requests.generating.items() if dialect != "tgi")
        failures: Counter[Labels] = Counter()
        for outcome, seconds in requests.ended_s.items():
            if outcome.error is not None and _is_request(outcome):
                failures[(("err", failure_label(outcome.error)),)] += seconds.count
        inferences = {_method(kind): parts.whole.count for kind, parts in steps.durations.items()}
        return {
            "tgi_request_count": {(): count},
            "tgi_request_success": {
                (): requests.count_ended(lambda outcome: _is_request(outcome) and outcome.error is None)
            },
            "tgi_request_failure": failures,
            "tgi_batch_inference_count": inferences,
            "tgi_batch_inference_success": inferences,
            "tgi_batch_concat": {(("reason", "chunking"),): steps.joined_running},
        }

    def _gauges(self) -> dict[str, float]:
        state = self._state()
        return {
            "tgi_queue_size": state.get("requests_waiting", 0),
            "tgi_batch_current_size": state.get("sequences_running", 0),
            "tgi_batch_current_max_tokens": sum(each.most_tokens for each in self._generations.running),
            "tgi_batch_max_total_tokens": state.get("kv_tokens", 0),
        }


def steps_to(most: int) -> tuple[float, ...]:
    """Return the bounds of 100 equal steps up to ``most``."""
    return tuple(most * (k + 1) / 100 for k in range(100))


def _is_request(outcome: Outcome) -> bool:
    return outcome.operation in COUNTED if outcome.dialect == "tgi" else outcome.has_generated


def _method(kind: str) -> Labels:
    return (("method", kind),)


log = logging.getLogger("dragoman.tgi")


class TgiLog(Observer):
    """Writes the lines. Requests in other dialects have only the server's own line."""

    def finished(self, generation: ObservedGeneration) -> None:
        if generation.request.dialect == "tgi" and generation.is_complete:
            fields = _fields(generation)
            line = " ".join(f'{name}="{value}"' for name, value in fields.items())
            log.info("Success %s", line, extra={"title": "Success", "fields": fields})

    def ended(self, request: ObservedRequest, end: RequestEnd) -> None:
        if request.dialect != "tgi" or request.operation not in COUNTED:
            return
        if isinstance(end.error, DragomanError) and not isinstance(end.error, Cancelled):
            log.error("%s", logged(end.error))


def _fields(generation: ObservedGeneration) -> dict[str, str]:
    total_s = generation.preparation_s + generation.queue_s + generation.inference_s
    return {
        "total_time": _shown(total_s),
        "validation_time": _shown(generation.preparation_s),
        "queue_time": _shown(generation.queue_s),
        "inference_time": _shown(generation.inference_s),
        "time_per_token": _shown(generation.seconds_per_token),
        "seed": str(generation.seeds[0]) if generation.requested.sampling.temperature > 0 else "None",
    }


def _shown(seconds: float) -> str:
    """Return a duration as Rust formats it."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s" if seconds >= 1 else f"{seconds * 1e3:.6f}ms"
