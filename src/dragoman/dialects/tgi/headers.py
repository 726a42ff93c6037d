"""The headers in which TGI says what an answer took."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.events import Timings
from dragoman.dialects.tgi.generation import Generation


def stream_headers(compute_type: str, characters: int) -> dict[str, str]:
    """Of a stream: all that is known before it begins."""
    return {
        "x-compute-type": compute_type,
        "x-compute-characters": str(characters),
        "x-accel-buffering": "no",
        "cache-control": "no-cache",
    }


def whole_headers(compute_type: str, run: Generation, elapsed_s: float) -> dict[str, str]:
    """Of an answer to one prompt."""
    headers = batch_headers(compute_type, [run])
    kind = headers.pop("x-compute-type")
    return {"x-compute-type": kind, "x-compute-time": f"{elapsed_s:.9f}", **headers}


def batch_headers(compute_type: str, runs: Sequence[Generation]) -> dict[str, str]:
    """Of an answer to several prompts: everything added up."""
    timings = [run.timings or Timings() for run in runs]
    generated = sum(run.generated_tokens for run in runs)
    inference_s = sum(each.inference_s for each in timings)
    return {
        "x-compute-type": compute_type,
        "x-compute-characters": str(sum(len(run.text) for run in runs)),
        "x-total-time": _milliseconds(sum(each.total_s for each in timings)),
        "x-validation-time": _milliseconds(sum(each.validation_s for each in timings)),
        "x-queue-time": _milliseconds(sum(each.queue_s for each in timings)),
        "x-inference-time": _milliseconds(inference_s),
        "x-time-per-token": _milliseconds(inference_s / max(1, generated)),
        "x-prompt-tokens": str(sum(run.input_tokens for run in runs)),
        "x-generated-tokens": str(generated),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))
