"""Translation from wire to core: a checked body and the conversation before it become one request and its head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.constraint import Constraint
from dragoman.core.errors import (
    BadConstraint,
    ContextOverflow,
    TemplateFailed,
    TemplateMissing,
    UnsupportedFeature,
)
from dragoman.core.image_sources import has_images
from dragoman.core.request import ChatPrompt, GenerationRequest, TokenPrompt
from dragoman.core.sampling import EndingParams, LogprobParams
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects import reasoning
from dragoman.dialects.field import Reading
from dragoman.dialects.field_types import FieldError, FieldRule, Path
from dragoman.dialects.openai.responses.content import FOUND_TOOLS, MORE_TOOLS, Placed, conversation, droppable
from dragoman.dialects.openai.responses.conversations import id_of
from dragoman.dialects.openai.responses.fields import ENCRYPTED, LOGPROBS
from dragoman.dialects.openai.responses.response import QUEUED, RESPONSE_ID, RUNNING, Head
from dragoman.dialects.openai.responses.tools import ToolSet, chosen, planned, tool_set
from dragoman.dialects.openai.sampler_fields import choosing_and_ending
from dragoman.dialects.openai.structured import constraint_of
from dragoman.dialects.tools import ToolChoice, ToolPlan
from dragoman.dialects.truncation import fewest_left_out, ranges

BACKGROUND_PRIORITY = -100
ECHOED_CHARS = 1024
"""Most characters of the texts about its user that an answer repeats."""


class Asked(msgspec.Struct, kw_only=True):
    """A request that has been read, with what came before its input.

    Attributes:
        items: of the chain and of the input. plan: what its tools become.
        ids: the tokens of the prompt, where they are known already. dropped: indices of the items that it lacks.
        reported: what has no effect, besides the fields of the table.
    """

    body: Mapping[str, Any]
    reading: Reading
    card: ModelCard
    items: Sequence[Placed]
    tools: ToolSet
    choice: ToolChoice
    plan: ToolPlan
    constraint_param: str
    messages: tuple[dict[str, Any], ...] = ()
    ids: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    reported: tuple[str, ...] = ()

    @property
    def prompt(self) -> ChatPrompt:
        core = self.reading.core
        continues = bool(core.get("prompt.continue_final_message"))
        return ChatPrompt(
            messages=self.messages,
            tools=self.plan.tools,
            add_generation_prompt=not continues,
            continue_final_message=continues,
            template_kwargs=_variables(self.reading, self.card),
            token_ids=self.ids,
        )

    def without(self, dropped: Sequence[int]) -> Asked:
        """Return the request with a prompt that lacks some items. Raises BadRequest."""
        core, left_out = self.reading.core, set(dropped)
        items = [item for i, item in enumerate(self.items) if i not in left_out]
        continues = bool(core.get("prompt.continue_final_message"))
        talk = conversation(core.get("prompt.system"), items, self.card, continues=continues)
        return msgspec.structs.replace(
            self, messages=talk.messages, reported=talk.reported, dropped=tuple(sorted(left_out)), ids=()
        )

    @property
    def whole_reading(self) -> Reading:
        """The reading with all that has no effect with this model and conversation."""
        values, reading = self.reading.values, self.reading
        wanted = values["reasoning"] or {}
        logprobs = values.get("top_logprobs") and LOGPROBS not in (values.get("include") or ())
        unused = {
            "reasoning.effort": wanted.get("effort") is not None and not reasoning.reads_effort(self.card),
            "reasoning.summary": (wanted.get("summary") or wanted.get("generate_summary")) == "concise",
            "top_logprobs": bool(logprobs),
        }
        names = (*self.tools.reported, *self.reported, *(name for name, is_unused in unused.items() if is_unused))
        truncated = (f"items {ranges(self.dropped)}",) if self.dropped else ()
        return msgspec.structs.replace(reading, reported=(*reading.reported, *names), truncated=truncated)


async def asked_of(
    serving: Serving, body: Mapping[str, Any], reading: Reading, items: Sequence[Placed], *, is_strict: bool
) -> Asked:
    """Return the request of a checked body. ``items``: of the chain and of the input.

    Raises BadRequest, UnsupportedFeature.
    """
    core = reading.core
    card = serving.model(core.get("model"))
    if not items:
        raise FieldError(FieldRule.MISSING, ("input",), bound="input")
    if not card.has_chat_template:
        raise TemplateMissing(f"'input': the model '{card.name}' has no chat template.", param="input")
    given: list[tuple[dict[str, Any], Path]]
    repeats = False
    given = [(tool, ("tools", i)) for i, tool in enumerate(core.get("tools.functions") or ())]
    for placed in items:
        if placed.type in MORE_TOOLS:
            more = placed.item.get("tools")
            repeats = repeats or placed.type == FOUND_TOOLS
            if not isinstance(more, list) or not all(isinstance(tool, dict) for tool in more):
                raise FieldError(FieldRule.TYPE, (*placed.path, "tools"), more)
            given += [(tool, (*placed.path, "tools", i)) for i, tool in enumerate(more)]
    tools = tool_set([tool for tool, _ in given], [path for _, path in given], is_strict=is_strict, repeats=repeats)
    choice = chosen(core.get("tools.choice"), tools)
    constraint, name = constraint_of(core)
    param = "text.format.schema" if name == "text.format" else name
    parallel = core.get("tools.parallel")
    plan = await _decided_plan(serving, card, tools, choice, constraint, param, parallel=parallel)
    whole = Asked(
        body=body,
        reading=reading,
        card=card,
        items=items,
        tools=tools,
        choice=choice,
        plan=plan,
        constraint_param="tools" if plan.tools and (constraint is None or choice.required) else param or "tools",
    )
    return whole.without(())


async def _decided_plan(
    serving: Serving,
    card: ModelCard,
    tools: ToolSet,
    choice: ToolChoice,
    constraint: Constraint | None,
    param: str,
    *,
    parallel: bool,
) -> ToolPlan:
    """Return the plan, with every function's decision whether its schema is enforced: where the client leaves that
    open, it is if it can be."""
    undecided = tools.open_ones
    if undecided and choice.mode != "none":
        enforced = set(undecided)
        if not await _can_enforce(serving, card, tools, choice, enforced, parallel=parallel):
            enforced = {i for i in undecided if await _can_enforce_alone(serving, card, tools, i)}
        tools.decided(enforced.__contains__)
    else:
        tools.decided(lambda i: False)
    return planned(tools, choice, card, constraint, param, parallel=parallel)


async def _can_enforce_alone(serving: Serving, card: ModelCard, tools: ToolSet, i: int) -> bool:
    """Return whether calls of one function can follow its schema: tried without the others, so that many functions take
    no longer than all of them together."""
    function = tools.functions[i]
    alone = msgspec.structs.replace(tools, functions=[function], places=[tools.places[i]], of=[tools.of[i]])
    choice = ToolChoice("required", (function["name"],))
    return await _can_enforce(serving, card, alone, choice, {0}, parallel=False)


async def _can_enforce(
    serving: Serving, card: ModelCard, tools: ToolSet, choice: ToolChoice, enforced: set[int], *, parallel: bool
) -> bool:
    """Return whether calls can follow the schemas of these functions."""
    trial = msgspec.structs.replace(tools, functions=[dict(function) for function in tools.functions])
    for i in tools.open_ones:
        trial.functions[i] |= {"strict": i in enforced, "enforced": i in enforced}
    try:
        plan = planned(trial, choice, card, None, "", parallel=parallel)
        await serving.prepare(
            GenerationRequest(
                request_id="schemas",
                model=card.name,
                prompt=TokenPrompt(token_ids=(0,)),
                ending=EndingParams(max_tokens=1),
                constraint=plan.constraint,
                constraint_param="tools",
            )
        )
    except BadConstraint:
        return False
    except UnsupportedFeature:
        if card.tool_calls is None:
            raise
        return False
    return True


async def fitted(serving: Serving, asked: Asked) -> Asked:
    """Return the request with its oldest items left out, where the prompt leaves too little room and the request allows
    that."""
    if asked.reading.values["truncation"] != "auto":
        return asked
    limit = asked.card.room(asked.reading.core.get("ending.max_tokens") or 1)
    units, found = droppable(asked.items), asked

    def without(count: int) -> Asked:
        return asked.without([i for unit in units[:count] for i in unit])

    async def fits(count: int) -> bool:
        nonlocal found
        try:
            shorter = without(count) if count else asked
            ids = await serving.tokenize(shorter.prompt, asked.card.name)
        except ContextOverflow:
            return False
        except TemplateFailed:
            if not count:
                raise
            return False  # a template may want the user to begin
        if len(ids) > limit:
            return False
        found = shorter if has_images(shorter.messages) else msgspec.structs.replace(shorter, ids=ids)
        return True

    count = await fewest_left_out(len(units), fits)
    return without(len(units)) if count is None else found


def request_of(asked: Asked, id: str, seed: int) -> GenerationRequest:
    """Return the request of ``POST /v1/responses``. Raises BadRequest."""
    core, plan, values = asked.reading.core, asked.plan, asked.reading.values
    prewarms = _prewarms(values)
    sampling, ending = choosing_and_ending(core, asked.constraint_param if plan.constraint else "")
    ending = msgspec.structs.replace(ending, clamp_to_context=True, stop_in_answer=True)
    if prewarms:
        ending = msgspec.structs.replace(ending, max_tokens=0, min_tokens=0)
    wants = LOGPROBS in (values["include"] or ())
    more: dict[str, Any] = {}
    if values["background"] and asked.body.get("priority") is None:
        more["priority"] = BACKGROUND_PRIORITY
    return core.request(
        id,
        asked.prompt,
        model=asked.card.name,
        seeds=(seed,),
        sampling=sampling,
        ending=ending,
        logprobs=LogprobParams(top=values["top_logprobs"] or 0) if wants else None,
        constraint=plan.constraint,
        constraint_param=asked.constraint_param,
        constraint_behind_reasoning=plan.behind_reasoning,
        shown_tokens=plan.shown_tokens,
        **more,
    )


def head_of(asked: Asked, request: GenerationRequest, created_at: int, *, keeps: bool) -> Head:
    """Return the head of the response. ``keeps``: it is stored."""
    values, body = asked.reading.values, asked.body
    wanted = values["reasoning"] or {}
    summary = wanted.get("summary") or wanted.get("generate_summary")
    include = values["include"] or ()
    sampling = asked.card.sampling.apply(request)[0].sampling
    previous, conversation = values["previous_response_id"], id_of(values["conversation"])
    assert request.seeds is not None
    response = {
        "id": request.request_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": QUEUED if values["background"] else RUNNING,
        "background": values["background"],
        "error": None,
        "incomplete_details": None,
        "instructions": values["instructions"],
        "max_output_tokens": values["max_output_tokens"],
        "max_tool_calls": values["max_tool_calls"],
        "model": asked.card.name,
        "output": [],
        "parallel_tool_calls": values["parallel_tool_calls"],
        "previous_response_id": previous,
        "conversation": {"id": conversation} if conversation else None,
        "prompt_cache_key": _echoed(body, "prompt_cache_key"),
        "reasoning": {"effort": wanted.get("effort"), "summary": summary},
        "safety_identifier": _echoed(body, "safety_identifier"),
        "seed": request.seeds[0],
        "service_tier": "default",
        "store": keeps,
        "temperature": sampling.temperature,
        "text": _text(body, values),
        "tool_choice": values["tool_choice"] or "auto",
        "tools": asked.tools.echoed,
        "top_logprobs": values["top_logprobs"] or 0,
        "top_p": sampling.top_p,
        "truncation": values["truncation"],
        "usage": None,
        "user": _echoed(body, "user"),
        "metadata": values["metadata"] or {},
    }
    return Head(
        response=response,
        shape=asked.plan.shape,
        called=asked.tools.called,
        summarizes=summary is not None,
        encrypts=ENCRYPTED in include,
        logprobs=request.logprobs is not None,
        prewarms=_prewarms(values),
    )


def response_id(digits: str) -> str:
    """Return the id of a response of 32 hexadecimal digits."""
    return RESPONSE_ID + digits


def _prewarms(values: Mapping[str, Any]) -> bool:
    options = values["prompt_cache_options"]
    return bool(options and options["prewarm"])


def _echoed(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value if isinstance(value, str) and len(value) <= ECHOED_CHARS else None


def _text(body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    given = (values["text"] or {}).get("format")
    format = {"type": "text"} if given is None else {name: value for name, value in given.items() if value is not None}
    if format["type"] == "json_schema":
        format["strict"] = True
    verbosity = (body.get("text") or {}).get("verbosity")
    return {"format": format, "verbosity": verbosity if verbosity in ("low", "high") else "medium"}


def _variables(reading: Reading, card: ModelCard) -> dict[str, Any]:
    """Return the template's variables: those of the client before those that follow from the effort."""
    wanted = (reading.values["reasoning"] or {}).get("effort")
    return reasoning.effort_variables(wanted, card) | (reading.core.get("prompt.template_kwargs") or {})
