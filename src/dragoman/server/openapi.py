"""The server's description of itself: an OpenAPI document, and a web page that shows it."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from importlib.resources import files

import msgspec

import dragoman
from dragoman.core.serving import Serving
from dragoman.dialects.api import Dialect, Operation, RequestContext
from dragoman.dialects.openapi import EncodedDocument, openapi_document

HTML = "text/html; charset=utf-8"
PAGE = (files("dragoman.server") / "documents.html").read_text("utf-8")


def with_documents(
    bare: Sequence[Dialect], prefixed: Sequence[Dialect], own: Dialect, *, secured: bool
) -> tuple[list[Dialect], list[Dialect]]:
    """Return the dialects, those for bare paths and those for prefixed ones, with the documents added.

    ``own`` is the bare dialect with the server's own operations: it gets the document of all. ``secured``: the server
    asks for API keys.
    """
    for_bare: list[Dialect] = []
    # The document is made when it is asked for, and then has these documents too.
    whole = (document_of(for_bare, "/openapi.json", secured=secured), *_pages("/openapi.json", "/docs"))
    for dialect in bare:
        paths = dialect.document_paths
        documents = tuple(document_of([dialect], path, secured=secured) for path in paths)
        more = (
            whole
            if dialect is own
            else (*documents, *_pages(paths[0] if paths else "/openapi.json", *dialect.page_paths))
        )
        for_bare.append(_extended(dialect, more))
    for_prefixed = []
    for dialect in prefixed:
        prefix = f"/{dialect.name}"
        paths = ("/openapi.json", *dialect.document_paths)
        more = tuple(document_of([dialect], path, prefix=prefix, secured=secured) for path in paths)
        for_prefixed.append(_extended(dialect, (*more, *_pages(paths[0], "/docs", *dialect.page_paths, prefix=prefix))))
    return for_bare, for_prefixed


def document_of(dialects: Sequence[Dialect], path: str, *, prefix: str = "", secured: bool) -> Operation:
    """``GET path``: the OpenAPI document of these dialects, their paths beginning with the prefix."""

    made = EncodedDocument(
        lambda: openapi_document(dialects, version=dragoman.__version__, prefix=prefix, secured=secured)
    )

    async def document(serving: Serving, exchange: RequestContext) -> None:
        await exchange.reply(made.encode(exchange.root_path))

    return Operation(method="GET", path=path, summary="This document.", handler=document, open=True)


def _pages(document: str, *paths: str, prefix: str = "") -> tuple[Operation, ...]:
    """Return an operation for the page at each of the paths, also with a slash at the end.

    The page names its document relative to itself: a proxy may have it all under a path of its own.
    """

    def operation(path: str) -> Operation:
        relative = posixpath.relpath(document, posixpath.dirname(path))
        body = PAGE.replace("{document}", prefix + document).replace("{address}", relative).encode()

        async def page(serving: Serving, exchange: RequestContext) -> None:
            await exchange.reply(body, content_type=HTML)

        summary = "These documents to read."
        return Operation(method="GET", path=path, summary=summary, handler=page, open=True, media=(HTML,))

    return tuple(operation(each) for path in paths for each in (path, path + "/"))


def _extended(dialect: Dialect, more: Sequence[Operation]) -> Dialect:
    """Return the dialect with those operations that it does not have itself."""
    has = {(operation.method, operation.path) for operation in dialect.operations}
    added = (each for each in more if (each.method, each.path) not in has)
    return msgspec.structs.replace(dialect, operations=(*dialect.operations, *added))
