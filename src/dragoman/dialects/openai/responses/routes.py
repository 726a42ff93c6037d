"""The operations of the Responses API: read, translate, generate, keep, and read again."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import msgspec

from dragoman.core.elsewhere import note_elsewhere
from dragoman.core.entropy import random_bits, token_hex, wall_time
from dragoman.core.errors import BadRequest, ContextOverflow, DragomanError, EngineUnavailable, GenerationTimeout
from dragoman.core.image_sources import has_images
from dragoman.core.request import GenerationRequest
from dragoman.core.responses import StoredResponse
from dragoman.core.sampling import MAX_SEED
from dragoman.core.serving import Serving
from dragoman.dialects.api import KeepAlive, Operation, RequestContext
from dragoman.dialects.field import NOTHING_READ, Reading, Table
from dragoman.dialects.field_types import FieldError, FieldRule
from dragoman.dialects.openai.errors import InvalidRequest, NotAgain
from dragoman.dialects.openai.responses.background import PATH, BackgroundRun, BackgroundRuns, record_of
from dragoman.dialects.openai.responses.content import placed_items, with_files, with_settings
from dragoman.dialects.openai.responses.conversations import Read, read, said
from dragoman.dialects.openai.responses.events import EventWriter
from dragoman.dialects.openai.responses.fields import (
    ENCRYPTED,
    INCLUDES,
    INPUT_TOKENS,
    LOGPROBS,
    RESPONSES,
    check_values,
)
from dragoman.dialects.openai.responses.response import Head
from dragoman.dialects.openai.responses.stored import (
    ReferenceReader,
    asked_page,
    chain_items,
    input_items,
    not_found,
    number_of,
    own_items,
    page,
)
from dragoman.dialects.openai.responses.translate import Asked, asked_of, fitted, head_of, request_of, response_id
from dragoman.dialects.openai.text_files import FileReader
from dragoman.dialects.openai_stream import SSE, encode
from dragoman.dialects.shared_fields import show_asked_progress
from dragoman.dialects.stored_files import StoredFiles

SILENCE_S = 15.0


class Begun(NamedTuple):
    """A response that is about to be generated. ``input``: its own items, as they are kept. ``conversation``: that it
    continues."""

    asked: Asked
    conversation: Read
    request: GenerationRequest
    head: Head
    input: bytes

    def stored(self, tenant: str, response: Mapping[str, Any], events: bytes = b"") -> StoredResponse:
        """Return the response as it is kept."""
        return StoredResponse(
            id=self.request.request_id,
            tenant=tenant,
            previous=self.asked.reading.values["previous_response_id"] or "",
            conversation=self.conversation.id,
            conversation_end=self.conversation.end,
            created_s=float(self.head.response["created_at"]),
            input=self.input,
            response=encode(response),
            events=events,
        )


class ResponsesApi:
    """All operations. Handlers are its methods: they share what runs in the background."""

    def __init__(self) -> None:
        self._runs = BackgroundRuns()

    @asynccontextmanager
    async def service(self, serving: Serving) -> AsyncGenerator[None, None]:
        """Go on with what an earlier server has not finished; at the end, leave it to the next one."""
        await self._runs.resume(serving)
        try:
            yield
        finally:
            await self._runs.close()

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations."""
        one, faults = PATH + "/{id}", (not_found("resp_0"),)
        return (
            Operation(
                method="POST",
                path=PATH,
                summary="Respond to input.",
                handler=self.create,
                table=RESPONSES,
                faults=faults,
            ),
            Operation(
                method="POST",
                path=PATH + "/input_tokens",
                summary="Count the tokens of the prompt that a response would have.",
                handler=self.count,
                table=INPUT_TOKENS,
                faults=faults,
            ),
            Operation(
                method="GET",
                path=one,
                summary="Return a stored response, or its events.",
                handler=self.retrieve,
                media=("application/json", "text/event-stream"),
                faults=faults,
            ),
            Operation(
                method="DELETE", path=one, summary="Delete a stored response.", handler=self.delete, faults=faults
            ),
            Operation(
                method="POST",
                path=one + "/cancel",
                summary="Cancel a response in the background.",
                handler=self.cancel,
                faults=faults,
            ),
            Operation(
                method="GET",
                path=one + "/input_items",
                summary="List the items that a response was generated from.",
                handler=self.input_items,
                faults=faults,
            ),
        )

    # Creating ---------------------------------------------------------------------------------------------------------

    async def create(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/responses``."""
        body, reading = await self._read(context, RESPONSES)
        with _own_names():
            await self._create(serving, context, body, reading)

    async def _create(
        self, serving: Serving, context: RequestContext, body: Mapping[str, Any], reading: Reading
    ) -> None:
        values = reading.values
        check_values(values)
        store = serving.responses
        if values["background"] and not store.is_on:
            raise BadRequest("Background mode requires a store, and this server has none.", param="background")
        if values["background"] and not context.explains:
            self._runs.check_room(serving)  # before any work on a prompt that could not be generated from
        conversation = await read(store, context.tenant, values)
        asked = await self._asked(serving, context, RESPONSES, body, reading, conversation)
        given = reading.core.get("seeds")
        seed = random_bits(63) if given is None else given & MAX_SEED
        digits = token_hex(16)
        request = request_of(asked, response_id(digits), seed)
        keeps = bool(values["store"]) and store.is_on and not context.explains
        head = head_of(asked, request, int(wall_time()), keeps=keeps)
        items = own_items(values["input"], asked.items, digits) if keeps else b"[]"
        begun = Begun(asked, conversation, request, head, items)
        headers = {"x-dragoman-seed": str(seed)}
        if body.get("store") and not store.is_on:
            _report_unkept(context, asked)
        if values["background"]:
            await self._in_background(serving, context, begun, headers)
        elif values["stream"]:
            show_asked_progress(context, values["stream_options"])
            writer = EventWriter(head)
            events = self._events(serving, context, begun, writer)
            await context.stream(
                events, content_type=SSE, headers=headers, keep_alive=KeepAlive(writer.keep_alive, SILENCE_S)
            )
        else:
            response = await context.unless_gone(self._whole(serving, context, begun))
            if keeps and not response["store"]:
                _report_unkept(context, asked)
            await context.reply(encode(response), headers=headers)

    async def count(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/responses/input_tokens``."""
        body, reading = await self._read(context, INPUT_TOKENS)
        with _own_names():
            conversation = await read(serving.responses, context.tenant, reading.values)
            asked = await self._asked(serving, context, INPUT_TOKENS, body, reading, conversation)
            prompt, model = asked.prompt, asked.card.name
            ids = asked.ids or await context.unless_gone(serving.tokenize(prompt, model, bounded=False))
        await context.reply({"object": "response.input_tokens", "input_tokens": len(ids)})

    async def _read(self, context: RequestContext, table: Table) -> tuple[Mapping[str, Any], Reading]:
        body = await context.read_json()
        return body, await context.check(table, body)

    async def _asked(
        self,
        serving: Serving,
        context: RequestContext,
        table: Table,
        body: Mapping[str, Any],
        reading: Reading,
        conversation: Read,
    ) -> Asked:
        """Return what is asked, with the items before it and those that it refers to, and as much of it as fits."""
        values, store = reading.values, serving.responses
        card = serving.model(reading.core.get("model"))
        if values["input"] is None and values["previous_response_id"] is None and not conversation.id:
            raise FieldError(FieldRule.MISSING, ("input",), bound="input")
        items = list(conversation.items)
        if values["previous_response_id"] is not None:
            items += await chain_items(store, context.tenant, values["previous_response_id"])
        before = len(items)
        items += placed_items(reading.core.get("prompt.messages"))
        items = await context.unless_gone(ReferenceReader(store, context.tenant).resolved(items))
        files = FileReader(StoredFiles(serving.batches, context), sees_images=card.images is not None)
        items = await context.unless_gone(with_files(items, files))
        changed = with_settings(body, items[:before], items[before:])
        if changed is not body:
            body, reading = changed, await context.check(table, changed)
        asked = await context.unless_gone(self._fitted(serving, context, body, reading, items))
        context.report(asked.whole_reading)
        return asked

    async def _fitted(
        self, serving: Serving, context: RequestContext, body: Mapping[str, Any], reading: Reading, items: list[Any]
    ) -> Asked:
        asked = await asked_of(serving, body, reading, items, is_strict=context.is_strict)
        return await fitted(serving, asked)

    async def _whole(self, serving: Serving, context: RequestContext, begun: Begun) -> Mapping[str, Any]:
        """Return the response when it is complete. Raises what the generation raises."""
        writer = EventWriter(begun.head)
        events = list(writer.begin())
        try:
            async with aclosing(serving.stream(begun.request)) as generated:
                async for event in generated:
                    events += writer.push(event, now=time.time())
        except DragomanError as error:
            if writer.has_prompt:
                events += writer.fail(error)
                await self._keep(serving, context, begun, writer, events)
            raise _final(error) from None
        finally:
            if not writer.is_over:  # the client has left
                events += writer.cancel()
                await self._keep(serving, context, begun, writer, events)
        await self._keep(serving, context, begun, writer, events)
        return writer.response

    async def _events(
        self, serving: Serving, context: RequestContext, begun: Begun, writer: EventWriter
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events as they come. What can be refused is raised before the first, but for a prompt that is too
        long: from events alone clients know that for what it is."""
        events: list[bytes] = []
        sent, is_refused = 0, False
        try:
            async with aclosing(serving.stream(begun.request)) as generated:
                async for event in generated:
                    events += [] if writer.count else writer.begin()
                    events += writer.push(event, now=time.time())
                    if writer.is_over:
                        await self._keep(serving, context, begun, writer, events)
                    while sent < len(events):
                        yield events[sent]
                        sent += 1
        except DragomanError as error:
            is_refused = isinstance(error, ContextOverflow) and not writer.has_prompt
            error.param = "input" if is_refused else error.param
            if not (writer.count or context.started or is_refused):
                is_refused = True
                raise
            context.fault = error
            events += writer.fail(error)
            await self._keep(serving, context, begun, writer, events)
            for each in events[sent:]:
                yield each
        finally:
            if not writer.is_over and not is_refused:  # the client has left
                events += writer.cancel()
                await self._keep(serving, context, begun, writer, events)

    async def _keep(
        self, serving: Serving, context: RequestContext, begun: Begun, writer: EventWriter, events: list[bytes]
    ) -> None:
        """Keep a response that is over, where it is asked for and its prompt was computed. What is not kept says so: in
        its last event too."""
        response = writer.response
        if not response["store"]:
            return
        if writer.has_prompt:
            stored = begun.stored(context.tenant, response, b"".join(events))
            if await serving.responses.keep(stored, said(stored)):
                return
        events[-1] = writer.unkept()

    async def _in_background(
        self, serving: Serving, context: RequestContext, begun: Begun, headers: Mapping[str, str]
    ) -> None:
        asked, request = begun.asked, begun.request
        prompt = asked.prompt
        if not has_images(prompt.messages):
            ids = asked.ids or await context.unless_gone(serving.tokenize(prompt, asked.card.name))
            prompt = msgspec.structs.replace(prompt, messages=(), token_ids=ids)
        sampled = asked.card.sampling.apply(request)[0]
        request = msgspec.structs.replace(sampled, prompt=prompt, unset_sampling=())
        await context.unless_gone(serving.prepare(request))
        if context.explains:
            await anext(serving.stream(request))
            return
        record = record_of(begun.head, request, asked.card.fingerprint)
        stored = begun.stored(context.tenant, begun.head.response)
        run = await self._runs.start(serving, stored, record)
        if asked.reading.values["stream"]:
            await self._follow(context, run, -1, headers)
        else:
            await context.reply(encode(begun.head.response), headers=headers)

    # Stored responses -------------------------------------------------------------------------------------------------

    async def retrieve(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/responses/{id}``."""
        query = context.query
        for name in ("include", "include[]"):
            if name in query and query[name] not in INCLUDES:
                raise FieldError(FieldRule.CHOICE, ("include",), query[name], bound=INCLUDES)
        unused = [name for name in ("include", "include[]") if query.get(name) in (ENCRYPTED, LOGPROBS)]
        if _flag(query, "include_obfuscation"):
            unused.append("include_obfuscation")
        is_stream = _flag(query, "stream")
        if not is_stream and "starting_after" in query:
            unused.append("starting_after")
        context.report(msgspec.structs.replace(NOTHING_READ, reported=tuple(unused)))
        after = number_of(query, "starting_after", least=0, default=-1)
        stored, run = await self._found(serving, context)
        if not is_stream:
            await context.reply(encode(run.writer.response) if run is not None else stored.response)
        elif run is not None:
            await self._follow(context, run, after, {})
        else:
            await context.stream(_events_after(stored.events, after), content_type=SSE, at_once=True)

    async def delete(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``DELETE /v1/responses/{id}``."""
        stored, run = await self._found(serving, context)
        _check_can_end(stored, run)
        if run is not None:
            await self._runs.cancel(run)
        await serving.responses.delete(context.tenant, stored.id)
        await context.reply({"id": stored.id, "object": "response", "deleted": True})

    async def cancel(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/responses/{id}/cancel``."""
        stored, run = await self._found(serving, context)
        _check_can_end(stored, run)
        if run is not None:
            await self._runs.cancel(run)
            stored = run.stored
        elif not msgspec.json.decode(stored.response)["background"]:
            raise InvalidRequest("Cannot cancel a synchronous response.", code=None)
        await context.reply(stored.response)

    async def input_items(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/responses/{id}/input_items``."""
        asked = asked_page(context.query)
        stored, _ = await self._found(serving, context)
        items = await input_items(serving.responses, context.tenant, stored)
        await context.reply(page(items, asked))

    async def _found(self, serving: Serving, context: RequestContext) -> tuple[StoredResponse, BackgroundRun | None]:
        """Return a stored response, and its run where it is generated now. Raises NotFound."""
        id = context.path_params["id"]
        run = self._runs.find(context.tenant, id)
        stored = await serving.responses.find(context.tenant, id)
        if stored is None:
            raise not_found(id)
        if stored.is_running and run is None:
            note_elsewhere()  # the servers share a store, and another one generates it
        if run is not None and run.is_over:
            return run.stored, None  # its end, which came while the store was read
        return stored, run

    async def _follow(
        self, context: RequestContext, run: BackgroundRun, after: int, headers: Mapping[str, str]
    ) -> None:
        keep_alive = KeepAlive(run.writer.keep_alive, SILENCE_S)
        await context.stream(run.follow(after), content_type=SSE, headers=headers, at_once=True, keep_alive=keep_alive)


async def _events_after(events: bytes, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the events with higher numbers, as they were written."""
    for each in events.split(b"\n\n")[after + 1 : -1]:
        yield each + b"\n\n"


@contextmanager
def _own_names() -> Iterator[None]:
    """Name the field of this API in errors of the conversation."""
    try:
        yield
    except DragomanError as error:
        if error.param in ("messages", "prompt"):
            error.param = "input"
        raise


def _report_unkept(context: RequestContext, asked: Asked) -> None:
    """Report ``store`` among the fields without effect."""
    reading = asked.whole_reading
    context.report(msgspec.structs.replace(reading, reported=(*reading.reported, "store")))


def _check_can_end(stored: StoredResponse, run: BackgroundRun | None) -> None:
    """Raise EngineUnavailable for a response that goes on at the next start, or soon after this one: it cannot be ended
    meanwhile."""
    if stored.is_running and run is None:
        raise EngineUnavailable("The response goes on when the server has started: try again then.")


def _final(error: DragomanError) -> DragomanError:
    """Return the error of a whole answer. A timeout comes again, so clients must not repeat the request."""
    return NotAgain(error.message) if isinstance(error, GenerationTimeout) else error


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise FieldError(FieldRule.CHOICE, (name,), value, bound=("true", "false"))
    return value == "true"
