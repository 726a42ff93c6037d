"""The operations of the OctoAI dialect: read, translate, generate, render."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from dragoman.core.entropy import token_hex, wall_time
from dragoman.core.errors import AdapterNotFound, BadRequest, DragomanError, EngineUnavailable
from dragoman.core.request import ChatPrompt, GenerationRequest
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Abort, Operation, RequestContext, RouteHint
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.completion_stream import CompletionStream
from dragoman.dialects.field import CoreParams
from dragoman.dialects.images import unused_details
from dragoman.dialects.model_list import listed_models
from dragoman.dialects.multi_prompt import generate_all
from dragoman.dialects.octoai import render
from dragoman.dialects.octoai.errors import error_event
from dragoman.dialects.octoai.fields import CHAT, COMPLETIONS
from dragoman.dialects.octoai.settings import OctoAISettings
from dragoman.dialects.octoai.translate import chat_request, completion_requests, has_neighbours, in_turns, octoai_plan
from dragoman.dialects.openai_stream import encoded, sse, stream_answer
from dragoman.dialects.shared_fields import show_asked_progress

_OWN_KEYS = ("loglikelihood", "log_prompt", "peft", "ignore_eos", "octoai")


def claims(call: RouteHint) -> bool:
    """Return whether a call of a bare path is surely an OctoAI client's; asked only of servers that tell clients
    apart."""
    if call.dialect != "auto":
        return False
    if call.headers.get("x-fern-sdk-name", "").lower() == "octoai":
        return True
    return call.headers.get("user-agent", "").startswith("octoai-") or call.has(*_OWN_KEYS)


class Api:
    """All operations. Handlers are its methods: they need the operator's settings."""

    def __init__(self, settings: OctoAISettings) -> None:
        self._prompt_log = PromptLog(settings.octoai_prompt_log, settings.octoai_prompt_log_bytes)

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations of the published API, and a list of models."""
        return (
            Operation(
                method="POST",
                path="/v1/completions",
                summary="Continue one prompt or several.",
                handler=self.completions,
                table=COMPLETIONS,
                claims=claims,
            ),
            Operation(
                method="POST",
                path="/v1/chat/completions",
                summary="Answer a conversation.",
                handler=self.chat_completions,
                table=CHAT,
                claims=claims,
            ),
            Operation(
                method="GET", path="/v1/models", summary="List the served models.", handler=self.models, claims=claims
            ),
            Operation(
                method="GET",
                path="/healthcheck",
                summary="Whether requests can be served.",
                handler=self.healthcheck,
                probe=True,
            ),
        )

    async def completions(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/completions``."""
        reading = await context.read(COMPLETIONS, any_content_type=True)
        values = reading.values
        card, head = _asked(serving, reading.core)
        requests = completion_requests(reading, head.id, card)
        await self._prompt_log.add(context, head.id, "completions", values)
        wanted = render.Wanted(prompt=values["loglikelihood"], generated=values["logprobs"] is not None)
        shown = render.CompletionShown(values["echo"], wanted)
        if values["stream"]:
            show_asked_progress(context, values["stream_options"])
            n = values["n"]
            ends = render.Ends(n * len(requests), counted=_counted(values))
            streams = [
                CompletionStream(render.CompletionChunks(head, request, shown, ends), n, j * n)
                for j, request in enumerate(requests)
            ]
            await stream_answer(serving, context, requests, streams, end=ends.end, fault=_fault)
        else:
            results = await context.unless_gone(generate_all(serving, requests))
            answer = await encoded(
                context,
                lambda: render.completion(head, requests, results, shown),
                in_thread=wanted.prompt or wanted.generated,
            )
            await context.reply(answer)

    async def chat_completions(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/chat/completions``."""
        reading = await context.read(CHAT, any_content_type=True)
        values = reading.values
        card, head = _asked(serving, reading.core)
        if unused := unused_details(values["messages"], card):
            context.report(msgspec.structs.replace(reading, reported=(*reading.reported, *unused)))
        plan = octoai_plan(reading.core, card)
        request = await _renderable(serving, chat_request(reading, head.id, card, plan))
        await self._prompt_log.add(context, head.id, "chat completions", values)
        wanted = render.Wanted(prompt=values["loglikelihood"], generated=bool(values["logprobs"]), arrays=False)
        shown = render.ChatShown(plan.shape, wanted)
        if values["stream"]:
            show_asked_progress(context, values["stream_options"])
            ends = render.Ends(request.n, counted=_counted(values))
            streams = [ChatStream(render.ChatChunks(head, shown, ends), request.n)]
            await stream_answer(serving, context, [request], streams, end=ends.end, fault=_fault)
        else:
            result = await context.unless_gone(serving.generate(request))
            in_thread = wanted.prompt or wanted.generated or plan.shape.format is not None
            await context.reply(
                await encoded(context, lambda: render.chat_completion(head, result, shown), in_thread=in_thread)
            )

    async def models(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1/models``."""
        listed = [
            {
                "id": each.name,
                "object": "model",
                "created": each.created,
                "owned_by": "dragoman",
                "status": each.status,
            }
            for each in listed_models(serving, context.scopes)
        ]
        await context.reply({"object": "list", "data": listed})

    async def healthcheck(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /healthcheck``."""
        if reason := context.not_ready:
            raise EngineUnavailable(reason)
        await context.reply({"status": "ok"})


async def _renderable(serving: Serving, request: GenerationRequest) -> GenerationRequest:
    """Return the request, with consecutive messages of one role joined where the template requires alternating
    roles."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or not has_neighbours(prompt.messages):
        return request
    try:
        await serving.render(prompt, request.model)
    except BadRequest:
        return msgspec.structs.replace(
            request, prompt=msgspec.structs.replace(prompt, messages=in_turns(prompt.messages))
        )
    return request


def _asked(serving: Serving, core: CoreParams) -> tuple[ModelCard, render.Envelope]:
    """Return the model or adapter that the request runs with, and the envelope of the answer, which names the model.

    Raises ModelNotFound, and BadRequest where two adapters are named.
    """
    model, adapter = serving.model(core.get("model")), core.get("adapter")
    named = {name for _, name in core.given("adapter")} | ({model.name} if model.base is not None else set())
    if adapter is not None and len(named) > 1:
        raise BadRequest(f"A request runs with one adapter, not with {' and '.join(sorted(named))}.", param="peft")
    try:
        card = model if adapter is None else serving.adapter(adapter)
    except AdapterNotFound as error:
        raise AdapterNotFound(error.message, param="peft") from None
    return card, render.Envelope(f"cmpl-{token_hex(16)}", int(wall_time()), model.name, card.fingerprint)


def _counted(values: dict[str, Any]) -> bool:
    options = values["stream_options"]
    return bool(options and options["include_usage"])


def _fault(error: DragomanError) -> Iterable[bytes]:
    """Yield the error event, then raise Abort: clients that ignore unknown events detect the closed connection."""
    yield sse(error_event(error))
    raise Abort


log = logging.getLogger("dragoman.dialects.octoai")


class PromptLog:
    """Adds lines of JSON to a file that only its owner may read, until it has ``max_bytes``.

    ``path`` None: nothing is ever written. A file that cannot be written to costs a warning, not the request.
    """

    def __init__(self, path: str | None, max_bytes: int) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._turn = asyncio.Lock()
        self._warned = False

    async def add(self, context: RequestContext, request_id: str, operation: str, values: dict[str, Any]) -> None:
        """Store the prompt of a checked body, if it sets ``log_prompt`` and there is a file."""
        path = self._path
        if path is None or not values["log_prompt"] or context.explains:
            return
        prompt = {name: values[name] for name in ("prompt", "suffix", "messages") if values.get(name) is not None}
        entry = {"time": time.time(), "request_id": request_id, "operation": operation, "model": values["model"]}
        user = {} if values["user"] is None else {"user": values["user"]}
        line = msgspec.json.encode(entry | user | prompt) + b"\n"
        async with self._turn:
            try:
                await context.run_blocking(lambda: self._append(path, line), "disk")
            except OSError as error:
                self._warn(f"cannot be written to: {error.strerror}")

    def _append(self, path: str, line: bytes) -> None:
        # Without waiting for somebody who reads a named pipe.
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
        try:
            found = os.fstat(file)
            if found.st_size + len(line) > self._max_bytes:
                self._warn("is full")
                return
            if (written := os.write(file, line)) < len(line):
                # Half a line would spoil the next one. Another server may have added its own meanwhile.
                if stat.S_ISREG(found.st_mode) and os.fstat(file).st_size == found.st_size + written:
                    os.ftruncate(file, found.st_size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._warned = False
        finally:
            os.close(file)

    def _warn(self, what: str) -> None:
        if not self._warned:
            log.warning("the log of prompts %s %s: prompts are not stored now", self._path, what)
        self._warned = True
