"""The operations ``/v1/chat/completions`` and ``/chat_tokenize``, and the streams of all endpoints under ``/v1``.

A chat is one generation, or two where the model may decline to call a tool. A failure before the first event of a
stream has a status; a later failure is an event.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

import dragoman
from dragoman.core.entropy import token_hex, wall_time
from dragoman.core.errors import DragomanError
from dragoman.core.events import TextDelta
from dragoman.core.request import TextPrompt
from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext, RouteHint
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.field import CoreParams
from dragoman.dialects.field_types import FieldError
from dragoman.dialects.openai_stream import encoded
from dragoman.dialects.shared_fields import show_asked_progress
from dragoman.dialects.tgi import chat_render as render
from dragoman.dialects.tgi.body import checked, read_json, shape_fault
from dragoman.dialects.tgi.chat_fields import CHAT
from dragoman.dialects.tgi.chat_render import (
    DONE,
    ChatCompletion,
    ChatCompletionLogprobs,
    ChatTokenizeResponse,
    TextMessage,
    Usage,
    sse_fault,
)
from dragoman.dialects.tgi.chat_translate import chat_parameters, chat_text, report_idle
from dragoman.dialects.tgi.errors import Incomplete, IncompleteStream
from dragoman.dialects.tgi.generation import Generation, TgiState
from dragoman.dialects.tgi.render import EVENT_STREAM, simple_tokens, stream_headers, whole_headers
from dragoman.dialects.tgi.tools import NO_TOOL, CallReader, CallText, ToolSetup, next_call_id, tool_setup
from dragoman.dialects.tgi.translate import Parameters, check_grammar, check_parameters


class Chat:
    """The chat handlers and their shared state."""

    def __init__(self, state: TgiState) -> None:
        self._state = state

    async def chat_completions(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/chat/completions``."""
        await self.answer(serving, context, await read_json(context))

    async def answer(self, serving: Serving, context: RequestContext, body: Any) -> None:
        """Answer a chat whose body has been read."""
        conversation = await self._read(serving, context, body)
        if conversation.streams:
            await self._stream(context, conversation)
        else:
            await self._whole(context, conversation)

    async def predicted(self, serving: Serving, context: RequestContext, values: Mapping[str, Any]) -> str:
        """Return the answer to checked values as one text, for those who have no place for a message: a call is the
        JSON of its arguments. Neither counted nor given a permit here."""
        conversation = Conversation(self._state, serving, context, values)
        await conversation.prepare()
        message = (await conversation.whole()).choices[0].message
        return message.content if isinstance(message, TextMessage) else message.tool_calls[0].function.arguments

    async def get_chat_tokenize(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /chat_tokenize``: the prompt that a chat comes to, and its tokens."""
        conversation = await self._read(serving, context, await read_json(context))
        await conversation.prepare()
        conversation.check()
        text = conversation.run.text
        tokens = await context.unless_gone(serving.tokenize_text(text, add_special_tokens=False, bounded=False))
        answer = await encoded(context, lambda: ChatTokenizeResponse(simple_tokens(tokens), text), in_thread=True)
        await context.reply(answer)

    async def _read(self, serving: Serving, context: RequestContext, body: Any) -> Conversation:
        reading = await checked(context, CHAT, body)
        report_idle(context, reading, serving.model(None))
        return Conversation(self._state, serving, context, reading.values)

    async def _whole(self, context: RequestContext, conversation: Conversation) -> None:
        state = self._state
        await conversation.prepare()
        with state.permit(context):
            answer = await context.unless_gone(conversation.whole())
        # The permit is free before the client can know that it has its answer, and ask again.
        headers = whole_headers(state.settings.compute_type, conversation.run, context.elapsed_s)
        body = await encoded(context, lambda: answer, in_thread=conversation.shows_logprobs)
        await context.reply(body, headers=headers)

    async def _stream(self, context: RequestContext, conversation: Conversation) -> None:
        show_asked_progress(context, conversation.stream_options)
        await send(
            context,
            self._chunks(context, conversation),
            lambda: stream_headers(self._state.settings.compute_type, len(conversation.run.text)),
            in_band=self._state.quirks.stream_errors_in_band,
        )

    async def _chunks(self, context: RequestContext, conversation: Conversation) -> AsyncGenerator[bytes, None]:
        await conversation.prepare()
        yield READY
        with self._state.permit(context):
            async with aclosing(conversation.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk


def claims(call: RouteHint) -> bool:
    """Return whether a call of a path of OpenAI's is surely a TGI client's; asked only of servers that tell clients
    apart. `tgi` is what its documents have clients call every model, `dummy` what Hugging Face's own client does."""
    if call.dialect != "auto" or not isinstance(call.body, dict):
        return False
    model = call.body.get("model")
    if model not in ("tgi", "dummy") or call.is_model(model):
        return False
    return model == "tgi" or "hf_hub/" in call.headers.get("user-agent", "")


def operations(state: TgiState) -> tuple[Operation, ...]:
    """Return the operations: chats, and the tokens of a chat's prompt."""
    routes = Chat(state)
    return (
        Operation(
            method="POST",
            path="/v1/chat/completions",
            summary="Answer a conversation.",
            handler=routes.chat_completions,
            table=CHAT,
            claims=claims,
            extends_limit=False,
        ),
        Operation(
            method="POST",
            path="/chat_tokenize",
            summary="The prompt of a conversation, and its tokens.",
            handler=routes.get_chat_tokenize,
            table=CHAT,
        ),
    )


def answer_head(state: TgiState, prefix: str, model: str) -> render.Envelope:
    """Return the head of a new answer."""
    id = "" if state.quirks.empty_ids else prefix + token_hex(12)
    fingerprint = f"{dragoman.__version__}-{state.settings.docker_label or 'native'}"
    return render.Envelope(id, int(wall_time()), model, fingerprint)


class Conversation:
    """Await ``prepare``, then ``whole`` or iterate ``chunks``, once.

    Attributes:
        run: the generation that is the answer; another one after the model has declined to call a tool.
    """

    run: Generation

    def __init__(self, state: TgiState, serving: Serving, context: RequestContext, values: Mapping[str, Any]) -> None:
        self._state, self._serving, self._context, self._values = state, serving, context, values
        self._setup: ToolSetup | None = None
        self._asked = Parameters()
        named, served = values["model"], serving.model(None).name
        self._head = answer_head(state, "chatcmpl-", served if named in (None, "tgi") else named)

    @property
    def streams(self) -> bool:
        """Return whether ``chunks`` are requested."""
        return bool(self._values["stream"])

    @property
    def shows_logprobs(self) -> bool:
        """Return whether the answer has log-probabilities, and so may be long."""
        return bool(self._values["logprobs"])

    @property
    def usage(self) -> Usage:
        """The usage of the generation that is the answer."""
        return render.usage(self.run.input_tokens, self.run.generated_tokens)

    @property
    def stream_options(self) -> Mapping[str, Any] | None:
        """The stream options of the request."""
        options: Mapping[str, Any] | None = self._values["stream_options"]
        return options

    async def prepare(self) -> None:
        """Prepare the conversation for the first generation. Raises Fault."""
        if self._values["tools"] is not None:
            # Schemas may be large, and every stream would wait.
            self._setup = await self._context.run_blocking(
                lambda: tool_setup(self._values, CoreParams(CHAT, self._values))
            )
        try:
            self._asked = chat_parameters(self._values, self._setup, self._state.quirks)
        except FieldError as error:
            raise await shape_fault(self._context, error) from None
        await self._begin()
        if self._setup is not None and self._asked.core.get("ending.stop"):
            self.check()

    def check(self) -> None:
        """Check the rules that need no tokens, which a generation checks itself. Raises InvalidInput."""
        state = self._state
        card = self._serving.model(None)
        max_input_tokens, _ = state.settings.limits(card.context_tokens, card.encoder_context_tokens)
        is_empty = not self.run.text
        check_parameters(self._asked, state.settings, state.quirks, max_input_tokens, is_empty=is_empty)
        check_grammar(self._asked, state.settings)

    async def whole(self) -> ChatCompletion:
        """Return the whole answer. Raises ToolFault for a call that was cut."""
        if self._setup is not None:
            call = await self._call(self._setup)
            if call is not None:
                arguments = call.compact()
                finish = "stop" if self._state.quirks.tool_finish_stop else "tool_calls"
                called = render.call_message(call.name or "", arguments)
                return render.chat_completion(self._head, called, self._all_logprobs(), finish, self.usage)
        await self.run.whole()
        sequence = self.run.chosen
        finish = render.finish_reason(sequence.finish, self._state.quirks)
        message = render.text_message(self._reader.whole(sequence))
        return render.chat_completion(self._head, message, self._all_logprobs(), finish, self.usage)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of the answer, up to its counts where they are requested."""
        if self._setup is not None:
            async with aclosing(self._call_chunks(self._setup)) as chunks:
                async for chunk in chunks:
                    yield chunk
        if self._setup is None:
            stream = ChatStream(render.ChatChunks(self._head, self._state.quirks, self._logprobs))
            reader = self._reader
            stream.begin([reader])
            async with aclosing(self.run.steps()) as steps:
                async for step in steps:
                    for chunk in stream.delta(step.delta(reader.text(step.piece))):
                        yield chunk
        options = self.stream_options
        if options is not None and options["include_usage"]:
            yield render.usage_chunk(self._head, self.usage)

    async def _begin(self) -> None:
        text, pictured = await chat_text(self._serving, self._values, self._setup)
        prompt = TextPrompt(text=text, add_special_tokens=False)
        # A stop string would leave half a call, which ends by itself.
        asked = self._asked if self._setup is None else self._asked.deciding({"ending.stop": ()})
        self.run = Generation(self._state, self._serving, self._context, asked, prompt, pictured)

    async def _decline(self) -> None:
        """Begin again without tools: the model has chosen to answer freely."""
        self._setup = None
        self._asked = self._asked.deciding({"constraint": None})
        await self._begin()

    async def _call(self, setup: ToolSetup) -> CallText | None:
        """Return the whole text of a call; None when the model has declined, as soon as that is generated."""
        call = CallText()
        async with aclosing(self.run.steps()) as steps:
            async for step in steps:
                call.push(step.piece.shown)
                if setup.declinable and call.name == NO_TOOL:
                    break
            else:
                return call
        await self._decline()
        return None

    async def _call_chunks(self, setup: ToolSetup) -> AsyncGenerator[bytes, None]:
        """Yield the events of a call; none when the model has declined."""
        reader = CallReader(next_call_id(self._values["messages"]))
        stream = ChatStream(render.ChatChunks(self._head, self._state.quirks, self._logprobs, reader.call))
        stream.begin([reader])
        async with aclosing(self.run.steps()) as steps:
            async for step in steps:
                delta = msgspec.structs.replace(step.delta(step.piece.shown), finish=None)
                chunks = list(stream.delta(delta))
                if setup.declinable and reader.call.name == NO_TOOL:
                    break
                for chunk in chunks:
                    yield chunk
            else:
                for chunk in stream.delta(TextDelta(sequence=0, text="", finish=self.run.chosen.finish)):
                    yield chunk
                if not reader.has_begun and not self._state.quirks.stream_errors_in_band:
                    reader.call.compact()
                return
        await self._decline()

    @property
    def _reader(self) -> render.AnswerReader:
        """A new reader of an answer that is no call."""
        return render.AnswerReader(self._serving.model(None))

    @property
    def _logprobs(self) -> render.LogprobsWanted:
        return render.LogprobsWanted(bool(self._values["logprobs"]), bool(self._values["top_logprobs"]))

    def _all_logprobs(self) -> ChatCompletionLogprobs | None:
        return self._logprobs.of(piece.token for piece in self.run.chosen.pieces)


READY = b""
"""The chunk that begins a stream once everything is prepared and no token is generated."""


async def send(
    context: RequestContext,
    chunks: AsyncGenerator[bytes, None],
    headers: Callable[[], Mapping[str, str]],
    *,
    in_band: bool,
) -> None:
    """Answer with ``READY`` and the following chunks. ``in_band``: once it is ready, every error is an event."""
    async with aclosing(chunks):
        first = await context.unless_gone(anext(chunks))
        events = _to_the_end(context, first, chunks, in_band=in_band)
        await context.stream(events, content_type=EVENT_STREAM, headers=headers, at_once=in_band)


async def _to_the_end(
    context: RequestContext, first: bytes, chunks: AsyncGenerator[bytes, None], *, in_band: bool
) -> AsyncGenerator[bytes, None]:
    try:
        if first:
            yield first
        async for chunk in chunks:
            yield chunk
    except DragomanError as error:
        if not context.started and not in_band:
            raise
        context.fault = IncompleteStream() if isinstance(error, Incomplete) else error
        yield sse_fault(context.fault)
    yield DONE
