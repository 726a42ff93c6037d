"""The container endpoints of SageMaker and Vertex AI: ``/invocations`` and ``/vertex``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext, RouteHint
from dragoman.dialects.field import CoreParams, Field, Table
from dragoman.dialects.field_types import FieldError, FieldRule, ListOf
from dragoman.dialects.tgi.body import Untagged, checked, read_json, shape_fault
from dragoman.dialects.tgi.chat import Chat
from dragoman.dialects.tgi.chat_fields import CHAT, COMPLETIONS
from dragoman.dialects.tgi.completions import Completions
from dragoman.dialects.tgi.errors import BatchIncomplete, Fault
from dragoman.dialects.tgi.fields import COMPAT_GENERATE, GENERATE
from dragoman.dialects.tgi.generate import Generate, continued, texts_of
from dragoman.dialects.tgi.generation import TgiState
from dragoman.dialects.tgi.introspect import Introspection
from dragoman.dialects.tgi.translate import parameters_of

MAX_INSTANCES = 2048

SAGEMAKER = Untagged((COMPAT_GENERATE, CHAT, COMPLETIONS), name="SagemakerRequest")


class Instance(Table, frozen=True, kw_only=True):
    """A table that is known by the fields that it requires."""

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict) and all(field.name in value for field in self.fields if field.required)


_TEXT = Instance(name=GENERATE.name, fields=GENERATE.fields)
_CHAT = Instance(name=CHAT.name, fields=CHAT.fields)

VERTEX = Table(
    name="VertexRequest",
    fields=(
        Field(
            name="instances",
            kind=ListOf(Untagged((_TEXT, _CHAT), name="VertexInstance"), maximum=MAX_INSTANCES),
            required=True,
            note="Each a text with `parameters`, whose tokens are drawn, or a chat; answered in order.",
        ),
    ),
)


class VertexResponse(msgspec.Struct):
    """A text for each instance."""

    predictions: list[str]


class NoInstances(Fault):
    """A batch of nothing."""

    error_type = "Input validation error"

    def __init__(self) -> None:
        super().__init__("Input validation error")


class Clouds:
    """The container handlers and their shared state."""

    def __init__(self, state: TgiState) -> None:
        self._state = state
        self._chat = Chat(state)
        answers: tuple[tuple[Table, Callable[[Serving, RequestContext, Any], Awaitable[None]]], ...] = (
            (COMPAT_GENERATE, Generate(state).answer_compat),
            (CHAT, self._chat.answer),
            (COMPLETIONS, Completions(state).answer),
        )
        self._answers = answers

    async def sagemaker_compatibility(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /invocations`` like the first endpoint that can read the body."""
        body = await read_json(context)
        for table, answer in self._answers:
            try:
                await context.check(table, body)
            except FieldError:
                continue
            await answer(serving, context, body)
            return
        raise await shape_fault(context, FieldError(FieldRule.TYPE, (), body, kind=SAGEMAKER))

    async def vertex(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /vertex``."""
        values = (await checked(context, VERTEX, await read_json(context))).values

        async def text_of(instance: dict[str, Any]) -> str:
            if "messages" in instance:
                return await self._chat.predicted(serving, context, instance)
            given = instance["parameters"]
            asked = parameters_of(given, samples=True)
            text = CoreParams(GENERATE, instance).get("prompt")
            return await continued(self._state, serving, context, text, asked)

        if not values["instances"]:
            raise NoInstances
        texts = await texts_of(self._state, context, values["instances"], text_of)
        await context.reply(VertexResponse(texts))


def operations(state: TgiState) -> tuple[Operation, ...]:
    """Return the operations ``/invocations``, ``/vertex``, and the paths that Vertex AI gives to its containers."""
    clouds, settings = Clouds(state), state.settings
    predict = "Answer a batch of texts and chats."
    found = [
        Operation(
            method="POST",
            path="/invocations",
            summary="Continue a text, answer a chat or complete prompts, whichever the body asks for.",
            handler=clouds.sagemaker_compatibility,
        ),
        Operation(
            method="POST",
            path="/vertex",
            summary=predict,
            handler=clouds.vertex,
            table=VERTEX,
            faults=(BatchIncomplete(),),
        ),
    ]
    route = settings.aip_predict_route
    if route and route != "/vertex":
        found.append(
            Operation(
                method="POST",
                path=route,
                summary=predict,
                handler=clouds.vertex,
                table=VERTEX,
                faults=(BatchIncomplete(),),
                open=settings.insecure_predict,
                claims=_has_instances,
                named_by="--aip-predict-route",
            )
        )
    route = settings.aip_health_route
    if route and route not in ("/", "/health", "/ping"):
        health = Introspection(state).health
        found.append(
            Operation(
                method="GET",
                path=route,
                summary="It can generate.",
                handler=health,
                open=True,
                probe=True,
                named_by="--aip-health-route",
            )
        )
    return tuple(found)


def _has_instances(call: RouteHint) -> bool:
    """Return whether a call is a batch of Vertex AI's, at a path that may have other calls too."""
    return call.has("instances")
