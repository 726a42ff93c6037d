"""``/v1/chat/completions`` and ``/chat_tokenize``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from dragoman.core.serving import Serving
from dragoman.dialects.api import Exchange, Operation
from dragoman.dialects.openai_stream import encoded
from dragoman.dialects.progress import show_asked_progress
from dragoman.dialects.tgi.body import checked, read_json
from dragoman.dialects.tgi.chat_answers import ChatTokenizeResponse, TextMessage
from dragoman.dialects.tgi.chat_fields import CHAT
from dragoman.dialects.tgi.chat_translate import report_idle
from dragoman.dialects.tgi.conversation import Conversation
from dragoman.dialects.tgi.headers import stream_headers, whole_headers
from dragoman.dialects.tgi.introspect import simple_tokens
from dragoman.dialects.tgi.state import TgiState
from dragoman.dialects.tgi.v1_events import READY, send


class Chat:
    """The handlers, with what they share."""

    def __init__(self, service: TgiState) -> None:
        self._service = service

    async def chat_completions(self, serving: Serving, exchange: Exchange) -> None:
        """``POST /v1/chat/completions``."""
        await self.answer(serving, exchange, await read_json(exchange))

    async def answer(self, serving: Serving, exchange: Exchange, body: Any) -> None:
        """The same with a body that has been read."""
        conversation = await self._read(serving, exchange, body)
        if conversation.streams:
            await self._stream(exchange, conversation)
        else:
            await self._whole(exchange, conversation)

    async def predicted(self, serving: Serving, exchange: Exchange, values: Mapping[str, Any]) -> str:
        """The answer to checked values as one text, for those who have no place for a message: a call is the JSON of
        its arguments. Neither counted nor given a permit here."""
        conversation = Conversation(self._service, serving, exchange, values)
        await conversation.prepare()
        message = (await conversation.whole()).choices[0].message
        return message.content if isinstance(message, TextMessage) else message.tool_calls[0].function.arguments

    async def get_chat_tokenize(self, serving: Serving, exchange: Exchange) -> None:
        """``POST /chat_tokenize``: the prompt that a chat comes to, and its tokens."""
        conversation = await self._read(serving, exchange, await read_json(exchange))
        await conversation.prepare()
        conversation.check()
        text = conversation.run.text
        tokens = await exchange.unless_gone(serving.tokenize_text(text, add_special_tokens=False, bounded=False))
        answer = await encoded(exchange, lambda: ChatTokenizeResponse(simple_tokens(tokens), text), in_thread=True)
        await exchange.reply(answer)

    async def _read(self, serving: Serving, exchange: Exchange, body: Any) -> Conversation:
        reading = await checked(exchange, CHAT, body)
        report_idle(exchange, reading, serving.model(None))
        return Conversation(self._service, serving, exchange, reading.values)

    async def _whole(self, exchange: Exchange, conversation: Conversation) -> None:
        service = self._service
        await conversation.prepare()
        with service.permits.take():
            answer = await exchange.unless_gone(conversation.whole())
        # The permit is free before the client can know that it has its answer, and ask again.
        headers = whole_headers(service.settings.compute_type, conversation.run, exchange.elapsed_s)
        body = await encoded(exchange, lambda: answer, in_thread=conversation.shows_logprobs)
        await exchange.reply(body, headers=headers)

    async def _stream(self, exchange: Exchange, conversation: Conversation) -> None:
        show_asked_progress(exchange, conversation.stream_options)
        await send(
            exchange,
            self._chunks(conversation),
            lambda: stream_headers(self._service.settings.compute_type, len(conversation.run.text)),
            in_band=self._service.quirks.stream_errors_in_band,
        )

    async def _chunks(self, conversation: Conversation) -> AsyncGenerator[bytes, None]:
        await conversation.prepare()
        yield READY
        with self._service.permits.take():
            async with aclosing(conversation.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk


def operations(service: TgiState) -> tuple[Operation, ...]:
    """Chats, and how one is tokenized."""
    routes = Chat(service)
    return (
        Operation(
            method="POST",
            path="/v1/chat/completions",
            summary="Answer a conversation.",
            handler=routes.chat_completions,
            table=CHAT,
        ),
        Operation(
            method="POST",
            path="/chat_tokenize",
            summary="The prompt of a conversation, and its tokens.",
            handler=routes.get_chat_tokenize,
            table=CHAT,
        ),
    )
