"""Translation from wire to core, as pure functions: a checked body becomes one GenerationRequest for each prompt."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence
from typing import Any

from dragoman.core.constraint import Constraint
from dragoman.core.errors import BadRequest
from dragoman.core.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import BeamParams, EndingParams, SamplingParams
from dragoman.core.serving import ModelCard
from dragoman.dialects.chat_input import flattened, template_call
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.field_types import FieldError, FieldRule
from dragoman.dialects.images import unused_details
from dragoman.dialects.shared_fields import prompt_embeddings
from dragoman.dialects.tools import ToolPlan

MAX_SEQUENCES = 2048
"""Sequences of one HTTP request: prompts times choices of each."""


def completion_requests(
    reading: Reading, request_id: str, card: ModelCard, *, elapsed_s: float = 0.0
) -> tuple[GenerationRequest, ...]:
    """Return one request for each prompt of a completion. ``elapsed_s``: since the request was received.

    Raises BadRequest for fields that contradict each other, and for tokens that the model does not have.
    """
    values, core = reading.values, reading.core
    prompts = _prompts(core)
    if len(prompts) * values["n"] > MAX_SEQUENCES:
        raise BadRequest(f"Prompts times choices must be at most {MAX_SEQUENCES}.", param="n")
    _check_lengths(reading, card)
    constraint = _constraint(core)
    forced = _forced(core, len(prompts))
    if forced and constraint is not None:
        raise _exclusive("forced_output_tokens", "response_format")
    sampling, ending = _choosing_and_ending(core.deciding({"sampling.forced_tokens": None}), card)
    beams = beams_of(reading, sampling, ending)
    if forced and beams is not None:
        raise _exclusive("forced_output_tokens", "num_beams")
    embeddings = prompt_embeddings(core)
    if embeddings is not None and len(prompts) > 1:
        raise BadRequest("Embeddings are given for one prompt, not for a batch.", param="token_index_to_replace")
    _check_ids(card, "tokens", (token_id for prompt in prompts for token_id in getattr(prompt, "token_ids", ())))
    for ids in forced:
        _check_ids(card, "forced_output_tokens", ids)
    return tuple(
        core.request(
            request_id if len(prompts) == 1 else f"{request_id}-{j}",
            prompt,
            model=card.name,
            seeds=_seeds(core),
            sampling=_with_forced(sampling, forced[j] if forced else ()),
            beams=beams,
            ending=ending,
            constraint=constraint,
            constraint_param="response_format",
            embeddings=embeddings,
            timeout_s=_timeout_s(core, elapsed_s),
        )
        for j, prompt in enumerate(prompts)
    )


def chat_request(
    reading: Reading,
    request_id: str,
    card: ModelCard,
    plan: ToolPlan,
    *,
    elapsed_s: float = 0.0,
) -> GenerationRequest:
    """Return the request of a chat completion. Raises as ``completion_requests`` does."""
    values, core = reading.values, reading.core
    most = {values["max_tokens"], values["max_completion_tokens"]} - {None}
    if len(most) > 1:
        raise _exclusive("max_tokens", "max_completion_tokens")
    _check_lengths(reading, card)
    if values["top_logprobs"] and not values["logprobs"]:
        raise BadRequest("'top_logprobs' is only allowed together with 'logprobs'.", param="top_logprobs")
    constraint = _constraint(core)
    if values["tools"]:
        if constraint is not None:
            raise _exclusive("tools", "response_format")
        if values["min_tokens"]:
            raise _exclusive("tools", "min_tokens")
    _check_ids(card, "logit_bias", core.get("sampling.logit_bias") or ())
    sampling, ending = _choosing_and_ending(core, card)
    return core.request(
        request_id,
        chat_prompt(core, plan.tools, card),
        model=card.name,
        seeds=_seeds(core),
        sampling=sampling,
        ending=ending,
        constraint=plan.constraint or constraint,
        constraint_param="tools" if plan.constraint else "response_format",
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
        # A format of the whole text has no room for a block, but for marks in its strings.
        reasoning_budget=core.get("reasoning_budget") if constraint is None or plan.shape.separate else None,
        timeout_s=_timeout_s(core, elapsed_s),
    )


def chat_prompt(core: CoreParams, tools: Sequence[dict[str, Any]], card: ModelCard) -> ChatPrompt:
    """Return the conversation, with the further variables of the template."""
    variables = dict(ChainMap(*(variables for _, variables in core.given("prompt.template_kwargs"))))
    messages = template_messages(core.get("prompt.messages"), card)
    return ChatPrompt(messages=messages, tools=tuple(tools), template_kwargs=variables)


def without_effect(values: dict[str, Any], card: ModelCard, *, separate: bool = False) -> tuple[str, ...]:
    """Return the fields of a chat without effect for this model or its template, which the contract ignores.

    ``separate``: reasoning is not part of the content, to which a format applies.
    """
    form = values.get("response_format")
    reasons = card.reasoning is not None and (separate or form is None or form["type"] == "text")
    used = {"reasoning_effort": "reasoning_effort" in card.template_variables, "reasoning_budget": reasons}
    unused = (name for name, is_used in used.items() if values.get(name) is not None and not is_used)
    return (*unused, *unused_details(values.get("messages") or (), card))


def _prompts(core: CoreParams) -> tuple[Prompt, ...]:
    text, tokens = core.get("prompt"), core.get("prompt.token_ids")
    if (text is None) == (tokens is None):
        message = "Give 'prompt' or 'tokens'" + (", not both." if text is not None else ".")
        raise BadRequest(message, param="prompt" if text is None else "tokens")
    if text is not None:
        return tuple(TextPrompt(text=one) for one in ((text,) if isinstance(text, str) else text))
    batch = (tokens,) if isinstance(tokens[0], int) else tokens
    return tuple(TokenPrompt(token_ids=ids) for ids in batch)


def _check_lengths(reading: Reading, card: ModelCard) -> None:
    """Check the lengths. ``max_total_tokens`` equal to the context size is the default, and contradicts nothing."""
    values, core = reading.values, reading.core
    if values["stream_options"] is not None and not values["stream"]:
        raise BadRequest("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    most, total = core.get("ending.max_tokens"), core.get("ending.max_total_tokens")
    least, least_total = core.get("ending.min_tokens"), core.get("ending.min_total_tokens") or 0
    if most is not None and total is not None and total != card.context_tokens:
        raise _exclusive("max_tokens", "max_total_tokens")
    if least and least_total:
        raise _exclusive("min_tokens", "min_total_tokens")
    if most is not None and least > most:
        raise BadRequest(f"'min_tokens' ({least}) is more than 'max_tokens' ({most}).", param="min_tokens")
    if total is not None and least_total > total:
        message = f"'min_total_tokens' ({least_total}) is more than 'max_total_tokens' ({total})."
        raise BadRequest(message, param="min_total_tokens")


def _constraint(core: CoreParams) -> Constraint | None:
    constraint: Constraint | None = core.get("constraint")
    if constraint is not None and core.get("ending.min_tokens"):
        raise _exclusive("min_tokens", "response_format")
    return constraint


def _choosing_and_ending(core: CoreParams, card: ModelCard) -> tuple[SamplingParams, EndingParams]:
    sampling, ending = core.sampling(), core.ending()
    if sampling.top_k > card.vocab_size:
        message = f"'top_k' ({sampling.top_k}) is more than the {card.vocab_size} tokens of the vocabulary."
        raise BadRequest(message, param="top_k")
    _check_ids(card, "eos_token", ending.end_token_ids or ())
    _check_ids(card, "stop_tokens", ending.stop_token_ids)
    _check_ids(card, "bad_word_tokens", (token_id for phrase in sampling.banned_phrases for token_id in phrase))
    return sampling, ending


def _forced(core: CoreParams, prompts: int) -> tuple[tuple[int, ...], ...]:
    """Return the forced tokens of each prompt; empty where none are forced."""
    given = core.get("sampling.forced_tokens")
    if given is None:
        return ()
    lists: tuple[tuple[int, ...], ...] = (given,) if isinstance(given[0], int) else given
    if len(lists) != prompts:
        message = f"'forced_output_tokens' has {len(lists)} lists for {prompts} prompts."
        raise BadRequest(message, param="forced_output_tokens")
    return lists


def _with_forced(sampling: SamplingParams, forced: tuple[int, ...]) -> SamplingParams:
    # Forced tokens leave nothing to sample: by the contract these fields are ignored.
    return SamplingParams(forced_tokens=forced) if forced else sampling


def _seeds(core: CoreParams) -> tuple[int, ...] | None:
    seeds: tuple[int, ...] | None = core.get("seeds")
    n = core.get("n")
    if seeds is not None and len(seeds) not in (1, n):
        raise BadRequest(f"'seed' has {len(seeds)} numbers for {n} choices.", param="seed")
    return seeds


def _timeout_s(core: CoreParams, elapsed_s: float) -> float | None:
    """Return the remaining time of the request, always positive, so that the generation reports the timeout."""
    given = core.get("timeout_s")
    return None if given is None else max(given - elapsed_s, 1e-6)


def _check_ids(card: ModelCard, param: str, ids: Iterable[int]) -> None:
    highest = max(ids, default=0)
    if highest >= card.vocab_size:
        message = f"'{param}': there is no token {highest}, only 0 to {card.vocab_size - 1}."
        raise BadRequest(message, param=param)


def _exclusive(first: str, second: str) -> BadRequest:
    return BadRequest(f"'{first}' and '{second}' exclude each other.", param=second)


# Fields whose name on the wire differs from that in the core.
_NAMES = {"forced_tokens": "forced_output_tokens"}


def beams_of(reading: Reading, sampling: SamplingParams, ending: EndingParams) -> BeamParams | None:
    """Return the beam search of a body; None without ``num_beams``, whatever the other fields are. Raises
    BadRequest."""
    search, values = reading.core.group("beams"), reading.values
    if "num_beams" not in search:
        return None
    for name, asked in (("n", values["n"] > 1), ("stream", values["stream"]), ("stop", bool(ending.stop))):
        if asked:
            raise BadRequest(f"'num_beams' and '{name}' exclude each other.", param=name)
    if not search["pre_normalization"] and not search["post_normalization"]:
        message = "'beam_compat_no_post_normalization' needs 'beam_compat_pre_normalization'."
        raise BadRequest(message, param="beam_compat_no_post_normalization")
    beams = BeamParams(**search)
    if beams.kind == "stochastic" and beams.length_penalty != 1:
        raise BadRequest("'length_penalty' has no meaning for a stochastic search.", param="length_penalty")
    if excluded := (*_excluded_truncations(beams, sampling), *beams.excludes(sampling)):
        name = _NAMES.get(excluded[0], excluded[0])
        kind = values["beam_search_type"]
        raise BadRequest(f"'{name}' does not go together with the beam search {kind}.", param=name)
    return beams


def _excluded_truncations(beams: BeamParams, sampling: SamplingParams) -> tuple[str, ...]:
    """Return the fields that a search without sampling does not use: the temperature, in a deterministic search."""
    return ("temperature",) if beams.kind == "deterministic" and sampling.temperature != 1 else ()


def template_messages(messages: tuple[dict[str, Any], ...], card: ModelCard) -> tuple[dict[str, Any], ...]:
    """Return the checked messages as the core takes them. Raises BadRequest with the location of the error."""
    return tuple(_message(message, i, card) for i, message in enumerate(messages))


def _message(message: dict[str, Any], i: int, card: ModelCard) -> dict[str, Any]:
    role, content, calls = message["role"], message["content"], message["tool_calls"]
    if calls and role != "assistant":
        place = f"messages[{i}].tool_calls"
        raise BadRequest(f"Invalid '{place}': only an assistant calls tools.", param=place)
    if content is None and not calls:
        raise FieldError(FieldRule.MISSING, ("messages", i, "content"), bound="content")
    if role == "tool" and message["tool_call_id"] is None:
        raise FieldError(FieldRule.MISSING, ("messages", i, "tool_call_id"), bound="tool_call_id")
    flat: dict[str, Any] = {"role": "system" if role == "developer" else role}
    flat["content"] = flattened(content, i, card)
    for name in ("name", "tool_call_id"):
        if message[name] is not None:
            flat[name] = message[name]
    reasoning = message["reasoning"] if message["reasoning_content"] is None else message["reasoning_content"]
    if reasoning is not None:
        flat["reasoning_content"] = reasoning
    if calls:
        flat["tool_calls"] = [template_call(call, i, j) for j, call in enumerate(calls)]
    return flat
