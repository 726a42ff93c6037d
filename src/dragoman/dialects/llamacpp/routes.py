"""The operations of the llama.cpp dialect that generate: read, translate, generate, render."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from dragoman.core.errors import BadRequest, ContextOverflow, DragomanError
from dragoman.core.events import GenerationDone, PromptReady, TextDelta
from dragoman.core.request import FillPrompt, GenerationRequest, Prompt
from dragoman.core.sampling import SamplingParams
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import KeepAlive, RequestContext
from dragoman.dialects.field import Reading
from dragoman.dialects.llamacpp.errors import NotServed
from dragoman.dialects.llamacpp.fields import COMPLETION, INFILL
from dragoman.dialects.llamacpp.limits import LimitedServing
from dragoman.dialects.llamacpp.render import Answer, Shown, fault
from dragoman.dialects.llamacpp.translate import (
    Chosen,
    adapter_of,
    biases_of,
    prompts_from,
    prompts_of,
    requests_of,
    sampling_of,
)
from dragoman.dialects.multi_prompt import Generating, stream_all
from dragoman.dialects.openai_stream import SSE, encode, sse
from dragoman.dialects.truncation import fewest_left_out, ranges

COMMENT = b":\n\n"
NO_FILL = (
    "Infill is not supported by this model: prefix token is missing. suffix token is missing. middle token is missing."
)


async def completion(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /completion`` and ``/completions``."""
    reading = await context.read(COMPLETION, any_content_type=True)
    card = serving.model(reading.core.get("model"))
    several = prompts_of(reading.core.get("prompt"))
    prompts = await context.unless_gone(prompts_from(serving, several, card.name))
    await _answer(serving, context, reading, card, prompts)


async def infill(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /infill``."""
    reading = await context.read(INFILL, any_content_type=True)
    values, core = reading.values, reading.core
    card = serving.model(core.get("model"))
    if not card.has_fill_tokens:
        raise NotServed(NO_FILL)
    prefix, files = values["input_prefix"] + values["prompt"], core.get("prompt.files") or ()
    prompt = FillPrompt(prefix=prefix, suffix=core.get("prompt.suffix"), files=files)

    async def fits(count: int) -> bool:
        shorter = msgspec.structs.replace(prompt, files=files[count:])
        try:
            return count == len(files) or len(await serving.tokenize(shorter, card.name)) < card.context_tokens
        except ContextOverflow:
            return False

    if dropped := await context.unless_gone(fewest_left_out(len(files), fits)):
        prompt = msgspec.structs.replace(prompt, files=files[dropped:])
        reading = msgspec.structs.replace(reading, truncated=(f"input_extra {ranges(range(dropped))}",))
    await _answer(serving, context, reading, card, [prompt])


async def _answer(
    serving: Serving, context: RequestContext, reading: Reading, card: ModelCard, prompts: Sequence[Prompt]
) -> None:
    values, core = reading.values, reading.core
    chosen = sampling_of(core, values["samplers"])
    biases = await context.unless_gone(biases_of(serving, values["logit_bias"], card.name, vocab_size=card.vocab_size))
    requests, reading = requests_of(reading, context.request_id, card, prompts, chosen, biases)
    adapter = adapter_of(values["lora"], serving.models())
    if adapter is not None:
        if card.base is not None and adapter != card.name:
            raise BadRequest(f"'model' names another adapter than 'lora': {card.name}, not {adapter}.", param="lora")
        requests = [msgspec.structs.replace(request, adapter=adapter) for request in requests]
    context.report(reading)
    shown = Shown(
        model=card.name,
        settings=settings_of(card.sampling.apply(requests[0])[0], chosen, values),
        context_tokens=card.context_tokens,
        fields=values["response_fields"] or None,
        asked=requests[0].ending.max_tokens,
        has_tokens=values["return_tokens"],
        has_timings=values["timings_per_token"],
        has_probs=requests[0].logprobs is not None,
        after_sampling=values["post_sampling_probs"],
    )
    answers = [Answer(shown, request, i) for i, request in enumerate(requests)]
    limited: Generating = serving
    if values["n_indent"] or values["t_max_predict_ms"] > 0:
        limited = LimitedServing(serving, values["n_indent"], values["t_max_predict_ms"] / 1e3)
    if values["stream"]:
        events = _events(serving, limited, context, requests, answers)
        await context.stream(events, content_type=SSE, keep_alive=_keep_alive(values["sse_ping_interval"]))
        return
    whole = await context.unless_gone(_whole(serving, limited, requests, answers))
    await context.reply(encode(whole[0] if len(whole) == 1 else whole))


def _keep_alive(interval_s: int | None) -> KeepAlive | None:
    """Return what a stream gets in silence; None: what the server has, which is also the longest silence."""
    return KeepAlive(lambda: COMMENT, interval_s) if interval_s and interval_s > 0 else None


async def _whole(
    serving: Serving, limited: Generating, requests: Sequence[GenerationRequest], answers: Sequence[Answer]
) -> list[dict[str, Any]]:
    async with aclosing(stream_all(limited, requests)) as events:
        async for i, event in events:
            match event:
                case TextDelta():
                    answers[i].push(event)
                case PromptReady():
                    answers[i].begin(event)
    for answer in answers:
        answer.prompt = await serving.detokenize(answer.prompt_ids)
    return [answer.last(streamed=False) for answer in answers]


async def _events(
    serving: Serving,
    limited: Generating,
    context: RequestContext,
    requests: Sequence[GenerationRequest],
    answers: Sequence[Answer],
) -> AsyncGenerator[bytes, None]:
    """Yield the events of all answers as they come, each one's last object at its end."""
    try:
        async with aclosing(stream_all(limited, requests)) as events:
            async for i, event in events:
                answer = answers[i]
                if not context.started:
                    yield b""
                match event:
                    case TextDelta() if (made := answer.push(event)) is not None:
                        yield sse(made)
                    case PromptReady():
                        answer.begin(event)
                    case GenerationDone():
                        answer.prompt = await serving.detokenize(answer.prompt_ids)
                        yield sse(answer.last(streamed=True))
    except DragomanError as error:
        if not context.started:
            raise
        context.fault = error
        for written in fault(error):
            yield written


def settings_of(request: GenerationRequest, chosen: Chosen, values: dict[str, Any]) -> dict[str, Any]:
    """Return ``generation_settings`` but for the seed."""
    ending = request.ending
    count = -1 if ending.max_tokens is None else ending.max_tokens
    return sampling_settings(request.sampling) | {
        "stop": list(ending.stop),
        "max_tokens": count,
        "n_predict": count,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": ending.ignore_eos,
        "stream": values["stream"],
        "logit_bias": [
            {"bias": max(bias, -1e9), "token": token} for token, bias in request.sampling.logit_bias.items()
        ],
        "n_probs": 0 if request.logprobs is None else request.logprobs.top,
        "min_keep": 0,
        "grammar": values["grammar"] or "",
        "samplers": list(chosen.names),
        "timings_per_token": values["timings_per_token"],
        "post_sampling_probs": values["post_sampling_probs"],
        "lora": list(values["lora"] or ()),
    }


def sampling_settings(params: SamplingParams) -> dict[str, Any]:
    """Return sampling parameters by llama-server's names."""
    return {
        "temperature": params.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": params.xtc_probability,
        "xtc_threshold": params.xtc_threshold,
        "typical_p": params.typical_p,
        "repeat_last_n": params.penalty_last_n,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "dry_multiplier": params.dry_multiplier,
        "dry_base": params.dry_base,
        "dry_allowed_length": params.dry_allowed_length,
        "dry_penalty_last_n": params.dry_penalty_last_n,
        "dry_sequence_breakers": list(params.dry_sequence_breakers),
        "mirostat": params.mirostat_mode,
        "mirostat_tau": params.mirostat_tau,
        "mirostat_eta": params.mirostat_eta,
    }
