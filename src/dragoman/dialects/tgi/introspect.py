"""Operations about the server: health, ``/info``, tokenization of a text, and the OpenAPI document with the page at
``/docs/`` that shows it, in plain HTML without external resources.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from functools import cached_property
from html import escape
from typing import Any

import dragoman
from dragoman.core.errors import DragomanError
from dragoman.core.request import GenerationRequest, TextPrompt
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Operation, RequestContext, RouteHint
from dragoman.dialects.openai_stream import encoded
from dragoman.dialects.openapi import EncodedDocument
from dragoman.dialects.tgi.body import read
from dragoman.dialects.tgi.errors import Unhealthy
from dragoman.dialects.tgi.fields import TOKENIZE
from dragoman.dialects.tgi.generation import TgiState
from dragoman.dialects.tgi.openapi import document
from dragoman.dialects.tgi.render import Info, simple_tokens
from dragoman.dialects.tgi.settings import TgiSettings

ROUTER = "text-generation-router"
PROBE_TIMEOUT_S = 60.0


class Introspection:
    """The handlers of server information and their shared state."""

    def __init__(self, state: TgiState) -> None:
        self._state = state

    async def health(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /health``, ``/ping`` and ``/``. After a failure, only a generation shows that it works again."""
        if context.not_ready:
            raise Unhealthy
        if not self._state.healthy:
            try:
                await context.unless_gone(serving.generate(_probe()))
            except DragomanError:
                raise Unhealthy from None
            self._state.healthy = True
        await context.reply(None)

    async def info(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /info``."""
        await context.reply(info(serving.model(None), self._state.settings))

    async def tokenize(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /tokenize``: the inputs with the tokenizer's own first and last tokens."""
        reading, _ = await read(context, TOKENIZE)
        tokens = await context.unless_gone(serving.tokenize_text(reading.core.get("prompt"), bounded=False))
        await context.reply(await encoded(context, lambda: simple_tokens(tokens), in_thread=True))


def info(card: ModelCard, settings: TgiSettings) -> Info:
    """Return the served model and its limits."""
    max_input, max_total = settings.limits(card.context_tokens, card.encoder_context_tokens)
    return Info(
        model_id=card.name,
        model_sha=None,
        model_pipeline_tag=None,
        max_concurrent_requests=settings.max_concurrent_requests,
        max_best_of=settings.max_best_of,
        max_stop_sequences=settings.max_stop_sequences,
        max_input_tokens=max_input,
        max_total_tokens=max_total,
        validation_workers=settings.validation_workers,
        max_client_batch_size=settings.max_client_batch_size,
        router=ROUTER,
        version=dragoman.__version__,
        sha=None,
        docker_label=settings.docker_label,
        model_dtype=card.precision,
        model_device_type="cpu",
    )


def _probe() -> GenerationRequest:
    return GenerationRequest(
        request_id=f"tgi-health-{secrets.token_hex(8)}",
        prompt=TextPrompt(text="liveness"),
        seeds=(0,),
        sampling=SamplingParams(temperature=0.0),
        ending=EndingParams(max_tokens=1),
        timeout_s=PROBE_TIMEOUT_S,
    )


def operations(state: TgiState) -> tuple[Operation, ...]:
    """Return the operations: health, information, tokens."""
    routes = Introspection(state)
    healthy = "It can generate."
    return (
        *(
            Operation(method="GET", path=path, summary=healthy, handler=routes.health, open=True, probe=True, media=())
            for path in ("/health", "/ping", "/")
        ),
        Operation(method="GET", path="/info", summary="The model and its limits.", handler=routes.info, open=True),
        Operation(
            method="POST",
            path="/tokenize",
            summary="The tokens of a text.",
            handler=routes.tokenize,
            table=TOKENIZE,
            claims=_claims,
        ),
    )


def _claims(call: RouteHint) -> bool:
    return call.has("inputs")


PREFIX = "/tgi"
"""The prefix of the dialect, valid whichever dialects have its bare paths."""

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; color: #222; background: #fff }}
a {{ color: #0645ad }}
code {{ background: #f3f3f3; padding: 0 .2em }}
h3 {{ border-top: 1px solid #ddd; padding-top: 1rem }}
table {{ border-collapse: collapse }}
td {{ border-bottom: 1px solid #eee; padding: .2rem 1rem .2rem 0; vertical-align: top; overflow-wrap: normal }}
@media (max-width: 45rem) {{
  td {{ display: block; border: 0; padding: 0; overflow-wrap: anywhere }}
  tr {{ display: block; border-bottom: 1px solid #ddd; padding: .3rem 0 }}
  td:empty {{ display: none }}
}}
@media (prefers-color-scheme: dark) {{
  body {{ color: #ddd; background: #181818 }}
  a {{ color: #8ab4f8 }}
  code {{ background: #2b2b2b }}
  h3, td, tr {{ border-color: #444 }}
}}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{description} Everything below is in the <a href="../api-doc/openapi.json">OpenAPI document</a>.</p>
"""


class Pages:
    """The handlers of the OpenAPI document and its page."""

    def __init__(self, settings: TgiSettings) -> None:
        self._document = EncodedDocument(lambda: document(settings), PREFIX)

    @cached_property
    def _page(self) -> bytes:
        return "\n".join(_page(self._document.content)).encode()

    async def openapi(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /api-doc/openapi.json``."""
        await context.reply(self._document.encode(context.root_path))

    async def docs(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /docs``: the page's address, relative to this one so that any prefix stays."""
        await context.reply(None, status=303, headers={"location": "docs/"})

    async def page(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /docs/``."""
        await context.reply(self._page, content_type="text/html; charset=utf-8")


def _page(made: Mapping[str, Any]) -> Iterator[str]:
    yield _HEAD.format(title=escape(made["info"]["title"]), description=escape(made["info"]["description"]))
    yield "<h2>Operations</h2>"
    for path, methods in made["paths"].items():
        for method, operation in methods.items():
            yield from _operation(method, path, operation)
    yield "<h2>Schemas</h2>"
    for name, schema in made["components"]["schemas"].items():
        yield from _schema(name, schema)
    yield "</body>\n</html>\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h3 id='{operation['operationId']}'><code>{method.upper()} {escape(path)}</code></h3>"
    yield f"<p>{escape(operation['summary'])}</p>"
    body = operation.get("requestBody")
    yield "<table>"
    if body:
        yield from _contents("Body", "", body["content"])
    for status, response in operation["responses"].items():
        yield from _contents(status, response["description"], response.get("content", {"": {"schema": {}}}))
    yield "</table>"


def _contents(what: str, description: str, content: dict[str, Any]) -> Iterator[str]:
    for media, each in content.items():
        cells = (escape(what), escape(description), escape(media), _type(each["schema"]))
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"<h3 id='{name}'>{name}</h3>"
    properties = schema.get("properties")
    if not properties:
        yield f"<p>{_type(schema)}</p>"
        return
    yield "<table>"
    for field, each in properties.items():
        required = "required" if field in schema.get("required", ()) else ""
        cells = (f"<code>{escape(field)}</code>", required, _type(each), escape(each.get("description", "")))
        yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    yield "</table>"


def _type(schema: dict[str, Any]) -> str:
    """Return a schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href='#{name}'>{name}</a>"
    for word, between in (("anyOf", " or "), ("allOf", " and ")):
        if word in schema:
            return between.join(map(_type, schema[word]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(each)}</code>" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema['items'])}"
    if "properties" in schema:
        members = ", ".join(
            f"<code>{escape(name)}</code>: {_type(each)}" for name, each in schema["properties"].items()
        )
        return f"object ({members})"
    return str(schema.get("type", "anything" if schema else ""))


def page_operations(settings: TgiSettings) -> tuple[Operation, ...]:
    """Return the document and its page."""
    pages = Pages(settings)
    return tuple(
        Operation(method="GET", path=path, summary=summary, handler=handler, open=True, statuses=(status,), media=media)
        for path, summary, handler, status, media in (
            ("/api-doc/openapi.json", "The OpenAPI document of this dialect.", pages.openapi, 200, None),
            ("/docs", "Where the page is that shows it.", pages.docs, 303, ()),
            ("/docs/", "The page.", pages.page, 200, ("text/html",)),
        )
    )
