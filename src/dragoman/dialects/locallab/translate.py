"""Wire to core, as pure functions: what a checked body asks for."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dragoman.core.request import GenerationRequest, Prompt
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.dialects.locallab.fields import LENGTH_NAMES
from dragoman.dialects.locallab.settings import LocalLabSettings

StreamFormat = Literal["sse", "json", "raw", "dual"]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What every generating operation is asked, the prompt aside. ``system`` None: the request does not say."""

    model: str | None
    sampling: SamplingParams
    ending: EndingParams
    timeout_s: float
    system: str | None


def asked(values: dict[str, Any], settings: LocalLabSettings) -> Asked:
    """The values of a request, and where it has none, the operator's."""
    model = first(values, "model_id", "modelId")
    greedy = first(values, "do_sample", "doSample") is False
    temperature = first(values, "temperature", default=settings.locallab_temperature)
    return Asked(
        model=model or None,
        sampling=SamplingParams(
            temperature=0.0 if greedy else temperature,
            top_p=first(values, "top_p", "topP", default=settings.locallab_top_p),
            top_k=first(values, "top_k", "topK", default=settings.locallab_top_k),
            repetition_penalty=first(
                values, "repetition_penalty", "repetitionPenalty", default=settings.locallab_repetition_penalty
            ),
        ),
        ending=EndingParams(
            max_tokens=first(values, *LENGTH_NAMES, default=settings.locallab_max_length), clamp_to_context=True
        ),
        timeout_s=first(values, "max_time", "maxTime") or settings.locallab_max_time_s,
        system=first(values, "system_prompt", "system_instructions", "systemPrompt"),
    )


def generation_request(ask: Asked, prompt: Prompt, request_id: str) -> GenerationRequest:
    """One generation."""
    return GenerationRequest(
        request_id=request_id,
        prompt=prompt,
        model=ask.model,
        sampling=ask.sampling,
        ending=ask.ending,
        timeout_s=ask.timeout_s,
    )


def stream_format(values: dict[str, Any], accept: str, default: StreamFormat) -> StreamFormat:
    """How a stream is written: as the body says, else as ``Accept`` does, else as it is on this path."""
    given: StreamFormat | None = values.get("stream_format")
    if given is not None:
        return given
    return "raw" if accept.split(";")[0].strip().lower() == "text/plain" else default


def first(values: dict[str, Any], *names: str, default: Any = None) -> Any:
    """The first of these fields that has a value."""
    return next((values[name] for name in names if values.get(name) is not None), default)
