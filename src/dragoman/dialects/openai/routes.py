"""The operations of the OpenAI dialect: read, translate, generate, render."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec

from dragoman.core.entropy import random_bits, token_hex, wall_time
from dragoman.core.errors import BadRequest
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.completion_stream import CompletionStream
from dragoman.dialects.field import Reading
from dragoman.dialects.model_list import listed_model, listed_models
from dragoman.dialects.multi_prompt import generate_all
from dragoman.dialects.openai import render
from dragoman.dialects.openai.continuing import NOT_CONTINUABLE, READS, READS_FROM, Continuation, continuation
from dragoman.dialects.openai.fields import CHAT, COMPLETIONS
from dragoman.dialects.openai.rendered import rendered
from dragoman.dialects.openai.settings import OpenAISettings
from dragoman.dialects.openai.tools import openai_plan
from dragoman.dialects.openai.translate import chat_request, completion_requests, without_effect
from dragoman.dialects.openai_stream import encoded, stream_answer
from dragoman.dialects.shared_fields import show_asked_progress
from dragoman.dialects.tools import MessageShape, ToolPlan
from dragoman.text.reasoning import ReasoningMarks


class CompletionsApi:
    """Completions, chat completions and the list of models."""

    def __init__(self, settings: OpenAISettings) -> None:
        self._settings = settings

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations."""
        return (
            Operation(
                method="POST",
                path="/v1/completions",
                summary="Continue one prompt or several.",
                handler=completions,
                table=COMPLETIONS,
                reads=(READS, READS_FROM),
                faults=(NOT_CONTINUABLE,),
            ),
            Operation(
                method="POST",
                path="/v1/chat/completions",
                summary="Answer a conversation.",
                handler=self.chat_completions,
                table=CHAT,
                reads=(READS, READS_FROM),
                faults=(NOT_CONTINUABLE,),
            ),
            Operation(
                method="POST",
                path="/v1/completions/render",
                summary="Return the token ids that each prompt would run with.",
                handler=render_completions,
                table=COMPLETIONS,
                media=("application/json",),
            ),
            Operation(
                method="POST",
                path="/v1/chat/completions/render",
                summary="Return the token ids that a conversation would run with.",
                handler=self.render_chat,
                table=CHAT,
                media=("application/json",),
            ),
            Operation(method="GET", path="/v1/models", summary="List the served models.", handler=models),
            Operation(method="GET", path="/v1/models/{id:path}", summary="Describe a served model.", handler=model),
        )

    async def chat_completions(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/chat/completions``."""
        tier = await _tier(context)
        async with continuation(serving, context, CHAT) as (reading, call):
            values = reading.values
            seed = _seed(reading, call)
            card, plan = self._planned(serving, context, reading)
            head = _head(serving, reading, "chatcmpl-", tier)
            if call is not None and plan.shape.format is not None:
                raise BadRequest("'X-Request-Continue' goes with no tools that may be called.", param="tools")
            request = chat_request(reading, head.id, seed, card, plan, resumable=call is not None)
            headers = {"x-dragoman-seed": str(seed)} | (call.headers if call else {})
            options = _Shown(
                logprobs=values["logprobs"],
                shape=plan.shape,
                resumable=call is not None,
                marks=_marks_in_text(card, plan, values),
            )
            if values["stream"]:
                show_asked_progress(context, values["stream_options"])
                chunks = render.ChatChunks(head, **options)
                streams = [ChatStream(chunks, request.n)]
                await stream_answer(
                    call or serving, context, [request], streams, end=chunks.end, fault=render.fault, headers=headers
                )
            else:
                result = await context.unless_gone((call or serving).generate(request))
                answer = await encoded(
                    context,
                    lambda: render.chat_completion(head, result, **options),
                    in_thread=values["logprobs"] or plan.shape.format is not None,
                )
                await context.reply(answer, headers=headers | (call.headers if call else {}))

    async def render_chat(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v1/chat/completions/render``."""
        reading = await context.read(CHAT)
        head = _head(serving, reading, "chatcmpl-")
        card, plan = self._planned(serving, context, reading)
        request = chat_request(reading, head.id, _seed(reading, None), card, plan)
        await context.reply(rendered(reading, request, await context.unless_gone(serving.prepare(request))))

    def _planned(self, serving: Serving, context: RequestContext, reading: Reading) -> tuple[ModelCard, ToolPlan]:
        """Return the model of a chat and the plan for its tools, and report what has no effect with them."""
        card = serving.model(reading.core.get("model"))
        plan = openai_plan(reading, card, separates=self._settings.openai_separate_reasoning)
        context.report(without_effect(reading, card, plan))
        return card, plan


class _Shown(TypedDict):
    """How a chat is rendered: see ``render.chat_completion``."""

    logprobs: bool
    shape: MessageShape
    resumable: bool
    marks: ReasoningMarks | None


def _marks_in_text(card: ModelCard, plan: ToolPlan, values: Mapping[str, Any]) -> ReasoningMarks | None:
    """Return the marks of reasoning blocks where the generated text has them."""
    blocks, shape = card.reasoning, plan.shape
    if blocks is None:
        return None
    if blocks.special_ids and not (shape.separate or shape.is_framed) and values["skip_special_tokens"]:
        return None
    return ReasoningMarks(blocks.opening, blocks.closing)


async def _tier(context: RequestContext) -> str | msgspec.UnsetType:
    """Return the tier of an answer to a request that names one."""
    body = await context.read_json()
    return "default" if isinstance(body, dict) and body.get("service_tier") is not None else msgspec.UNSET


async def completions(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/completions``."""
    async with continuation(serving, context, COMPLETIONS) as (reading, call):
        values = reading.values
        seed = _seed(reading, call)
        head = _head(serving, reading, "cmpl-")
        requests = completion_requests(reading, head.id, seed, resumable=call is not None)
        if call is not None and len(requests) > 1:
            raise BadRequest("'X-Request-Continue' goes with one prompt.", param="prompt")
        headers = {"x-dragoman-seed": str(seed)} | (call.headers if call else {})
        logprobs = values["logprobs"] is not None
        if values["stream"]:
            show_asked_progress(context, values["stream_options"])
            chunks = render.CompletionChunks(head, logprobs=logprobs)
            streams = [CompletionStream(chunks, request.n, j * request.n) for j, request in enumerate(requests)]
            await stream_answer(
                call or serving, context, requests, streams, end=chunks.end, fault=render.fault, headers=headers
            )
        else:
            results = await context.unless_gone(generate_all(call or serving, requests))
            answer = await encoded(
                context, lambda: render.completion(head, results, logprobs=logprobs), in_thread=logprobs
            )
            await context.reply(answer, headers=headers | (call.headers if call else {}))


async def render_completions(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /v1/completions/render``."""
    reading = await context.read(COMPLETIONS)
    head = _head(serving, reading, "cmpl-")
    requests = completion_requests(reading, head.id, _seed(reading, None))
    prepared = [await context.unless_gone(serving.prepare(request)) for request in requests]
    await context.reply([rendered(reading, *each) for each in zip(requests, prepared, strict=True)])


async def models(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/models``."""
    await context.reply(
        {"object": "list", "data": [render.model(each) for each in listed_models(serving, context.scopes)]}
    )


async def model(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /v1/models/{id}``; ids may hold slashes."""
    await context.reply(render.model(listed_model(serving, context.scopes, context.path_params["id"])))


def _head(
    serving: Serving, reading: Reading, prefix: str, tier: str | msgspec.UnsetType = msgspec.UNSET
) -> render.Envelope:
    name = reading.core.get("model")
    card = serving.model(name)
    options = reading.values["stream_options"]
    counted = bool(options and options["include_usage"])
    return render.Envelope(
        prefix + token_hex(12),
        int(wall_time()),
        name or card.name,
        card.fingerprint,
        counted,
        ids=reading.values["return_token_ids"],
        tier=tier,
    )


def _seed(reading: Reading, call: Continuation | None) -> int:
    """Return the given seed, or one from the operating system that a client can send back in ``seed``."""
    given = reading.core.get("seeds")
    if given is not None:
        return int(given)
    return random_bits(63) if call is None or call.seed is None else call.seed
