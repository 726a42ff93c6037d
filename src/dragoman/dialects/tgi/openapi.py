"""TGI's OpenAPI 3.0 document, made from the tables of requests and the structs of answers."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

import dragoman
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, FieldType, Integer, ListOf, MapOf, Number, OneOf, String
from dragoman.dialects.tgi import chat_render, render
from dragoman.dialects.tgi.chat_fields import CHAT, COMPLETIONS, CONTENT, PROMPT
from dragoman.dialects.tgi.errors import ErrorBody
from dragoman.dialects.tgi.fields import COMPAT_GENERATE, GENERATE, TOKENIZE
from dragoman.dialects.tgi.render import Info, SimpleToken
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.dialects.tgi.tools import TOOL_CHOICE

TITLE = "Text Generation Inference"

JSON, SSE, TEXT = "application/json", "text/event-stream", "text/plain"

_POSITIVE: Schema = {"minimum": 0, "exclusiveMinimum": True}


class Documented(NamedTuple):
    """An operation of the document: ``answers`` are components by media type, of status 200; of several, any."""

    path: str
    id: str
    summary: str
    answers: Mapping[str, str]
    request: str = ""
    errors: Sequence[int] = ()


_BODY = (400, 413, 415, 422)
_GENERATING = (*_BODY, 424, 429, 500)

DOCUMENTED = (
    Documented(
        "/",
        "compat_generate",
        "Continue a text, whole or streamed.",
        {JSON: "CompatGenerateResponse", SSE: "StreamResponse ErrorResponse"},
        "CompatGenerateRequest",
        _GENERATING,
    ),
    Documented("/generate", "generate", "Continue a text.", {JSON: "GenerateResponse"}, "GenerateRequest", _GENERATING),
    Documented(
        "/generate_stream",
        "generate_stream",
        "Continue a text, token by token.",
        {SSE: "StreamResponse ErrorResponse"},
        "GenerateRequest",
        _GENERATING,
    ),
    Documented(
        "/tokenize", "tokenize", "The tokens of a text.", {JSON: "TokenizeResponse"}, "TokenizeRequest", (*_BODY, 404)
    ),
    Documented(
        "/chat_tokenize",
        "get_chat_tokenize",
        "The prompt of a conversation, and its tokens.",
        {JSON: "ChatTokenizeResponse"},
        "ChatRequest",
        (*_BODY, 404),
    ),
    Documented("/health", "health", "It can generate.", {}, errors=(503,)),
    Documented("/info", "get_model_info", "The model and its limits.", {JSON: "Info"}),
    Documented("/metrics", "metrics", "What Prometheus scrapes.", {TEXT: ""}),
    Documented(
        "/v1/chat/completions",
        "chat_completions",
        "Answer a conversation.",
        {JSON: "ChatCompletion", SSE: "ChatCompletionChunk StreamError"},
        "ChatRequest",
        _GENERATING,
    ),
    Documented(
        "/v1/completions",
        "completions",
        "Continue one text or several.",
        {JSON: "CompletionFinal", SSE: "Completion StreamError"},
        "CompletionRequest",
        _GENERATING,
    ),
    Documented("/v1/models", "openai_get_model_info", "The model.", {JSON: "ModelsInfo"}, errors=(404,)),
    Documented(
        "/invocations",
        "sagemaker_compatibility",
        "Continue a text, answer a chat or complete prompts, whichever the body asks for.",
        {JSON: "SagemakerResponse", SSE: "SagemakerStreamResponse ErrorResponse StreamError"},
        "SagemakerRequest",
        _GENERATING,
    ),
)

_STATUSES = {
    400: "The body is not JSON.",
    404: "Not answered: every model has what it takes.",
    413: "The body is too large.",
    415: "The body does not say that it is JSON.",
    422: "A field is of the wrong type, or breaks a rule.",
    424: "The generation failed.",
    429: "The server is overloaded.",
    500: "The generation is incomplete.",
    503: "It cannot generate.",
}
_PLAIN = (400, 413, 415)


def document(settings: TgiSettings) -> dict[str, Any]:
    """Return the document of a server with these settings."""
    schemas = _schemas(settings)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": TITLE,
            "description": "Text generation, as Hugging Face's Text Generation Inference has it.",
            "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "version": dragoman.__version__,
        },
        "paths": {each.path: {"post" if each.request else "get": _operation(each)} for each in DOCUMENTED},
        "components": {"schemas": dict(sorted(schemas.items()))},
        "tags": [{"name": TITLE, "description": "The API of this server."}],
    }


def _operation(operation: Documented) -> dict[str, Any]:
    ok: dict[str, Any] = {"description": "The answer."}
    if operation.answers:
        ok["content"] = {media: {"schema": _answer(media, names)} for media, names in operation.answers.items()}
    made: dict[str, Any] = {"tags": [TITLE], "summary": operation.summary, "operationId": operation.id}
    if operation.request:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(operation.request)}}}
    streams = list(operation.answers) == [SSE]
    errors = {str(status): _error(status, streams) for status in sorted(operation.errors)}
    return {**made, "responses": {"200": ok, **errors}}


def _error(status: int, streams: bool) -> dict[str, Any]:
    text = {TEXT: {"schema": {"type": "string"}}}
    media = SSE if streams else JSON
    content = {media: {"schema": _answer(media, "ErrorResponse")}}
    if status in _PLAIN:
        content = text
    elif status == 422:
        content |= text
    return {"description": _STATUSES[status], "content": content}


def _answer(media: str, names: str) -> Schema:
    components = names.split()
    if media == SSE:
        components.append("ServerSentEvent")
    return _any(*components) if len(components) > 1 else _reference(names) if names else {"type": "string"}


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _schemas(settings: TgiSettings) -> dict[str, Schema]:
    """Return every component. Those of requests come first: an answer's of the same name is the narrower one."""
    names = (
        (CONTENT, "MessageContent"),
        (TOOL_CHOICE, "ToolChoice"),
        (PROMPT, "Prompt"),
        (render.WireToken, "Token"),
        (ErrorBody, "ErrorResponse"),
    )
    schemas = Schemas(names)
    native, chat = _native_bounds(settings), _chat_bounds(settings)
    for table in (COMPAT_GENERATE, GENERATE):
        schemas.table(table, native)
    schemas.table(TOKENIZE, {})
    schemas.table(CHAT, chat)
    schemas.table(COMPLETIONS, chat | {"logprobs": {"maximum": settings.max_top_n_tokens}})
    for struct in (
        render.GenerateResponse,
        render.StreamResponse,
        ErrorBody,
        Info,
        SimpleToken,
        chat_render.ChatCompletion,
        chat_render.ChatCompletionChunk,
        chat_render.ChatTokenizeResponse,
        chat_render.CompletionFinal,
        chat_render.Chunk,
        chat_render.ModelsInfo,
        chat_render.StreamError,
    ):
        schemas.hint(struct)
    made = schemas.components
    made |= {
        "ServerSentEvent": {
            "type": "object",
            "required": ["data"],
            "properties": {"data": {"type": "string"}},
            "description": "An event as it is on the wire: `data` is the JSON of one of the others, or `[DONE]`.",
        },
        "FinishReason": {"type": "string", "enum": ["length", "eos_token", "stop_sequence"]},
        "ChatCompletionDelta": _any("TextMessage", "ToolCallDelta"),
        "OutputMessage": _any("TextMessage", "ToolCallMessage"),
        "Completion": _any("Chunk", "CompletionFinal"),
        "CompatGenerateResponse": {"type": "array", "items": _reference("GenerateResponse")},
        "TokenizeResponse": {"type": "array", "items": _reference("SimpleToken")},
        "SagemakerRequest": _any("CompatGenerateRequest", "ChatRequest", "CompletionRequest"),
        "SagemakerResponse": _any("CompatGenerateResponse", "ChatCompletion", "CompletionFinal"),
        "SagemakerStreamResponse": _any("StreamResponse", "ChatCompletionChunk", "Chunk"),
        "Prompt": _prompt(settings.max_client_batch_size),
        "GrammarType": _grammar(made["GrammarType"]),
        "MessageChunk": _chunk(made["MessageChunk"]),
        **_message(made["Message"]),
    }
    for name in ("Details", "BestOfSequence", "StreamDetails"):
        made[name]["properties"]["finish_reason"] = _reference("FinishReason")
    made["ChatCompletionChoice"]["properties"]["delta"] = _reference("ChatCompletionDelta")
    made["ChatCompletionComplete"]["properties"]["message"] = _reference("OutputMessage")
    return made


def _any(*names: str) -> Schema:
    return {"anyOf": [_reference(name) for name in names]}


def _chunk(whole: Schema) -> Schema:
    """Return the schema of a part, which has the member that its type names, and may have the other one as null."""
    types = whole["properties"]["type"]["enum"]
    return {
        "anyOf": [
            {
                "type": "object",
                "required": ["type", name],
                "properties": {"type": {"type": "string", "enum": [name]}, name: _plain(whole["properties"][name])},
            }
            for name in types
        ]
    }


def _message(whole: Schema) -> dict[str, Schema]:
    """Return the schemas of a message, which has content or calls; a table does not express this."""
    fields = dict(whole["properties"])
    content, calls = fields.pop("content"), fields.pop("tool_calls")
    bodies = [
        {"required": ["content"], "properties": {"content": _reference("MessageContent"), "tool_calls": calls}},
        {"required": ["tool_calls"], "properties": {"tool_calls": _plain(calls) | {"minItems": 1}, "content": content}},
    ]
    return {
        "MessageBody": {"anyOf": [{"type": "object", **body} for body in bodies]},
        "Message": {"allOf": [_reference("MessageBody"), whole | {"properties": fields}]},
    }


def _prompt(most: int) -> Schema:
    text: Schema = {"type": "string", "minLength": 1}
    return {"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": most}]}


def _plain(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key != "nullable"}


def _grammar(whole: Schema) -> Schema:
    """Return the schema of a grammar, whose ``value`` depends on ``type``; a table does not express this."""
    config, nothing = _reference("JsonSchemaConfig"), {"nullable": True, **_either("string", "object")}
    values: tuple[tuple[list[str], list[str], Schema], ...] = (
        (["json"], ["value"], {"value": _either("string", "object")}),
        (["json_object"], [], {"value": nothing}),
        (["regex"], ["value"], {"value": {"type": "string"}}),
        (["json_schema"], ["value"], {"value": config}),
        (["json_schema"], ["json_schema"], {"json_schema": config}),
        (["text"], [], {}),
    )
    variants = [
        {
            "type": "object",
            "required": ["type", *required],
            "properties": {"type": {"type": "string", "enum": types}, **more},
        }
        for types, required, more in values
    ]
    return {"anyOf": variants, "description": whole["properties"]["type"]["description"]}


def _either(*types: str) -> Schema:
    return {"anyOf": [{"type": each} for each in types]}


def _shared_bounds(settings: TgiSettings) -> Bounds:
    share = _POSITIVE | {"maximum": 1}
    if settings.quirks().one_is_no_probability:
        share["exclusiveMaximum"] = True
    stops: Schema = {"maxItems": settings.max_stop_sequences}
    return {
        "repetition_penalty": _POSITIVE,
        "frequency_penalty": {"minimum": -2, "maximum": 2},
        "top_p": share,
        "typical_p": share,
        "stop": stops,
        "stop_sequences": stops,
    }


def _native_bounds(settings: TgiSettings) -> Bounds:
    return {
        **_shared_bounds(settings),
        "inputs": {"minLength": 1},
        "temperature": _POSITIVE,
        "top_k": _POSITIVE,
        "best_of": _POSITIVE | {"maximum": settings.max_best_of},
        "max_new_tokens": _POSITIVE,
        "truncate": _POSITIVE,
        "top_n_tokens": {"maximum": settings.max_top_n_tokens},
    }


def _chat_bounds(settings: TgiSettings) -> dict[str, Schema]:
    presence: Schema = {"minimum": -2, "maximum": 2}
    if settings.quirks().presence_as_repetition:
        presence = {"minimum": -2, "exclusiveMinimum": True}
    return {
        **_shared_bounds(settings),
        "messages": {"minItems": 1},
        "temperature": {"minimum": 0},
        "presence_penalty": presence,
        "max_tokens": _POSITIVE,
        "max_completion_tokens": _POSITIVE,
        "top_logprobs": {"maximum": settings.max_top_n_tokens},
    }


Schema = dict[str, Any]
Bounds = Mapping[str, Schema]
"""The bounds that the rules of requests set, by the fields' names."""


class Schemas:
    """Gathers ``components`` while it states kinds and types.

    ``names``: kinds and structs that have another name than their own, or one although they are no table.
    """

    def __init__(self, names: tuple[tuple[object, str], ...]) -> None:
        self.components: dict[str, Schema] = {}
        self._names = names

    def table(self, table: Table, bounds: Bounds) -> Schema:
        """Return a reference to the component of a table of fields, with the bounds of its fields."""
        return self._component(self._name(table) or table.name, lambda: self._fields(table, bounds))

    def kind(self, kind: FieldType, bounds: Bounds) -> Schema:
        """Return the schema of a request value."""
        name = self._name(kind)
        if isinstance(kind, Table):
            return self.table(kind, bounds)
        return self._component(name, lambda: self._kind(kind, bounds)) if name else self._kind(kind, bounds)

    def hint(self, hint: Any) -> Schema:
        """Return the schema of an answer's value: a struct, or the annotation of a field."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union([each for each in arguments if each is not msgspec.UnsetType])
        if origin is typing.Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin is list:
            return {"type": "array", "items": self.hint(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.hint(arguments[1])}
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self._component(self._name(hint) or hint.__name__, lambda: self._struct(hint))
        return {
            str: {"type": "string"},
            int: {"type": "integer"},
            float: {"type": "number", "format": "float"},
            bool: {"type": "boolean"},
        }[hint].copy()

    def _component(self, name: str, make: Callable[[], Schema]) -> Schema:
        if name not in self.components:
            self.components[name] = {}
            self.components[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

    def _name(self, thing: object) -> str:
        return next((name for known, name in self._names if known is thing), "")

    def _fields(self, table: Table, bounds: Bounds) -> Schema:
        schema: Schema = {"type": "object", "properties": {}}
        required = [field.name for field in table.fields if field.required]
        if required:
            schema["required"] = required
        for field in table.fields:
            schema["properties"][field.name] = self._field(field, bounds)
        return schema

    def _field(self, field: Field, bounds: Bounds) -> Schema:
        # The bounds of nested tables have distinct names, so the same mapping serves them.
        schema = {} if field.treatment is Treatment.REPORTED else _bounded(self.kind(field.kind, bounds), bounds, field)
        if not field.required and schema:
            schema = _nullable(schema)
        if field.default is not None:
            schema["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
        if "$ref" in schema:
            return schema
        return schema | {"description": field.note} if field.note else schema

    def _kind(self, kind: FieldType, bounds: Bounds) -> Schema:
        match kind:
            case Integer():
                return {"type": "integer"} | _present(minimum=kind.minimum, maximum=kind.maximum)
            case Number():
                return {"type": "number", "format": "float"} | _present(minimum=kind.minimum, maximum=kind.maximum)
            case Boolean():
                return {"type": "boolean"}
            case String():
                size = _present(minLength=kind.minimum or None, maxLength=kind.maximum)
                return {"type": "string"} | size | _present(enum=list(kind.choices) or None)
            case ListOf():
                size = _present(minItems=kind.minimum or None, maxItems=kind.maximum)
                return {"type": "array", "items": self.kind(kind.item, bounds)} | size
            case MapOf():
                value = self.kind(kind.value, bounds)
                return {"type": "object", "additionalProperties": value, "maxProperties": kind.maximum}
            case OneOf():
                return {"anyOf": [self.kind(each, bounds) for each in kind.alternatives]}
            case Anything():
                return {"type": "object"} if kind.object_only else {}
        raise TypeError(f"no schema for {type(kind).__name__}")

    def _struct(self, struct: type[msgspec.Struct]) -> Schema:
        hints = typing.get_type_hints(struct)
        optional = {name for name in hints if msgspec.UnsetType in typing.get_args(hints[name])}
        return {
            "type": "object",
            "required": [name for name in struct.__struct_fields__ if name not in optional],
            "properties": {name: self.hint(hints[name]) for name in struct.__struct_fields__},
        }

    def _union(self, arguments: list[Any]) -> Schema:
        schemas = [self.hint(each) for each in arguments if each is not type(None)]
        schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        return _nullable(schema) if type(None) in arguments else schema


def _nullable(schema: Schema) -> Schema:
    """Return the schema with null allowed. OpenAPI 3.0 has no type ``null``, and allows no keys next to a reference."""
    return {"nullable": True, **({"allOf": [schema]} if "$ref" in schema else schema)}


def _bounded(schema: Schema, bounds: Bounds, field: Field) -> Schema:
    """Return the schema with the bounds of the field, applied to the alternatives of their type."""
    bound = bounds.get(field.name)
    if bound is None:
        return schema
    if "anyOf" in schema:
        concerned = "array" if "maxItems" in bound else "number"
        alternatives = [each | bound if each.get("type") == concerned else each for each in schema["anyOf"]]
        return schema | {"anyOf": alternatives}
    return schema | bound


def _present(**keywords: Any) -> Schema:
    return {key: value for key, value in keywords.items() if value is not None}
