"""Translation from wire to core, as pure functions: a checked body becomes one GenerationRequest for each prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import LogprobParams
from dragoman.core.serving import ModelCard
from dragoman.dialects.chat_input import flattened, template_call
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.images import joined_parts
from dragoman.dialects.tools import ToolChoice, ToolPlan, calls_or, tool_choice, tool_plan

MAX_SEQUENCES = 2048
"""Sequences of one HTTP request: prompts times generations of each."""


def completion_requests(reading: Reading, request_id: str, card: ModelCard) -> tuple[GenerationRequest, ...]:
    """Return one request for each prompt of a completion.

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
        # With a suffix only the text before the gap is echoed; the core would echo the whole prompt, so render does it.
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
    """Return the request of a chat completion, under the plan's constraint. Raises as ``completion_requests`` does."""
    values, core = reading.values, _core(reading)
    _check_best_of(core.get("n"), core.get("best_of"), "octoai.vllm.best_of", stream=values["stream"])
    if values["top_logprobs"] and not values["logprobs"]:
        raise BadRequest("'top_logprobs' is only allowed together with 'logprobs'.", param="top_logprobs")
    _check_ids(card, "logit_bias", core.get("sampling.logit_bias") or ())
    _check_ids(card, "octoai.vllm.stop_token_ids", core.get("ending.stop_token_ids") or ())
    return core.request(
        request_id,
        ChatPrompt(messages=template_messages(core.get("prompt.messages"), card), tools=plan.tools),
        model=card.name,
        adapter=None,
        constraint=plan.constraint,
        constraint_param="response_format" if values["response_format"] else "tools",
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
    )


def _core(reading: Reading) -> CoreParams:
    """Return the parameters of a body. Lengths beyond the context are no error: the text ends where the context does.
    The prompt's log-probabilities may be requested alone."""
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


def template_messages(messages: tuple[dict[str, Any], ...], card: ModelCard) -> tuple[dict[str, Any], ...]:
    """Return the checked messages as the core takes them, with an id for every call and every result.

    A result without the id of a call belongs to the first earlier call that has no result yet. Raises
    BadRequest with the location of the error.
    """
    flat: list[dict[str, Any]] = []
    unanswered: deque[str] = deque()
    made = 0
    for i, message in enumerate(messages):
        role, calls = message["role"], message["tool_calls"]
        if calls and role != "assistant":
            place = f"messages[{i}].tool_calls"
            raise BadRequest(f"Invalid '{place}': only an assistant calls tools.", param=place)
        one: dict[str, Any] = {"role": role, "content": flattened(message["content"], i, card)}
        if message["name"] is not None:
            one["name"] = message["name"]
        if calls:
            one["tool_calls"] = []
            unanswered.clear()
            for j, call in enumerate(calls):
                # Nine letters and digits: the form of an id that some templates require.
                named = {"type": "function"} | {key: value for key, value in call.items() if value is not None}
                one["tool_calls"].append(template_call({"id": f"call{made:05d}"} | named, i, j))
                unanswered.append(str(one["tool_calls"][-1]["id"]))
                made += 1
        if role == "tool":
            given = message["tool_call_id"]
            if given is not None:
                one["tool_call_id"] = given
                if given in unanswered:
                    unanswered.remove(given)
            elif unanswered:
                one["tool_call_id"] = unanswered.popleft()
        flat.append(one)
    return tuple(flat)


def has_neighbours(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether two consecutive messages without calls have the same role: some chat templates require
    alternation."""
    return any(_goes_on(one, other) for one, other in pairwise(messages))


def in_turns(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return the messages with consecutive messages of one role joined, a blank line between them."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        if turns and _goes_on(turns[-1], message):
            both = (turns[-1]["content"], message["content"])
            if all(isinstance(each, str) for each in both):
                turns[-1] = turns[-1] | {"content": "\n\n".join(both)}
            else:
                turns[-1] = turns[-1] | {"content": joined_parts(both[0], "\n\n", both[1])}
        else:
            turns.append(message)
    return tuple(turns)


def _goes_on(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["role"] == other["role"] != "tool" and not ("tool_calls" in one or "tool_calls" in other)


# The built-in tools of Llama 3.1.
_BUILT_IN = {"brave_search": "query", "wolfram_alpha": "query", "code_interpreter": "code"}
_ANY_OBJECT = {"type": "object", "properties": {}, "additionalProperties": True}


def octoai_plan(core: CoreParams, card: ModelCard) -> ToolPlan:
    """Return the plan for a checked body, the constraint of ``response_format`` included.

    Which tool is called is decided first; an answer that calls none has the format. Raises BadRequest,
    UnsupportedFeature with the field's name.
    """
    functions = [_complete(tool["function"]) for tool in core.get("tools.functions") or ()]
    choice = tool_choice(core.get("tools.choice"), [function["name"] for function in functions])
    plan = tool_plan(functions, choice, card)
    format = core.get("constraint")
    if format is None or choice.required:
        return plan
    if choice.mode == "none":
        return msgspec.structs.replace(plan, constraint=format)
    # A block before the format would be part of the content, which would break the format: it is left out, as it has no
    # separate field.
    plan = tool_plan(functions, choice, card, separate_reasoning=True)
    required = tool_plan(functions, ToolChoice("required", choice.names), card).constraint
    assert required is not None
    return msgspec.structs.replace(plan, constraint=calls_or(required, format, card))


def _complete(function: dict[str, Any]) -> dict[str, Any]:
    """Return the function with parameters, where the client left them out."""
    if function["parameters"] is not None:
        return function
    argument = _BUILT_IN.get(function["name"])
    if argument is None:
        return function | {"parameters": _ANY_OBJECT}
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return function | {"parameters": parameters}
