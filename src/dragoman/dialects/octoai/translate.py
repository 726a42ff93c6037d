"""Wire to core, as pure functions: a checked body becomes one GenerationRequest for each prompt."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import LogprobParams
from dragoman.core.serving import ModelCard
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.octoai.messages import template_messages
from dragoman.dialects.tools import ToolPlan

MAX_SEQUENCES = 2048
"""Sequences of one HTTP request: prompts times generations of each."""


def completion_requests(reading: Reading, request_id: str, card: ModelCard) -> tuple[GenerationRequest, ...]:
    """One request for each prompt of a completion.

    Raises BadRequest for fields that contradict each other, and for tokens that the model does not have.
    """
    core = _core(reading)
    prompts = _prompts(core, card)
    n, best_of = core.get("n"), core.get("best_of")
    _check_best_of(n, best_of, "best_of", stream=reading.values["stream"])
    if len(prompts) * (best_of or n) > MAX_SEQUENCES:
        raise BadRequest(f"Prompts times choices must be at most {MAX_SEQUENCES}.", param="n")
    shared = core.request(
        request_id,
        prompts[0],
        model=card.name,
        adapter=None,
        # Filling a gap shows what is before it, but the core would show the whole prompt; so render does that.
        echo=(core.get("echo") or core.get("logprobs.prompt")) and not core.get("prompt.suffix"),
    )
    _check_ids(card, "logit_bias", shared.sampling.logit_bias)
    return tuple(
        msgspec.structs.replace(
            shared, prompt=prompt, request_id=request_id if len(prompts) == 1 else f"{request_id}-{j}"
        )
        for j, prompt in enumerate(prompts)
    )


def chat_request(reading: Reading, request_id: str, card: ModelCard, plan: ToolPlan) -> GenerationRequest:
    """The request of a chat completion, under the plan's constraint. Raises as ``completion_requests`` does."""
    values, core = reading.values, _core(reading)
    _check_best_of(core.get("n"), core.get("best_of"), "octoai.vllm.best_of", stream=values["stream"])
    if values["top_logprobs"] and not values["logprobs"]:
        raise BadRequest("'top_logprobs' is only allowed together with 'logprobs'.", param="top_logprobs")
    _check_ids(card, "logit_bias", core.get("sampling.logit_bias") or ())
    _check_ids(card, "octoai.vllm.stop_token_ids", core.get("ending.stop_token_ids") or ())
    return core.request(
        request_id,
        ChatPrompt(messages=template_messages(core.get("prompt.messages")), tools=plan.tools),
        model=card.name,
        adapter=None,
        constraint=plan.constraint,
        constraint_param="response_format" if values["response_format"] else "tools",
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
    )


def _core(reading: Reading) -> CoreParams:
    """Asking for more than the context holds is no error here: the text ends where the context does. The prompt's
    log-probabilities may be asked for alone."""
    core = CoreParams(reading.table, reading.values, {"ending.clamp_to_context": True})
    if core.get("logprobs") is None and core.get("logprobs.prompt"):
        return core.deciding({"logprobs": LogprobParams()})
    return core


def _prompts(core: CoreParams, card: ModelCard) -> tuple[Prompt, ...]:
    prompt, suffix = core.get("prompt"), core.get("prompt.suffix")
    if not prompt and not suffix:
        if not card.has_bos:
            message = f"The prompt is empty, and the model '{card.name}' has no token to begin with."
            raise BadRequest(message, param="prompt")
        return (TextPrompt(text=""),)
    batch = (prompt or "",) if prompt is None or isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    if suffix:
        if not all(isinstance(one, str) for one in batch):
            raise BadRequest("'suffix' goes with prompts given as text.", param="suffix")
        if not card.has_fill_tokens:
            message = f"'suffix' is not supported: the model '{card.name}' has no fill-in-the-middle tokens."
            raise UnsupportedFeature(message, param="suffix")
        return tuple(FillPrompt(prefix=one, suffix=suffix) for one in batch)
    for one in batch:
        if not isinstance(one, str):
            _check_ids(card, "prompt", one)
    return tuple(TextPrompt(text=one) if isinstance(one, str) else TokenPrompt(token_ids=one) for one in batch)


def _check_best_of(n: int, best_of: int | None, param: str, *, stream: bool) -> None:
    if best_of is None:
        return
    if best_of < n:
        raise BadRequest(f"'best_of' ({best_of}) must be at least 'n' ({n}).", param=param)
    if best_of > n and stream:
        raise BadRequest("Results cannot be streamed when 'best_of' is greater than 'n'.", param=param)


def _check_ids(card: ModelCard, param: str, ids: Iterable[int]) -> None:
    highest = max(ids, default=0)
    if highest >= card.vocab_size:
        message = f"'{param}': there is no token {highest}, only 0 to {card.vocab_size - 1}."
        raise BadRequest(message, param=param)
