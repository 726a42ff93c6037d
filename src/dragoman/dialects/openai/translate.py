"""Wire to core, as pure functions: a checked body becomes one GenerationRequest for each prompt."""

from __future__ import annotations

from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import MAX_SEED, LogprobParams
from dragoman.dialects.embeddings import prompt_embeddings
from dragoman.dialects.field import Reading
from dragoman.dialects.openai.beam_fields import beams_of
from dragoman.dialects.openai.fields import CHAT, COMPLETIONS
from dragoman.dialects.openai.messages import template_messages
from dragoman.dialects.openai.sampler_fields import choosing_and_ending
from dragoman.dialects.openai.structured import constraint_of
from dragoman.dialects.tools import WITHOUT_TOOLS, ToolPlan

MAX_SEQUENCES = 2048
"""Sequences of one HTTP request: prompts times generations of each."""


def completion_requests(
    reading: Reading, request_id: str, seed: int, *, resumable: bool = False
) -> tuple[GenerationRequest, ...]:
    """``POST /v1/completions``: one request for each prompt, choices prompt by prompt.

    ``seed`` is what the body gives, or what was drawn for it; choice k of all uses seed + k. ``resumable``: this is one
    call of a generation that may be made of several.
    """
    values = reading.values
    prompts = _prompts(values)
    _check_shared(values)
    beams = beams_of(values)
    n, best_of = values["n"], (values["best_of"] if beams is None else None) or values["n"]
    if best_of < n:
        raise BadRequest(f"'best_of' ({best_of}) must be at least 'n' ({n}).", param="best_of")
    if best_of > n and values["stream"]:
        raise BadRequest("Results cannot be streamed when 'best_of' is greater than 'n'.", param="best_of")
    if values["max_tokens"] == 0 and not values["echo"]:
        raise BadRequest("'max_tokens' 0 needs 'echo': there would be no answer.", param="max_tokens")
    if len(prompts) * max(best_of, beams.num_beams if beams else 0) > MAX_SEQUENCES:
        raise BadRequest(f"Prompts times choices must be at most {MAX_SEQUENCES}.", param="n" if n > 1 else "best_of")
    embeddings = prompt_embeddings(values)
    if embeddings is not None and len(prompts) > 1:
        raise BadRequest("'embedding_to_replace' goes with one prompt.", param="embedding_to_replace")
    constraint, constraint_param = constraint_of(values)
    sampling, ending = choosing_and_ending(
        COMPLETIONS, values, constraint_param if constraint else "", resumable=resumable
    )
    logprobs = None
    if values["logprobs"] is not None:
        logprobs = LogprobParams(top=values["logprobs"], prompt=values["echo"], mode=values["logprobs_mode"])
    return tuple(
        GenerationRequest(
            request_id=request_id if len(prompts) == 1 else f"{request_id}-{j}",
            prompt=prompt,
            model=values["model"],
            n=n,
            best_of=best_of if best_of > n else None,
            seeds=((seed + j * best_of) & MAX_SEED,),
            sampling=sampling,
            beams=beams,
            ending=ending,
            logprobs=logprobs,
            constraint=constraint,
            constraint_param=constraint_param,
            embeddings=embeddings,
            echo=values["echo"],
            truncate=values["truncate_prompt_tokens"],
            priority=values["priority"],
            cache_salt=values["cache_salt"] or "",
        )
        for j, prompt in enumerate(prompts)
    )


def chat_request(
    reading: Reading, request_id: str, seed: int, plan: ToolPlan = WITHOUT_TOOLS, *, resumable: bool = False
) -> GenerationRequest:
    """``POST /v1/chat/completions``. ``resumable``: as above."""
    values = reading.values
    _check_shared(values)
    if values["max_tokens"] is not None and values["max_completion_tokens"] is not None:
        raise BadRequest("Give 'max_tokens' or 'max_completion_tokens', not both.", param="max_tokens")
    if values["top_logprobs"] and not values["logprobs"]:
        raise BadRequest("'top_logprobs' is only allowed when 'logprobs' is enabled.", param="top_logprobs")
    continuing = values["continue_final_message"]
    opening = values["add_generation_prompt"]
    if continuing and opening:
        message = "'continue_final_message' and 'add_generation_prompt' exclude each other."
        raise BadRequest(message, param="continue_final_message")
    constraint, constraint_param = constraint_of(values)
    if plan.tools and constraint is not None:
        message = f"'{constraint_param}' and 'tools' exclude each other, unless 'tool_choice' is 'none'."
        raise BadRequest(message, param=constraint_param)
    constraint, constraint_param = plan.constraint or constraint, constraint_param or "tools"
    sampling, ending = choosing_and_ending(CHAT, values, constraint_param if constraint else "", resumable=resumable)
    logprobs = None
    if values["logprobs"]:
        logprobs = LogprobParams(top=values["top_logprobs"] or 0, mode=values["logprobs_mode"])
    return GenerationRequest(
        request_id=request_id,
        prompt=ChatPrompt(
            messages=template_messages(values["messages"]),
            tools=plan.tools,
            add_generation_prompt=not continuing if opening is None else opening,
            continue_final_message=continuing,
            template_kwargs=values["chat_template_kwargs"] or {},
        ),
        model=values["model"],
        n=values["n"],
        seeds=(seed & MAX_SEED,),
        sampling=sampling,
        beams=beams_of(values),
        ending=ending,
        logprobs=logprobs,
        constraint=constraint,
        constraint_param=constraint_param,
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
        truncate=values["truncate_prompt_tokens"],
        priority=values["priority"],
        cache_salt=values["cache_salt"] or "",
    )


def _check_shared(values: dict[str, Any]) -> None:
    if values["stream_options"] is not None and not values["stream"]:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise BadRequest(message, param="stream_options")


def _prompts(values: dict[str, Any]) -> tuple[Prompt, ...]:
    prompt, special = values["prompt"], values["add_special_tokens"]
    if values["suffix"]:
        if not isinstance(prompt, str):
            raise BadRequest("'suffix' goes with one prompt, given as text.", param="suffix")
        if values["echo"]:
            raise BadRequest("'suffix' and 'echo' exclude each other.", param="suffix")
        return (FillPrompt(prefix=prompt, suffix=values["suffix"]),)
    if isinstance(prompt, str):
        return (TextPrompt(text=prompt, add_special_tokens=special),)
    if isinstance(prompt[0], int):
        return (TokenPrompt(token_ids=prompt),)
    return tuple(
        TextPrompt(text=one, add_special_tokens=special) if isinstance(one, str) else TokenPrompt(token_ids=one)
        for one in prompt
    )
