"""The operations of the Ollama dialect that answer prompts: read, find the model, translate, generate, render."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from dragoman.core.errors import ContextOverflow, DragomanError, TemplateFailed
from dragoman.core.events import GenerationDone, PromptReady, TextDelta
from dragoman.core.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.field import Reading, Table
from dragoman.dialects.ollama import residence
from dragoman.dialects.ollama.body import read_json
from dragoman.dialects.ollama.derived import DerivedModel, DerivedModels
from dragoman.dialects.ollama.durations import parsed
from dragoman.dialects.ollama.fields import CHAT, CREATE, GENERATE
from dragoman.dialects.ollama.options import OPTIONS
from dragoman.dialects.ollama.render import JSON, NDJSON, Clock, Head, Lines, fault
from dragoman.dialects.ollama.settings import OllamaSettings
from dragoman.dialects.ollama.translate import Translated, chat_request, droppable, generate_request
from dragoman.dialects.openai_stream import stream_answer
from dragoman.dialects.tools import PLAIN
from dragoman.dialects.truncation import fewest_left_out, ranges

WITHOUT_IDS = "zed/"
"""The user agents whose calls have one key only."""


class Answering:
    """The handlers. They need the operator's settings."""

    def __init__(self, settings: OllamaSettings, derived: DerivedModels) -> None:
        """Raises DragomanError for options that are none."""
        self._settings, self._derived = settings, derived
        self._options = operator_options(settings)

    async def generate(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/generate``."""
        reading, derived = await self._read(serving, context, GENERATE)
        values, name = reading.values, reading.core.get("model")
        base = name if derived is None else derived.base
        clock = Clock(context.elapsed_s)
        if not values["prompt"] and not values["suffix"] and not values["_debug_render_only"]:
            await self._reside(serving, context, reading, name, base, clock, is_chat=False)
            return
        card = await self._model(serving, context, base)
        clock.loaded()
        history = () if derived is None or values["context"] else _history(derived)
        found = generate_request(reading, context.request_id, card, history)
        if values["context"]:
            found = await self._continued(serving, found, values["context"])
        await self._answer(serving, context, reading, found, name, clock, is_chat=False)

    async def chat(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/chat``."""
        reading, derived = await self._read(serving, context, CHAT)
        values, name = reading.values, reading.core.get("model")
        base = name if derived is None else derived.base
        clock = Clock(context.elapsed_s)
        messages = reading.core.get("prompt.messages")
        if not messages:
            await self._reside(serving, context, reading, name, base, clock, is_chat=True)
            return
        card = await self._model(serving, context, base)
        clock.loaded()
        found = chat_request(reading, context.request_id, card, messages)
        truncates = values["truncate"]
        if truncates is None:
            truncates = self._settings.ollama_truncate == "oldest"
        dropped = 0
        if truncates:
            found, dropped = await context.unless_gone(self._shortened(serving, reading, found, card, messages))
        await self._answer(serving, context, reading, found, name, clock, is_chat=True, dropped=dropped)

    async def _read(
        self, serving: Serving, context: RequestContext, table: Table
    ) -> tuple[Reading, DerivedModel | None]:
        """Return the checked body, with the options of the operator and of the derived model that it names where it has
        none; and that model."""
        body, derived = await read_json(context), None
        if isinstance(body, dict):
            name = body.get("model")
            derived = residence.derived_of(serving, self._derived, name) if isinstance(name, str) else None
            if isinstance(body.get("options"), dict | None):
                given = {name: value for name, value in (body.get("options") or {}).items() if value is not None}
                body = {**body, "options": {**(derived.parameters if derived else {}), **self._options, **given}}
            if derived is not None:
                body = _with_own(body, derived, is_chat=table is CHAT)
        return await context.check(table, body), derived

    async def _model(self, serving: Serving, context: RequestContext, name: str | None) -> ModelCard:
        """Return the card of the model that answers."""
        return await residence.model_of(serving, context, self._settings, name)

    async def _reside(
        self,
        serving: Serving,
        context: RequestContext,
        reading: Reading,
        name: str | None,
        base: str | None,
        clock: Clock,
        *,
        is_chat: bool,
    ) -> None:
        """Load a model, or unload it, for a request without a prompt. ``base``: the operator's model of the name."""
        keep_alive = reading.values["keep_alive"]
        card: ModelCard | None = None
        if keep_alive is not None and parsed(keep_alive) == 0:
            reason = "unload"
            found = None if base is None else residence.find(serving, base)
            if found is None or found.served is not None:
                await residence.unload(serving, context, None if found is None else found.served)
        else:
            reason = "load"
            card = await self._model(serving, context, base)
            residence.keep_as_asked(serving, context, self._settings, reading)
        head = Head(model=name or (card or serving.model(None)).name, is_chat=is_chat, shape=PLAIN, clock=clock)
        await context.reply(head.line(done=reason), content_type=JSON)

    async def _answer(
        self,
        serving: Serving,
        context: RequestContext,
        reading: Reading,
        found: Translated,
        name: str | None,
        clock: Clock,
        *,
        is_chat: bool,
        dropped: int = 0,
    ) -> None:
        request, values = found.request, reading.values
        residence.keep_as_asked(serving, context, self._settings, found.reading)
        head = Head(
            model=name or request.model or "",
            is_chat=is_chat,
            shape=found.shape,
            clock=clock,
            has_context=not is_chat and not values["raw"] and not values["suffix"],
            shows_thinking=found.shows_thinking,
            has_call_ids=not context.headers.get("user-agent", "").lower().startswith(WITHOUT_IDS),
            has_logprobs=request.logprobs is not None,
            truncated_messages=dropped,
        )
        if values["_debug_render_only"]:
            text = await context.unless_gone(_rendered(serving, request))
            await context.reply(head.line(done="", debug={"rendered_template": text}), content_type=JSON)
            return
        assert request.seeds is not None
        headers = {"x-dragoman-seed": str(request.seeds[0])}
        if values["stream"]:
            lines = Lines(head)
            await stream_answer(
                serving,
                context,
                [request],
                [ChatStream(lines)],
                end=lines.end,
                fault=fault,
                headers=headers,
                content_type=NDJSON,
            )
        else:
            answer = await context.unless_gone(_whole(serving, request, Lines(head, whole=True)))
            await context.reply(answer, content_type=JSON, headers=headers)

    async def _continued(self, serving: Serving, found: Translated, context_ids: tuple[int, ...]) -> Translated:
        """Return the request behind an earlier conversation: its tokens, then those of the new turn without BOS."""
        prompt = found.request.prompt
        if isinstance(prompt, ChatPrompt):
            prompt = TextPrompt(text=await serving.render(prompt), add_special_tokens=False)
        ids = await serving.tokenize(prompt)
        if ids[0] == (await serving.tokenize(TextPrompt(text="")))[0]:
            ids = ids[1:]
        request = msgspec.structs.replace(found.request, prompt=TokenPrompt(token_ids=(*context_ids, *ids)))
        return found._replace(request=request)

    async def _shortened(
        self, serving: Serving, reading: Reading, found: Translated, card: ModelCard, messages: Any
    ) -> tuple[Translated, int]:
        """Return the chat without the fewest of its messages, oldest first, that it has to lack to leave room for an
        answer, and their number.

        Raises ContextOverflow where it is too long without all of them.
        """
        groups, best, tokens = droppable(messages), found, 0

        async def fits(count: int) -> bool:
            nonlocal best, tokens
            shorter = _without(reading, found, card, messages, groups[:count])
            try:
                tokens = len(await serving.tokenize(shorter.request.prompt))
            except ContextOverflow as error:
                tokens = max(error.prompt_tokens or 0, card.context_tokens)
            except TemplateFailed:
                if not count:
                    raise
                return False  # a template may want the user to begin
            if tokens >= card.context_tokens:
                return False
            best = shorter
            return True

        count = await fewest_left_out(len(groups), fits)
        if count is None:
            raise ContextOverflow(
                "the prompt is too long", param="messages", prompt_tokens=tokens, context_tokens=card.context_tokens
            )
        return best, sum(map(len, groups[:count]))


def _without(
    reading: Reading, found: Translated, card: ModelCard, messages: Any, groups: Sequence[tuple[int, ...]]
) -> Translated:
    """Return a chat without some groups of its messages."""
    gone = {place for group in groups for place in group}
    if not gone:
        return found
    kept = [message for place, message in enumerate(messages) if place not in gone]
    shorter = chat_request(reading, found.request.request_id, card, kept)
    cut = f"messages {ranges(sorted(gone))}"
    return shorter._replace(reading=msgspec.structs.replace(shorter.reading, truncated=(cut,)))


def _with_own(body: dict[str, Any], derived: DerivedModel, *, is_chat: bool) -> dict[str, Any]:
    """Return a body with the system text of its derived model, and the messages before those of a chat."""
    if not is_chat:
        plain = body.get("system") or body.get("raw") or body.get("suffix")
        return body if plain or not derived.system else {**body, "system": derived.system}
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        return body
    first = given[0].get("role") if isinstance(given[0], dict) else None
    has_system = isinstance(first, str) and first.lower() == "system"
    own = [{"role": "system", "content": derived.system}] if derived.system and not has_system else []
    return {**body, "messages": [*own, *derived.messages, *given]}


def _history(derived: DerivedModel) -> tuple[dict[str, Any], ...]:
    """Return the messages that precede the turn of a prompt, as they were checked when the model was made."""
    return tuple(CREATE.read({"messages": derived.messages}).values["messages"] or ())


def operator_options(settings: OllamaSettings) -> dict[str, Any]:
    """Return the operator's options. Raises DragomanError for what is none, or has no effect."""
    try:
        options = msgspec.json.decode(settings.ollama_options.encode(), type=dict[str, Any])
        reading = OPTIONS.read(options, strict=True)
    except msgspec.DecodeError as error:
        message = f"--ollama-options {settings.ollama_options:.80}: it has to be an object in JSON ({error})"
        raise DragomanError(message) from None
    except DragomanError as error:
        raise DragomanError(f"--ollama-options: {error}") from None
    if reading.reported:
        raise DragomanError(f"--ollama-options: {reading.reported[0]} has no effect here")
    try:
        parsed(settings.ollama_keep_alive)
    except ValueError as error:
        raise DragomanError(f"--ollama-keep-alive: {error}") from None
    return options


async def _rendered(serving: Serving, request: GenerationRequest) -> str:
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        return await serving.render(prompt)
    return await serving.detokenize(await serving.tokenize(prompt))


async def _whole(serving: Serving, request: GenerationRequest, lines: Lines) -> bytes:
    """Return the one object of an answer that is not streamed."""
    stream = ChatStream(lines)
    async with aclosing(_events(serving, request)) as events:
        async for event in events:
            match event:
                case TextDelta():
                    list(stream.delta(event))
                case PromptReady():
                    list(stream.prompt(event))
                case GenerationDone():
                    return b"".join(lines.end([event.usage]))
    raise AssertionError("a generation ends with its counts")


def _events(serving: Serving, request: GenerationRequest) -> AsyncGenerator[Any, None]:
    return serving.stream(request)
