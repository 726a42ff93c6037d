"""The operations of the Friendli dialect, the same on each of its surfaces: read, translate, generate, render."""

from __future__ import annotations

import contextlib
import enum
import functools
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.core.entropy import token_hex, wall_time
from dragoman.core.errors import AdapterNotFound, BadRequest, Forbidden, ModelNotFound
from dragoman.core.request import GenerationRequest, TextPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Operation, RequestContext, RouteHint
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.completion_stream import CompletionStream
from dragoman.dialects.field import Reading, Table
from dragoman.dialects.friendli import chat_fields, render
from dragoman.dialects.friendli.errors import error_event
from dragoman.dialects.friendli.fields import completions_table
from dragoman.dialects.friendli.settings import FriendliSettings
from dragoman.dialects.friendli.translate import (
    chat_prompt,
    chat_request,
    completion_requests,
    without_effect,
)
from dragoman.dialects.model_list import listed_models
from dragoman.dialects.multi_prompt import generate_all
from dragoman.dialects.openai_stream import encoded, sse, stream_answer
from dragoman.dialects.shared_fields import show_asked_progress
from dragoman.dialects.tools import tool_choice, tool_plan


class Surface(enum.StrEnum):
    """The surface that a request arrived on; the value begins its path."""

    SERVERLESS = "/serverless/v1"
    DEDICATED = "/dedicated/v1"
    CONTAINER = "/v1"


class Target(msgspec.Struct, frozen=True):
    """The model a request goes to; ``shown`` is its name in the answer, None where the answer has none."""

    card: ModelCard
    shown: str | None


def target(surface: Surface, name: str | None, serving: Serving) -> Target:
    """Return the target that ``model`` names. Raises ModelNotFound.

    Under /dedicated it is an endpoint, which answers name, or one with the route of an adapter after a colon. In a
    container it is the route of an adapter; there the names of served models are good too.
    """
    if name is None:
        return Target(serving.model(None), None)
    try:
        return Target(serving.model(name), name)
    except ModelNotFound:
        if surface is not Surface.DEDICATED or ":" not in name:
            raise
        endpoint, _, route = name.partition(":")
        card = serving.model(endpoint)
    with contextlib.suppress(AdapterNotFound):
        if card.base is None:  # an adapter has none of its own
            return Target(serving.adapter(route), endpoint)
    raise AdapterNotFound(f"The endpoint '{endpoint[:256]}' has no adapter '{route[:256]}'.", param="model")


def check_team(surface: Surface, team: str | None, teams: Collection[str]) -> None:
    """Raise Forbidden for a team that the operator has not named, where any team is named."""
    if surface is not Surface.CONTAINER and team is not None and teams and team not in teams:
        raise Forbidden("The team in 'X-Friendli-Team' is not known here.")


_SDK = "speakeasy-sdk/"
_FRIENDLI_SDK = re.compile(r"speakeasy-sdk/python.*\bfriendli\S*")
_OLD_SDK = re.compile(r"speakeasy-sdk/python 0\.3\.(\d{1,4}) ")
_LAST_OLD_PATCH = 21

# `friendli-client` sends all but the last with every request, null or not; the vendor's load tester sends that one.
_OLD_KEYS = (
    "include_output_logits",
    "include_output_logprobs",
    "soft_prompts",
    "position_ids",
    "generation_offset",
    "timeout_microseconds",
    "no_persist",
)
_OWN_KEYS = (
    "tokens",
    "bad_words",
    "bad_word_tokens",
    "stop_tokens",
    "max_total_tokens",
    "min_total_tokens",
    "no_repeat_ngram",
    "forced_output_tokens",
    "embedding_to_replace",
    "eos_token",
    "xtc_threshold",
    "xtc_probability",
)


def claims(call: RouteHint) -> bool:
    """Return whether a call of a bare path is surely a Friendli client's; asked only of servers that tell clients
    apart."""
    if call.dialect != "auto":
        return False
    if _FRIENDLI_SDK.fullmatch(call.headers.get("user-agent", "")):
        return True
    return call.has(*_OLD_KEYS, *_OWN_KEYS) or (call.has("seed") and isinstance(call.body["seed"], list))


def reads_events(headers: Mapping[str, str], body: Any) -> bool:
    """Return whether the client that sent this reads ``token_sampled`` and ``complete`` events instead of chunks."""
    agent = headers.get("user-agent", "")
    if old := _OLD_SDK.match(agent):
        return int(old[1]) <= _LAST_OLD_PATCH
    if agent.startswith(_SDK):
        return False
    return isinstance(body, dict) and any(key in body for key in _OLD_KEYS)


class SurfaceApi:
    """The operations of one surface. Handlers are its methods: they need the operator's settings."""

    def __init__(self, surface: Surface, settings: FriendliSettings) -> None:
        self._surface, self._settings = surface, settings
        required, max_n = surface is not Surface.CONTAINER, settings.friendli_max_n
        self._completions = completions_table(model_required=required, max_n=max_n)
        self._chat = chat_fields.chat_table(model_required=required, max_n=max_n)
        self._tokenize = chat_fields.tokenize_table(model_required=required)
        self._detokenize = chat_fields.detokenize_table(model_required=required)
        self._render = chat_fields.render_table(model_required=required)

    def operations(self) -> tuple[Operation, ...]:
        """Return all operations of the surface."""
        where = f"Friendli, {self._surface.name.lower()}"
        posts = (
            ("completions", f"Continue one prompt or several ({where}).", self.completions, self._completions),
            ("chat/completions", f"Answer a conversation ({where}).", self.chat_completions, self._chat),
            ("tokenize", f"The tokens of a text ({where}).", self.tokenize, self._tokenize),
            ("detokenize", f"The text of tokens ({where}).", self.detokenize, self._detokenize),
            ("chat/render", f"The prompt that a conversation becomes ({where}).", self.render, self._render),
        )
        prefix = self._surface.value
        return (
            *(
                Operation(
                    method="POST", path=f"{prefix}/{path}", summary=summary, handler=handler, table=table, claims=claims
                )
                for path, summary, handler, table in posts
            ),
            Operation(
                method="GET",
                path=f"{prefix}/models",
                summary=f"List the served models ({where}).",
                handler=self.models,
                claims=claims,
            ),
        )

    async def completions(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST {surface}/completions``, answered in the way that the client reads streams."""
        asked = await self._asked(self._completions, serving, context)
        values, found = asked.reading.values, asked.found
        head = _head(values, found, "cmpl-")
        requests = completion_requests(asked.reading, head.id, found.card, elapsed_s=context.elapsed_s)
        await _check_empty(serving, requests)
        wanted = render.Wanted(rich=values["logprobs"] is not None, flat=values["include_output_logprobs"])
        if not values["stream"]:
            results = await context.unless_gone(generate_all(serving, requests))
            in_thread = wanted.rich or wanted.flat
            await context.reply(
                await encoded(context, lambda: render.completion(head, results, wanted), in_thread=in_thread)
            )
            return
        n = values["n"]
        show_asked_progress(context, values["stream_options"])
        if reads_events(context.headers, asked.body):
            events = [render.EventStream(j * n, n, wanted) for j in range(len(requests))]
            end = functools.partial(render.complete, events)
            await stream_answer(serving, context, requests, events, end=end, fault=_fault)
        else:
            shaper = render.CompletionChunks(head, wanted)
            chunks = [CompletionStream(shaper, n, j * n) for j in range(len(requests))]
            end = functools.partial(render.stream_end, head, render.COMPLETION)
            await stream_answer(serving, context, requests, chunks, end=end, fault=_fault)

    async def chat_completions(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST {surface}/chat/completions``."""
        asked = await self._asked(self._chat, serving, context)
        values, found = asked.reading.values, asked.found
        parse = values["parse_reasoning"]
        separate = self._settings.friendli_parse_reasoning if parse is None else parse
        _report_unread(asked, context, separate=separate)
        head = _head(values, found, "chatcmpl-")
        core = asked.reading.core
        functions = core.get("tools.functions") or ()
        plan = tool_plan(
            functions,
            tool_choice(core.get("tools.choice"), [function["name"] for function in functions]),
            found.card,
            parallel=core.get("tools.parallel"),
            separate_reasoning=separate,
        )
        request = chat_request(asked.reading, head.id, found.card, plan, elapsed_s=context.elapsed_s)
        shown = render.Shown(plan.shape, values["logprobs"], values["include_reasoning"])
        if values["stream"]:
            show_asked_progress(context, values["stream_options"])
            streams = [ChatStream(render.ChatChunks(head, shown), request.n)]
            end = functools.partial(render.stream_end, head, render.CHAT_CHUNK)
            await stream_answer(serving, context, [request], streams, end=end, fault=_fault)
        else:
            result = await context.unless_gone(serving.generate(request))
            in_thread = shown.logprobs or plan.shape.format is not None
            await context.reply(
                await encoded(context, lambda: render.chat_completion(head, result, shown), in_thread=in_thread)
            )

    async def tokenize(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST {surface}/tokenize``."""
        asked = await self._asked(self._tokenize, serving, context)
        values, found = asked.reading.values, asked.found
        tokens = await context.unless_gone(serving.tokenize_text(values["prompt"], found.card.name))
        await context.reply({"tokens": [token.token_id for token in tokens]})

    async def detokenize(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST {surface}/detokenize``."""
        asked = await self._asked(self._detokenize, serving, context)
        values, found = asked.reading.values, asked.found
        detokenizing = serving.detokenize(values["tokens"], found.card.name, skip_special_tokens=True)
        text = await context.unless_gone(detokenizing)
        await context.reply({"text": text})

    async def render(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST {surface}/chat/render``: what ``chat_completions`` would run."""
        asked = await self._asked(self._render, serving, context)
        core, found = asked.reading.core, asked.found
        functions = core.get("tools.functions") or ()
        plan = tool_plan(functions, tool_choice(None, [function["name"] for function in functions]), found.card)
        _report_unread(asked, context)
        text = await context.unless_gone(serving.render(chat_prompt(core, plan.tools, found.card), found.card.name))
        await context.reply({"text": text})

    async def models(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET {surface}/models``."""
        self._check_team(context)
        await context.reply({"object": "list", "data": _models(serving, context.scopes)})

    async def _asked(self, table: Table, serving: Serving, context: RequestContext) -> Asked:
        """Return the checked body and its model. The team is checked first: callers without access get no errors of the
        body."""
        self._check_team(context)
        body = await context.read_json(any_content_type=True)
        reading = await context.check(table, body)
        return Asked(body, reading, target(self._surface, reading.core.get("model"), serving))

    def _check_team(self, context: RequestContext) -> None:
        check_team(self._surface, context.headers.get("x-friendli-team"), self._settings.friendli_team)


def _models(serving: Serving, scopes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the list of models: those in memory, since clients insist on properties that only these have."""
    listed = listed_models(serving, scopes)
    return [render.model(each.card) | {"status": each.status} for each in listed if each.card is not None]


class Asked(NamedTuple):
    """A request: its body as received, the checked values, and the target model."""

    body: Any
    reading: Reading
    found: Target


def _report_unread(asked: Asked, context: RequestContext, *, separate: bool = False) -> None:
    reading = asked.reading
    if unread := without_effect(reading.values, asked.found.card, separate=separate):
        context.report(msgspec.structs.replace(reading, reported=(*reading.reported, *unread)))


async def _check_empty(serving: Serving, requests: tuple[GenerationRequest, ...]) -> None:
    """Raise BadRequest for a prompt without tokens; other dialects begin with the model's first token."""
    for request in requests:
        prompt = request.prompt
        if not isinstance(prompt, TextPrompt) or prompt.text.strip():
            continue
        if not await serving.tokenize_text(prompt.text, request.model):
            raise BadRequest("The prompt has no tokens.", param="prompt")


def _head(values: dict[str, Any], found: Target, prefix: str) -> render.Envelope:
    options = values["stream_options"]
    counted = bool(options and options["include_usage"])
    return render.Envelope(prefix + token_hex(16), found.shown, int(wall_time()), counted)


def _fault(error: Any) -> tuple[bytes, ...]:
    return (sse(error_event(error)),)
