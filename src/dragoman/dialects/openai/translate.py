"""Translation from wire to core, as pure functions: a checked body becomes one GenerationRequest for each prompt."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.core.errors import BadRequest
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import MAX_SEED
from dragoman.core.serving import ModelCard
from dragoman.dialects import reasoning
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.images import unused_details
from dragoman.dialects.openai.messages import template_messages
from dragoman.dialects.openai.sampler_fields import beams_of, choosing_and_ending
from dragoman.dialects.openai.structured import constraint_of
from dragoman.dialects.shared_fields import prompt_embeddings
from dragoman.dialects.tools import WITHOUT_TOOLS, ToolPlan

MAX_SEQUENCES = 2048
"""Sequences of one HTTP request: prompts times generations of each."""


def completion_requests(
    reading: Reading, request_id: str, seed: int, *, resumable: bool = False
) -> tuple[GenerationRequest, ...]:
    """Return one request for each prompt of ``POST /v1/completions``, choices prompt by prompt.

    ``seed`` is that of the body, or was drawn for it; choice k of all uses seed + k. ``resumable``: this is one
    call of a generation that may be made of several.
    """
    values, core = reading.values, reading.core
    prompts = _prompts(core)
    _check_shared(values)
    beams = beams_of(reading)
    n = core.get("n")
    best_of = (core.get("best_of") if beams is None else None) or n
    if best_of < n:
        raise BadRequest(f"'best_of' ({best_of}) must be at least 'n' ({n}).", param="best_of")
    if best_of > n and values["stream"]:
        raise BadRequest("Results cannot be streamed when 'best_of' is greater than 'n'.", param="best_of")
    if values["max_tokens"] == 0 and not values["echo"]:
        raise BadRequest("'max_tokens' 0 needs 'echo': there would be no answer.", param="max_tokens")
    if len(prompts) * max(best_of, beams.num_beams if beams else 0) > MAX_SEQUENCES:
        raise BadRequest(f"Prompts times choices must be at most {MAX_SEQUENCES}.", param="n" if n > 1 else "best_of")
    embeddings = prompt_embeddings(core)
    if embeddings is not None and len(prompts) > 1:
        raise BadRequest("'embedding_to_replace' goes with one prompt.", param="embedding_to_replace")
    constraint, constraint_param = constraint_of(core)
    sampling, ending = choosing_and_ending(core, constraint_param, resumable=resumable)
    shared = core.request(
        request_id,
        prompts[0],
        best_of=best_of if best_of > n else None,
        seeds=(seed & MAX_SEED,),
        sampling=sampling,
        beams=beams,
        ending=ending,
        constraint=constraint,
        constraint_param=constraint_param,
        embeddings=embeddings,
    )
    if len(prompts) == 1:
        return (shared,)
    return tuple(
        msgspec.structs.replace(
            shared, request_id=f"{request_id}-{j}", prompt=prompt, seeds=((seed + j * best_of) & MAX_SEED,)
        )
        for j, prompt in enumerate(prompts)
    )


def chat_request(
    reading: Reading,
    request_id: str,
    seed: int,
    card: ModelCard,
    plan: ToolPlan = WITHOUT_TOOLS,
    *,
    resumable: bool = False,
) -> GenerationRequest:
    """Return the request of ``POST /v1/chat/completions``. ``resumable``: as in ``completion_requests``."""
    values, core = reading.values, reading.core
    _check_shared(values)
    if len({values["max_tokens"], values["max_completion_tokens"]} - {None}) > 1:
        raise BadRequest("'max_tokens' and 'max_completion_tokens' differ: give one of them.", param="max_tokens")
    if values["top_logprobs"] and not values["logprobs"]:
        raise BadRequest("'top_logprobs' is only allowed when 'logprobs' is enabled.", param="top_logprobs")
    continuing = core.get("prompt.continue_final_message")
    opening = core.get("prompt.add_generation_prompt")
    if continuing and opening:
        message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
        raise BadRequest(message, param="continue_final_message")
    constraint, constraint_param = constraint_of(core)
    constraint, constraint_param = plan.constraint or constraint, constraint_param or "tools"
    sampling, ending = choosing_and_ending(core, constraint_param if constraint else "", resumable=resumable)
    return core.request(
        request_id,
        ChatPrompt(
            messages=template_messages(
                core.get("prompt.messages"), card, takes_later_system=card.template_roles.later_system
            ),
            tools=plan.tools,
            add_generation_prompt=not continuing if opening is None else opening,
            continue_final_message=continuing,
            template_kwargs=reasoning.effort_variables(values["reasoning_effort"], card)
            | (core.get("prompt.template_kwargs") or {}),
        ),
        seeds=(seed & MAX_SEED,),
        sampling=sampling,
        beams=beams_of(reading),
        ending=ending,
        constraint=constraint,
        constraint_param=constraint_param,
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
    )


def without_effect(reading: Reading, card: ModelCard, plan: ToolPlan) -> Reading:
    """Return the reading of a chat with all that has no effect with this model and these tools."""
    effort = reading.values["reasoning_effort"]
    # Nothing is lost where a model that does not reason is told not to.
    is_unused = (
        effort is not None and not reasoning.reads_effort(card) and (effort != "none" or card.reasoning is not None)
    )
    details = unused_details(reading.core.get("prompt.messages"), card)
    reported = (*reading.reported, *plan.reported, *(("reasoning_effort",) if is_unused else ()), *details)
    return msgspec.structs.replace(reading, reported=reported)


def _check_shared(values: dict[str, Any]) -> None:
    if values["stream_options"] is not None and not values["stream"]:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise BadRequest(message, param="stream_options")


def _prompts(core: CoreParams) -> tuple[Prompt, ...]:
    prompt, special, suffix = core.get("prompt"), core.get("prompt.add_special_tokens"), core.get("prompt.suffix")
    if suffix:
        if not isinstance(prompt, str):
            raise BadRequest("'suffix' goes with one prompt, given as text.", param="suffix")
        if core.get("echo"):
            raise BadRequest("'suffix' and 'echo' exclude each other.", param="suffix")
        return (FillPrompt(prefix=prompt, suffix=suffix),)
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt, add_special_tokens=special),)
    if isinstance(prompt[0], int):
        return (TokenPrompt(token_ids=prompt),)
    return tuple(
        TextPrompt(text=one, add_special_tokens=special) if isinstance(one, str) else TokenPrompt(token_ids=one)
        for one in prompt
    )
