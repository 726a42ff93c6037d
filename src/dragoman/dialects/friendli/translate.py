"""Wire to core, as pure functions: a checked body becomes one GenerationRequest for each prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.core.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import EndingParams, LogprobParams, SamplingParams
from dragoman.core.serving import ModelCard
from dragoman.dialects.embeddings import prompt_embeddings
from dragoman.dialects.field import Table, ending_of, sampling_of
from dragoman.dialects.friendli.beams import beams_of
from dragoman.dialects.friendli.messages import template_messages
from dragoman.dialects.friendli.structured import constraint_of
from dragoman.dialects.tools import ToolPlan

MAX_SEQUENCES = 2048
"""Sequences of one HTTP request: prompts times choices of each."""


def completion_requests(
    table: Table, values: dict[str, Any], request_id: str, card: ModelCard, *, elapsed_s: float = 0.0
) -> tuple[GenerationRequest, ...]:
    """One request for each prompt of a completion. ``elapsed_s``: since the request was received.

    Raises BadRequest for fields that contradict each other, and for tokens that the model does not have.
    """
    prompts = _prompts(values)
    if len(prompts) * values["n"] > MAX_SEQUENCES:
        raise BadRequest(f"Prompts times choices must be at most {MAX_SEQUENCES}.", param="n")
    _check_lengths(values, card)
    constraint = _constraint(values)
    forced = _forced(values, len(prompts))
    if forced and constraint is not None:
        raise _exclusive("forced_output_tokens", "response_format")
    sampling, ending = _choosing_and_ending(table, values | {"forced_output_tokens": None}, card)
    beams = beams_of(values, sampling, ending)
    if forced and beams is not None:
        raise _exclusive("forced_output_tokens", "num_beams")
    embeddings = prompt_embeddings(values)
    if embeddings is not None and len(prompts) > 1:
        raise BadRequest("Embeddings are given for one prompt, not for a batch.", param="token_index_to_replace")
    _check_ids(card, "tokens", (token_id for prompt in prompts for token_id in getattr(prompt, "token_ids", ())))
    for ids in forced:
        _check_ids(card, "forced_output_tokens", ids)
    return tuple(
        GenerationRequest(
            request_id=request_id if len(prompts) == 1 else f"{request_id}-{j}",
            prompt=prompt,
            model=card.name,
            n=values["n"],
            seeds=_seeds(values),
            sampling=_with_forced(sampling, forced[j] if forced else ()),
            beams=beams,
            ending=ending,
            logprobs=_completion_logprobs(values),
            constraint=constraint,
            constraint_param="response_format",
            embeddings=embeddings,
            timeout_s=_timeout_s(values, elapsed_s),
        )
        for j, prompt in enumerate(prompts)
    )


def chat_request(
    table: Table,
    values: dict[str, Any],
    request_id: str,
    card: ModelCard,
    plan: ToolPlan,
    *,
    elapsed_s: float = 0.0,
) -> GenerationRequest:
    """The request of a chat completion. Raises as ``completion_requests`` does."""
    most = {values["max_tokens"], values["max_completion_tokens"]} - {None}
    if len(most) > 1:
        raise _exclusive("max_tokens", "max_completion_tokens")
    values = values | {"max_tokens": next(iter(most), None), "max_completion_tokens": None}
    _check_lengths(values, card)
    if values["top_logprobs"] and not values["logprobs"]:
        raise BadRequest("'top_logprobs' is only allowed together with 'logprobs'.", param="top_logprobs")
    constraint = _constraint(values)
    if values["tools"]:
        if constraint is not None:
            raise _exclusive("tools", "response_format")
        if values["min_tokens"]:
            raise _exclusive("tools", "min_tokens")
    _check_ids(card, "logit_bias", values["logit_bias"] or ())
    sampling, ending = _choosing_and_ending(table, values, card)
    return GenerationRequest(
        request_id=request_id,
        prompt=chat_prompt(values, plan.tools),
        model=card.name,
        n=values["n"],
        seeds=_seeds(values),
        sampling=sampling,
        ending=ending,
        logprobs=LogprobParams(top=values["top_logprobs"]) if values["logprobs"] else None,
        constraint=plan.constraint or constraint,
        constraint_param="tools" if plan.constraint else "response_format",
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
        # A format of the whole text has no room for a block, but for marks in its strings.
        reasoning_budget=values["reasoning_budget"] if constraint is None or plan.shape.separate else None,
        timeout_s=_timeout_s(values, elapsed_s),
    )


def chat_prompt(values: dict[str, Any], tools: Sequence[dict[str, Any]]) -> ChatPrompt:
    """The conversation, and what the template is told beside it."""
    variables = dict(values["chat_template_kwargs"] or {})
    if values["reasoning_effort"] is not None:
        variables.setdefault("reasoning_effort", values["reasoning_effort"])
    messages = template_messages(values["messages"])
    return ChatPrompt(messages=messages, tools=tuple(tools), template_kwargs=variables)


def without_effect(values: dict[str, Any], card: ModelCard, *, separate: bool = False) -> tuple[str, ...]:
    """Fields of a chat that this model, or its template, has no use for, which the contract wants ignored.

    ``separate``: reasoning is no part of the content, which is what a format is about.
    """
    form = values.get("response_format")
    reasons = card.reasoning is not None and (separate or form is None or form["type"] == "text")
    used = {"reasoning_effort": "reasoning_effort" in card.template_variables, "reasoning_budget": reasons}
    return tuple(name for name, is_used in used.items() if values.get(name) is not None and not is_used)


def functions_of(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The functions among the checked tools."""
    return [tool["function"] for tool in tools or ()]


def _prompts(values: dict[str, Any]) -> tuple[Prompt, ...]:
    text, tokens = values["prompt"], values["tokens"]
    if (text is None) == (tokens is None):
        message = "Give 'prompt' or 'tokens'" + (", not both." if text is not None else ".")
        raise BadRequest(message, param="prompt" if text is None else "tokens")
    if text is not None:
        return tuple(TextPrompt(text=one) for one in ((text,) if isinstance(text, str) else text))
    batch = (tokens,) if isinstance(tokens[0], int) else tokens
    return tuple(TokenPrompt(token_ids=ids) for ids in batch)


def _check_lengths(values: dict[str, Any], card: ModelCard) -> None:
    """A total that is the context's own size is the default, and says nothing."""
    if values["stream_options"] is not None and not values["stream"]:
        raise BadRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    most, total = values["max_tokens"], values.get("max_total_tokens")
    least, least_total = values["min_tokens"], values.get("min_total_tokens") or 0
    if most is not None and total is not None and total != card.context_tokens:
        raise _exclusive("max_tokens", "max_total_tokens")
    if least and least_total:
        raise _exclusive("min_tokens", "min_total_tokens")
    if most is not None and least > most:
        raise BadRequest(f"'min_tokens' ({least}) is more than 'max_tokens' ({most}).", param="min_tokens")
    if total is not None and least_total > total:
        message = f"'min_total_tokens' ({least_total}) is more than 'max_total_tokens' ({total})."
        raise BadRequest(message, param="min_total_tokens")


def _constraint(values: dict[str, Any]) -> Any:
    constraint = constraint_of(values["response_format"])
    if constraint is not None and values["min_tokens"]:
        raise _exclusive("min_tokens", "response_format")
    return constraint


def _choosing_and_ending(table: Table, values: dict[str, Any], card: ModelCard) -> tuple[SamplingParams, EndingParams]:
    sampling, ending = sampling_of(table, values), ending_of(table, values)
    if sampling.top_k > card.vocab_size:
        message = f"'top_k' ({sampling.top_k}) is more than the {card.vocab_size} tokens of the vocabulary."
        raise BadRequest(message, param="top_k")
    _check_ids(card, "eos_token", ending.end_token_ids or ())
    _check_ids(card, "stop_tokens", ending.stop_token_ids)
    _check_ids(card, "bad_word_tokens", (token_id for phrase in sampling.banned_phrases for token_id in phrase))
    return sampling, ending


def _forced(values: dict[str, Any], prompts: int) -> tuple[tuple[int, ...], ...]:
    """The forced tokens of each prompt; empty where none are forced."""
    given = values["forced_output_tokens"]
    if given is None:
        return ()
    lists: tuple[tuple[int, ...], ...] = (given,) if isinstance(given[0], int) else given
    if len(lists) != prompts:
        message = f"'forced_output_tokens' has {len(lists)} lists for {prompts} prompts."
        raise BadRequest(message, param="forced_output_tokens")
    return lists


def _with_forced(sampling: SamplingParams, forced: tuple[int, ...]) -> SamplingParams:
    # What is forced leaves nothing to sample: the contract wants these fields ignored.
    return SamplingParams(forced_tokens=forced) if forced else sampling


def _seeds(values: dict[str, Any]) -> tuple[int, ...] | None:
    given = values["seed"]
    if given is None or isinstance(given, int):
        return None if given is None else (given,)
    if len(given) not in (1, values["n"]):
        raise BadRequest(f"'seed' has {len(given)} numbers for {values['n']} choices.", param="seed")
    seeds: tuple[int, ...] = given
    return seeds


def _completion_logprobs(values: dict[str, Any]) -> LogprobParams | None:
    if values["logprobs"] is not None:
        return LogprobParams(top=values["logprobs"])
    return LogprobParams() if values["include_output_logprobs"] else None


def _timeout_s(values: dict[str, Any], elapsed_s: float) -> float | None:
    """What is left of the request's time; never nothing, so that the generation is what tells that it is over."""
    given = values["timeout_microseconds"]
    return None if given is None else max(given / 1e6 - elapsed_s, 1e-6)


def _check_ids(card: ModelCard, param: str, ids: Iterable[int]) -> None:
    highest = max(ids, default=0)
    if highest >= card.vocab_size:
        message = f"'{param}': there is no token {highest}, only 0 to {card.vocab_size - 1}."
        raise BadRequest(message, param=param)


def _exclusive(first: str, second: str) -> BadRequest:
    return BadRequest(f"'{first}' and '{second}' exclude each other.", param=second)
