"""What the server lends to a dialect, an exchange to read from and answer through; and what a dialect is to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.serving import Serving
from dragoman.dialects.field import Reading, Table

Result = TypeVar("Result")


class NotJson(BadRequest):
    """The body is not JSON at all; some dialects answer this otherwise than JSON of the wrong shape."""


class WrongMediaType(BadRequest):
    """The body says that it is something else than JSON."""


class Exchange(Protocol):
    """One HTTP request and its answer. Errors raised by a handler are answered in the words of its dialect."""

    request_id: str
    headers: Mapping[str, str]
    path_params: Mapping[str, str]

    async def read(self, table: Table, *, any_content_type: bool = False) -> Reading:
        """The JSON body, checked by the table; bounded in size and time.

        Raises WrongMediaType, NotJson, the table's Violation and UnsupportedFeature, PayloadTooLarge, RequestTimeout.
        """

    async def unless_gone(self, work: Awaitable[Result]) -> Result:
        """Await the work; when the client leaves first, cancel it and raise ``Cancelled``."""

    async def reply(self, content: Any, *, status: int = 200, headers: Mapping[str, str] = ...) -> None:
        """Answer with JSON (any msgspec value), with ``bytes`` as they are, or with nothing (None)."""

    async def stream(
        self, chunks: AsyncGenerator[bytes, None], *, content_type: str = ..., headers: Mapping[str, str] = ...
    ) -> None:
        """Answer with the chunks as they come.

        The iterator is closed in every case: at the end, when the client leaves, and when it does not read for the
        server's write timeout.
        """


Handler = Callable[[Exchange], Awaitable[None]]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An error as a dialect says it; ``body`` None is an empty body, ``bytes`` are sent as they are."""

    status: int
    body: Any = None
    headers: dict[str, str] = {}


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one path (in Starlette's notation) of a dialect; ``table`` describes the body, if it has one."""

    method: str
    path: str
    summary: str
    handler: Callable[[Serving, Exchange], Awaitable[None]]
    table: Table | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """A wire format: its operations, and its one table of errors.

    Its operations are served under ``/<name>`` and, where no dialect before it claims the path, bare.
    """

    name: str
    title: str
    operations: tuple[Operation, ...]
    render_error: Callable[[DragomanError], Answer]
