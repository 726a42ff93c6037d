"""The operations of the Anthropic dialect: read, translate, generate, render."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.core.entropy import random_bits, token_hex
from dragoman.core.errors import ModelNotFound
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.anthropic import models, thinking
from dragoman.dialects.anthropic.batches import page_of
from dragoman.dialects.anthropic.fields import COUNT_TOKENS, MESSAGES
from dragoman.dialects.anthropic.render import Head, MessageEvents, fault, whole_message
from dragoman.dialects.anthropic.settings import AnthropicSettings
from dragoman.dialects.anthropic.stored_images import read_images
from dragoman.dialects.anthropic.translate import messages_request
from dragoman.dialects.api import Operation, RequestContext, RouteHint
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.field import Reading
from dragoman.dialects.model_list import listed_model, listed_models
from dragoman.dialects.openai_stream import encoded, stream_answer
from dragoman.dialects.stored_files import StoredFiles

CLAUDE = "claude-"
VERSION = "anthropic-version"


def is_client(headers: Mapping[str, str]) -> bool:
    """Return whether the headers of a call are surely those of one of Anthropic's clients."""
    return VERSION in headers


def _has_version(call: RouteHint) -> bool:
    return is_client(call.headers)


class Api:
    """All operations. Handlers are its methods: they need the operator's settings."""

    def __init__(self, settings: AnthropicSettings) -> None:
        self._claude = settings.claude_model

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations."""
        return (
            Operation(
                method="POST",
                path="/v1/messages",
                summary="Answer a conversation.",
                handler=self.messages,
                table=MESSAGES,
            ),
            Operation(
                method="POST",
                path="/v1/messages/count_tokens",
                summary="Count the tokens of the prompt that a conversation would have.",
                handler=self.count_tokens,
                table=COUNT_TOKENS,
            ),
            Operation(
                method="GET",
                path="/v1/models",
                summary="List the served models.",
                handler=self.models,
                claims=_has_version,
            ),
            Operation(
                method="GET",
                path="/v1/models/{id:path}",
                summary="Describe a served model.",
                handler=self.model,
                claims=_has_version,
            ),
        )

    async def messages(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/messages``."""
        reading = await context.read(MESSAGES)
        values = reading.values
        card = self._card(serving, reading.core.get("model"))
        given = reading.core.get("seeds")
        seed = random_bits(63) if given is None else given[0]
        id = "msg_" + token_hex(12)
        files = await self._files(serving, context, reading, card)
        request, shape, reading = messages_request(reading, id, seed, card, files)
        context.report(reading)
        wanted = values["thinking"]
        head = Head(
            id=id,
            model=card.name,
            max_tokens=values["max_tokens"],
            shape=shape,
            shows_thinking=thinking.is_on(wanted),
            hides_text=bool(wanted) and wanted["display"] == "omitted",
            edits=values["context_management"] is not None,
            diagnosed="diagnostics" in reading.reported,
        )
        headers = {"x-dragoman-seed": str(seed)}
        if values["stream"]:
            events = MessageEvents(head)
            await stream_answer(
                serving,
                context,
                [request],
                [ChatStream(events)],
                end=events.end,
                fault=lambda error: fault(error, context.request_id),
                headers=headers,
            )
        else:
            result = await context.unless_gone(serving.generate(request))
            in_thread = shape.format is not None or shape.reasoning is not None
            answer = await encoded(context, lambda: whole_message(head, result), in_thread=in_thread)
            await context.reply(answer, headers=headers)

    async def count_tokens(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/messages/count_tokens``."""
        reading = await context.read(COUNT_TOKENS)
        card = self._card(serving, reading.core.get("model"))
        files = await self._files(serving, context, reading, card)
        request, _, reading = messages_request(reading, context.request_id, None, card, files)
        context.report(reading)
        ids = await context.unless_gone(serving.tokenize(request.prompt, card.name, bounded=False))
        counted = {"input_tokens": len(ids)}
        if reading.values["context_management"] is not None:
            await context.reply({**counted, "context_management": {"original_input_tokens": len(ids)}})
        else:
            await context.reply(counted)

    async def models(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/models``."""
        limit, after_id, before_id = page_of(context.query)
        shown = models.page(
            listed_models(serving, context.scopes),
            has_batches=serving.batches.is_on,
            limit=limit,
            after_id=after_id,
            before_id=before_id,
        )
        await context.reply(shown)

    async def model(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/models/{id}``; ids may hold slashes."""
        name = context.path_params["id"]
        try:
            listed = listed_model(serving, context.scopes, name)
        except ModelNotFound:
            listed = listed_model(serving, context.scopes, self._card(serving, name).name)
        await context.reply(models.model(listed, has_batches=serving.batches.is_on))

    async def _files(
        self, serving: Serving, context: RequestContext, reading: Reading, card: ModelCard
    ) -> Mapping[str, bytes]:
        """Return the files that the messages name as images."""
        messages = reading.core.get("prompt.messages")
        return await context.unless_gone(read_images(messages, card, StoredFiles(serving.batches, context)))

    def _card(self, serving: Serving, name: str) -> ModelCard:
        """Return the model that answers to a name. Raises ModelNotFound."""
        try:
            return serving.model(name)
        except ModelNotFound:
            if name.lower().startswith(CLAUDE) and self._claude != "none":
                return serving.model(self._claude)
            raise ModelNotFound(f"model: {name[:256]}", param="model") from None
