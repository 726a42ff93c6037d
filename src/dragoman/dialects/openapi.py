"""The OpenAPI 3.1 document of the dialects, made from their operations, their tables and their error formats."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from dragoman.core.errors import (
    BadRequest,
    ContextOverflow,
    DragomanError,
    EngineUnavailable,
    Forbidden,
    GenerationFailed,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    Unauthorized,
    UnsupportedFeature,
)
from dragoman.dialects.api import (
    IDEMPOTENCY_KEY,
    LONG_ANSWER,
    MALFORMED_KEY,
    REUSED_KEY,
    Dialect,
    ErrorResponse,
    NotJson,
    Operation,
    RequestHeader,
    WrongMediaType,
    error_response,
    keeps_answers,
)
from dragoman.dialects.field import Table
from dragoman.dialects.field_types import FieldError, FieldRule

ALWAYS: tuple[DragomanError, ...] = (
    Unauthorized("No API key was given."),
    Forbidden("The API key is not good for this."),
    NotFound("There is no such thing."),
    MethodNotAllowed("This method is not allowed here."),
    EngineUnavailable("The server is shutting down."),
    GenerationFailed("The generation failed."),
)
WITH_BODY: tuple[DragomanError, ...] = (
    BadRequest("The request cannot be served as it is.", param="field"),
    FieldError(FieldRule.MISSING, ("field",), bound="field"),
    UnsupportedFeature("The field is not supported.", param="field"),
    ContextOverflow("The prompt is too long."),
    NotJson("The body is not JSON."),
    WrongMediaType("The body says that it is something else."),
    ModelNotFound("There is no such model.", param="model"),
    RequestTimeout("The body did not arrive in time."),
    PayloadTooLarge("The body is too large."),
    Overloaded("Too many requests are waiting."),
)
"""One error of each kind, to show each dialect's format for it."""


class DialectOperation(NamedTuple):
    """An operation and its dialect."""

    dialect: Dialect
    operation: Operation


def openapi_document(
    dialects: Sequence[Dialect], *, version: str, prefix: str = "", secured: bool = False
) -> dict[str, Any]:
    """Return the document of the dialects. Operations that share path and method are described once, with all their
    bodies.

    ``secured``: the server requires API keys.
    """
    operations: dict[tuple[str, str], list[DialectOperation]] = {}
    routed = set()
    for dialect in dialects:
        for operation in dialect.operations:
            if (operation.path, operation.method) in routed and operation.claims is None:
                continue  # an earlier one answers every call
            routed.add((operation.path, operation.method))
            key = (_path(prefix + operation.path), operation.method.lower())
            operations.setdefault(key, []).append(DialectOperation(dialect.worded_for(operation), operation))
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {}
    for (path, method), sharing in operations.items():
        described = _described(path, sharing, schemas)
        if secured and not all(entry.operation.open or entry.operation.probe for entry in sharing):
            described["security"] = [{"key": []}]
        paths.setdefault(path, {})[method] = described
    components: dict[str, Any] = {"schemas": schemas}
    if secured:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Dragoman: {', '.join(dialect.title for dialect in dialects)}", "version": version},
        "paths": paths,
        "components": components,
    }


class EncodedDocument:
    """A document in JSON, made when somebody first asks for it: it takes some milliseconds, for which no start waits.

    ``prefix``: with which the paths of all operations begin, where the document does not have it in them.
    """

    def __init__(self, make: Callable[[], Mapping[str, Any]], prefix: str = "") -> None:
        self._make = make
        self._prefix = prefix

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The document as it was made."""
        return self._make()

    @cached_property
    def _encoded(self) -> dict[str, msgspec.Raw]:
        return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in self.content.items()}

    def encode(self, root_path: str) -> bytes:
        """Return the document for a client that reaches the server under this path. Its ``servers`` say so: without
        them a client would look for all paths at the root of the site (OpenAPI 3.1, "Server Object")."""
        server = root_path + self._prefix
        return msgspec.json.encode({**self._encoded, "servers": [{"url": server}]} if server else self._encoded)


def _described(path: str, sharing: Sequence[DialectOperation], schemas: dict[str, Any]) -> dict[str, Any]:
    dialect, operation = sharing[0]
    summaries = dict.fromkeys(entry.operation.summary for entry in sharing)
    described: dict[str, Any] = {
        "tags": list(dict.fromkeys(entry.dialect.title for entry in sharing)),
        "summary": " ".join(summaries),
        "operationId": operation.name or _identifier(dialect.name, operation.method, operation.path),
        "responses": _responses(sharing, schemas),
    }
    names = re.findall(r"{(\w+)", path)
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names
    ]
    for header in dict.fromkeys(header for entry in sharing for header in _headers(entry.operation)):
        value = {"type": "string", "pattern": f"^{header.pattern}$"}
        parameters.append({"name": header.name, "in": "header", "description": header.note, "schema": value})
    if parameters:
        described["parameters"] = parameters
    bodies = [_body(entry, schemas) for entry in sharing if entry.operation.table is not None]
    if bodies:
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    elif operation.form is not None:
        content = {"multipart/form-data": {"schema": _form(operation.form)}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _form(table: Table) -> dict[str, Any]:
    """Return the schema of a form with a file: a member of a field is a part too, ``field[member]``."""
    file = {"type": "string", "format": "binary"}
    properties: dict[str, Any] = {"file": file}
    for field in table.fields:
        if isinstance(field.kind, Table):
            properties |= {f"{field.name}[{each.name}]": each.kind.schema() for each in field.kind.fields}
        else:
            properties[field.name] = field.kind.schema()
    required = ["file", *(field.name for field in table.fields if field.required)]
    return {"type": "object", "properties": properties, "required": required}


def _headers(operation: Operation) -> tuple[RequestHeader, ...]:
    return (*operation.reads, *(IDEMPOTENCY_KEY,) * keeps_answers(operation))


def _body(entry: DialectOperation, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a reference to the schema of its table."""
    assert entry.operation.table is not None
    name = f"{entry.dialect.name}.{re.sub(r'[^A-Za-z0-9_.-]', '_', entry.operation.table.name)}"
    schemas.setdefault(name, entry.operation.table.schema())
    return {"$ref": f"#/components/schemas/{name}"}


def _responses(sharing: Sequence[DialectOperation], schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the responses by status: the answer on success, and each dialect's format of every error."""
    responses: dict[str, Any] = {}
    for entry in sharing:
        for status in entry.operation.statuses:
            kinds: dict[str, Any] = {kind.partition(";")[0]: {} for kind in _media(entry.operation)}
            _merge(responses, status, "The answer.", kinds)
    for dialect, operation in sharing:
        errors = (*ALWAYS, *WITH_BODY) if operation.method == "POST" else ALWAYS
        errors += (MALFORMED_KEY, LONG_ANSWER, REUSED_KEY) if keeps_answers(operation) else ()
        errors += operation.faults
        answers: dict[tuple[int, str], list[Any]] = {}
        for answer in (error_response(dialect, error) for error in errors):
            answers.setdefault((answer.status, _content_type(answer)), []).append(answer.body)
        for (status, kind), bodies in answers.items():
            name = f"{dialect.name}.error_{status}" + ("" if operation.method == "POST" else "_without_body")
            if kind == "application/json":
                known: list[Any] = schemas.setdefault(name, {"anyOf": []})["anyOf"]
                known += [shape for shape in _distinct(map(_shape, bodies)) if shape not in known]
            schema = {"$ref": f"#/components/schemas/{name}"} if kind == "application/json" else {"type": "string"}
            _merge(responses, status, _phrase(status), {kind: schema} if kind else {})
    return dict(sorted(responses.items()))


def _phrase(status: int) -> str:
    """Return what a status is called; some dialects have their own."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _merge(responses: dict[str, Any], status: int, description: str, kinds: dict[str, Any]) -> None:
    """Add a dialect's answer with this status, its schemas by content type, to those that are already there."""
    found = responses.setdefault(str(status), {"description": description})
    for kind, schema in kinds.items():
        media = found.setdefault("content", {}).setdefault(kind, {"schema": schema})
        if media["schema"] != schema:
            known = media["schema"].get("anyOf", [media["schema"]])
            media["schema"] = {"anyOf": _distinct([*known, schema])}


def _media(operation: Operation) -> tuple[str, ...]:
    if operation.media is not None:
        return operation.media
    streams = operation.table is not None and any(field.name == "stream" for field in operation.table.fields)
    return ("application/json", "text/event-stream") if streams else ("application/json",)


def _content_type(answer: ErrorResponse) -> str:
    given = next((value for name, value in answer.headers.items() if name.lower() == "content-type"), "")
    if answer.body is None:
        return ""
    return given.partition(";")[0].strip() or "application/json"


def _shape(value: Any) -> dict[str, Any]:
    """Return the schema of a body of the same form: its keys, and the types of its values that are not null."""
    match value:
        case dict():
            properties = {name: _shape(inner) for name, inner in value.items()}
            return {"type": "object", "properties": properties, "required": list(value)}
        case list() | tuple():
            return {"type": "array"}
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case str():
            return {"type": "string"}
    return {}


def _distinct(shapes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the distinct items in their order."""
    found: list[dict[str, Any]] = []
    for shape in shapes:
        if shape not in found:
            found.append(shape)
    return found


def _identifier(dialect: str, method: str, path: str) -> str:
    words = re.findall(r"\w+", re.sub(r":\w+}", "}", path)) or ["root"]
    return "_".join([dialect, method.lower(), *words])


def _path(template: str) -> str:
    """Return Starlette's ``{id:path}`` as OpenAPI's ``{id}``."""
    return re.sub(r"{(\w+):\w+}", r"{\1}", template)
