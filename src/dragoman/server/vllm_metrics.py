"""The server's measurements under the metric names that routers of clusters read: those of vLLM."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from dragoman.core.events import FinishReason
from dragoman.core.measurements import FIRST_TOKEN_S, TOTAL_S
from dragoman.dialects.api import MetricsContext
from dragoman.dialects.prometheus_text import Labels, braces, counter, head, histogram, number

FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
TOTAL_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
"""vLLM's bounds: rules and dashboards that name a bucket find it."""

GAUGES = {
    "vllm:num_requests_running": ("Requests that generate.", "requests_running"),
    "vllm:num_requests_waiting": ("Requests that wait for their first token.", "requests_waiting"),
    "vllm:kv_cache_usage_perc": ("Share of the blocks that sequences own, from 0 to 1.", "kv_cache_usage"),
    "vllm:gpu_cache_usage_perc": ("The same, under its older name.", "kv_cache_usage"),
}

REASONS = {
    FinishReason.EOS: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.TIMEOUT: "abort",
    FinishReason.ERROR: "error",
}


class VllmMetrics:
    """The page of metrics. It covers every generation of the server, in any dialect.

    Every series has the labels ``model_name``, the first served model, and ``engine``, which is always ``0``.
    """

    def __init__(self, context: MetricsContext) -> None:
        self._state, self._models = context.state, context.models
        self._generations = generations = context.measurements.generations
        generations.between_tokens_s.add_bounds(BETWEEN_BOUNDS)
        self._histograms = {
            "vllm:time_to_first_token_seconds": (
                "From arrival to the first token.",
                generations.histogram(FIRST_TOKEN_S, FIRST_TOKEN_BOUNDS),
                FIRST_TOKEN_BOUNDS,
            ),
            "vllm:inter_token_latency_seconds": (
                "Between two tokens of one sequence.",
                generations.between_tokens_s,
                BETWEEN_BOUNDS,
            ),
            "vllm:time_per_output_token_seconds": (
                "The same, under its older name.",
                generations.between_tokens_s,
                BETWEEN_BOUNDS,
            ),
            "vllm:e2e_request_latency_seconds": (
                "From arrival to the last token.",
                generations.histogram(TOTAL_S, TOTAL_BOUNDS),
                TOTAL_BOUNDS,
            ),
        }

    def text(self) -> str:
        """Return all metrics in the text format of Prometheus."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        cards = self._models()
        labels: Labels = (("model_name", escaped(cards[0].name if cards else "")), ("engine", "0"))
        state = self._state()
        for name, (words, source) in GAUGES.items():
            yield from _gauge(name, words, labels, state.get(source, 0.0))
        blocks = state.get("kv_blocks", 0.0)
        if blocks:
            config = (
                ("block_size", number(state["kv_tokens"] / blocks)),
                ("num_gpu_blocks", number(blocks)),
                ("enable_prefix_caching", "True"),
                ("engine", "0"),
            )
            yield from _gauge("vllm:cache_config_info", "The key-value cache, in the labels.", config, 1.0)
        if any(card.base is not None for card in cards):
            words = "Adapters of the requests, in the labels; the value is the time."
            yield from _gauge("vllm:lora_requests_info", words, self._adapters(state), time.time())
        seen = self._generations
        for name, words, value in (
            ("vllm:prompt_tokens_total", "Prompt tokens read.", seen.prompt_tokens),
            ("vllm:generation_tokens_total", "Tokens generated.", seen.generated_tokens),
            ("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.", seen.prompt_tokens),
            ("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache.", seen.cached_tokens),
            ("vllm:gpu_prefix_cache_queries_total", "The same, under its older name.", seen.prompt_tokens),
            ("vllm:gpu_prefix_cache_hits_total", "The same, under its older name.", seen.cached_tokens),
            ("vllm:num_preemptions_total", "Sequences preempted for want of blocks.", state.get("preemptions", 0.0)),
        ):
            yield from counter(name, words, {labels: value})
        finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        for reason, count in seen.finishes.items():
            finished[REASONS[reason]] += count
        words = "Generated sequences by the reason of their end."
        series = {(*labels, ("finished_reason", reason)): float(count) for reason, count in finished.items()}
        yield from counter("vllm:request_success_total", words, series)
        for name, (words, values, bounds) in self._histograms.items():
            yield from histogram(name, words, bounds, {labels: values})

    def _adapters(self, state: Mapping[str, float]) -> Labels:
        """Return the labels of ``vllm:lora_requests_info``: which adapters have requests that run, and that wait."""
        adapters = {card.name for card in self._models() if card.base is not None}
        running: set[str] = set()
        waiting: set[str] = set()
        for generation in self._generations.running:
            if generation.model in adapters:
                (running if generation.queue_s else waiting).add(generation.model)
        return (
            ("max_lora", number(state.get("adapter_slots", 0.0))),
            ("waiting_lora_adapters", escaped(",".join(sorted(waiting)))),
            ("running_lora_adapters", escaped(",".join(sorted(running)))),
        )


def escaped(value: str) -> str:
    """Return a label's value as the text format wants it: the names of models are the operator's."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _gauge(name: str, words: str, labels: Labels, value: float) -> Iterator[str]:
    yield from head(name, words, "gauge")
    yield f"{name}{braces(labels)} {number(value)}"
