"""The generation operations: a prompt, a batch of prompts, a conversation; whole or as a stream."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING

from dragoman.core.caller import current_caller
from dragoman.core.catalog import ModelState, listed
from dragoman.core.errors import BadRequest, DragomanError, Forbidden, ModelNotFound
from dragoman.core.events import FinishReason, GenerationDone, PromptReady, TextDelta
from dragoman.core.request import GenerationRequest, Prompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import CoreParams, Reading, Table
from dragoman.dialects.locallab import conversation, render
from dragoman.dialects.locallab.errors import TooOften
from dragoman.dialects.locallab.fields import BATCH, CHAT, GENERATE
from dragoman.dialects.locallab.instructions import Instructions
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.dialects.locallab.translate import StreamFormat, core_params, stream_format
from dragoman.dialects.multi_prompt import generate_all

if TYPE_CHECKING:
    from dragoman.core.rate_windows import RateWindow


class NothingLoaded(BadRequest):
    """No model is loaded."""


class Generating:
    """Handlers of the generation paths. ``limiter``: the rate limit of each caller."""

    def __init__(self, settings: LocalLabSettings, instructions: Instructions, limiter: Limiter) -> None:
        self._settings, self._instructions, self._limiter = settings, instructions, limiter

    async def generate(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /generate``."""
        await self._one(serving, context, GENERATE, "sse")

    async def generate_stream(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /generate/stream``."""
        await self._one(serving, context, GENERATE, "raw", always=True)

    async def chat(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /chat``."""
        await self._one(serving, context, CHAT, "dual")

    async def chat_stream(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /chat/stream``."""
        await self._one(serving, context, CHAT, "json", always=True)

    async def batch(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /generate/batch``."""
        reading = await context.read(BATCH, any_content_type=True)
        headers = self._admit(context)
        core, card, used = await self._asked(serving, context, reading, BATCH)
        texts = core.get("prompt.text")
        prompts = [await self._prompt(serving, core.deciding({"prompt": text}), card) for text in texts]
        requests = [core.request(f"{context.request_id}-{place}", prompt) for place, prompt in enumerate(prompts)]
        results = await context.unless_gone(generate_all(serving, requests)) if requests else []
        await context.reply(render.batched(results, card.name), headers=headers | used)

    async def _one(
        self, serving: Serving, context: RequestContext, table: Table, default: StreamFormat, *, always: bool = False
    ) -> None:
        reading = await context.read(table, any_content_type=True)
        values = reading.values
        headers = self._admit(context)
        core, card, used = await self._asked(serving, context, reading, table)
        request = core.request(context.request_id, await self._prompt(serving, core, card))
        headers |= used
        if always or values["stream"]:
            form = stream_format(values, context.headers.get("accept", ""), default)
            await _stream(serving, context, request, render.writer(form, role=table is CHAT), headers)
            return
        result = await context.unless_gone(serving.generate(request))
        answer = render.chatted if table is CHAT else render.generated
        await context.reply(answer(result, card.name), headers=headers)

    def _admit(self, context: RequestContext) -> dict[str, str]:
        """Count a request of the caller. Raises TooOften."""
        return {} if context.explains else self._limiter.admit(current_caller.get().share_key)

    async def _asked(
        self, serving: Serving, context: RequestContext, reading: Reading, table: Table
    ) -> tuple[CoreParams, ModelCard, dict[str, str]]:
        """Return the parameters, the model, and a header that names the current model where another one was requested.

        A known model that is not loaded is loaded and becomes the current one, where the caller may do that.
        """
        core = core_params(reading, self._settings)
        asked, catalog = core.get("model"), serving.catalog
        if asked is not None:
            entry = catalog.find(asked)
            if entry is None and not self._settings.locallab_lenient_model_id:
                there = listed(each.id for each in catalog.entries())
                raise ModelNotFound(f"model not found: {asked[:256]}; there are: {there}", param="model_id")
            if entry is not None and entry.state is not ModelState.LOADED:
                if "admin" not in context.scopes:
                    raise Forbidden(f"Loading the model {entry.id} needs an API key with the scope admin.")
                entry = await context.unless_gone(catalog.load(entry.id, wait=True))
            elif entry is not None and not context.explains:
                await context.unless_gone(catalog.use(entry.id))
            named = None if entry is None else entry.id
        else:
            named = None
        if named is None and not context.explains:
            await context.unless_gone(catalog.use(None))
        if named is None and catalog.current() is None:
            hint = ". Please load a model first using POST /models/load." if table is GENERATE else ""
            raise NothingLoaded(f"No model is currently loaded{hint}")
        card = serving.model(named)
        used = {"x-model-used": card.name} if asked is not None and named is None else {}
        system = core.get("prompt.system")
        if system is None and conversation.uses_template(self._settings.locallab_prompt_mode, card):
            system = await context.run_blocking(lambda: self._instructions.of(card.name), "disk")
        return core.deciding({"model": card.name, "prompt.system": system or ""}), card, used

    async def _prompt(self, serving: Serving, core: CoreParams, card: ModelCard) -> Prompt:
        with_template = conversation.uses_template(self._settings.locallab_prompt_mode, card)
        system, messages, text = core.get("prompt.system"), core.get("prompt.messages"), core.get("prompt")
        if messages is not None:
            messages = conversation.chat_messages(messages, system, card)
            if with_template:
                return await conversation.templated(serving, messages, card.name)
            return conversation.flattened(messages)
        if with_template:
            return await conversation.templated(serving, conversation.prompt_messages(text, system), card.name)
        return conversation.raw_prompt(text, system)


async def _stream(
    serving: Serving,
    context: RequestContext,
    request: GenerationRequest,
    writer: render.Writer,
    headers: dict[str, str],
) -> None:
    """Answer with a stream. A failure before the first event is an ordinary error with its own status."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        finish, message = FinishReason.ERROR, ""
        try:
            async with aclosing(serving.stream(request)) as events:
                async for event in events:
                    match event:
                        case PromptReady():
                            yield b""
                        case TextDelta():
                            if event.finish is not None:
                                finish, message = event.finish, event.message
                            for chunk in writer.text(event.text):
                                yield chunk
                        case GenerationDone():
                            for chunk in writer.end(render.finish_reason(finish, message), event.usage):
                                yield chunk
        except DragomanError as error:
            if not context.started:
                raise
            context.fault = error
            yield writer.fail(error)

    await context.stream(chunks(), content_type=writer.content_type, headers=headers)


MINUTE_S = 60
SECOND_S = 1


class Limiter:
    """At most ``per_minute`` requests admitted within any 60 s, and ``burst`` within any one second, for each caller.

    Refused requests are not counted. ``per_minute`` 0 is no limit: it lifts the burst limit as well. ``burst`` 0 is no
    limit within a second. ``clock`` gives seconds.
    """

    def __init__(self, per_minute: int, burst: int, clock: Callable[[], float]) -> None:
        self._limits = ((per_minute, MINUTE_S), (burst, SECOND_S)) if per_minute else ()
        self._clock = clock

    @cached_property
    def windows(self) -> tuple[tuple[int, RateWindow], ...]:
        """Each limit with its window; the one of a minute first. Made at the first request, for its import is slow."""
        from dragoman.core.rate_windows import RateWindow

        return tuple((limit, RateWindow(span_s, self._clock)) for limit, span_s in self._limits if limit)

    def admit(self, caller: str) -> dict[str, str]:
        """Count one request of the caller. Returns the headers with the remaining quota; raises TooOften."""
        if not self._limits:
            return {}
        if not all(window.has_room(caller, limit) for limit, window in self.windows):
            wait_s = max(window.wait_s(caller, limit) for limit, window in self.windows)
            raise TooOften(wait_s, self._headers(caller))
        for limit, window in self.windows:
            window.take(caller, limit)
        return self._headers(caller)

    def _headers(self, caller: str) -> dict[str, str]:
        limit, window = self.windows[0]
        return {
            "x-ratelimit-limit": str(limit),
            "x-ratelimit-remaining": str(window.remaining(caller, limit)),
            "x-ratelimit-reset": str(math.ceil(window.oldest_s(caller))),
        }
