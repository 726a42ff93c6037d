"""The body of one request: read once, and counted for as long as it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Receive

from dragoman.dialects.api import Dialect
from dragoman.server.body import body_limit, image_body_limit, read_body, too_large
from dragoman.server.body_budget import FREE_BYTES, BodyBudget
from dragoman.server.settings import ServerSettings

UNREAD = object()


class RequestBody:
    """A body, and what the budget counts for its request.

    Attributes:
        size: bytes that were read. json: the decoded value; ``UNREAD``: it is not decoded yet.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        settings: ServerSettings,
        budget: BodyBudget,
        sees_images: Callable[[], bool],
    ) -> None:
        """``sees_images`` returns whether a model in memory sees: bodies may be larger then."""
        self._headers, self._settings = headers, settings
        self._budget, self._sees_images = budget, sees_images
        self._ordinary_bytes = settings.max_body_bytes
        self._content: bytes | None = None
        self._taken = self._large = 0
        self.size = 0
        self.json: Any = UNREAD

    def limit(self, *dialects: Dialect | None) -> int:
        """Return the most bytes that any of these dialects takes."""
        ordinary = self._ordinary_bytes = max(body_limit(dialect, self._settings) for dialect in dialects)
        announced = self._headers.get("content-length", "")
        if (announced.isdigit() and int(announced[:20]) <= ordinary) or not self._sees_images():
            return ordinary
        return max(image_body_limit(dialect, self._settings) for dialect in dialects)

    async def read(self, receive: Receive, max_bytes: int) -> bytes:
        """Return the content, from ``receive`` where it is not read yet. Raises as ``body.read_body``."""
        if self._content is None:
            ordinary = min(self._ordinary_bytes, max_bytes)
            self._content = await read_body(
                receive,
                self._headers,
                max_bytes=max_bytes,
                timeout_s=self._settings.body_timeout_s,
                budget=self._budget,
                ordinary_bytes=ordinary,
            )
            self.size = len(self._content)
            if self.size > ordinary:
                self._large += self.size
            else:
                self._taken = max(0, self.size - FREE_BYTES)
        elif self.size > max_bytes:
            raise too_large(max_bytes)
        return self._content

    def keep(self, size: int) -> None:
        """Count bytes that the request has beside its body. Raises EngineUnavailable."""
        self._budget.take_large(size)
        self._large += size

    def drop(self) -> None:
        """Release the content once everything in it is known: a request may wait and run for minutes. What makes a body
        large stays in the request."""
        self._budget.give_back(self._taken)
        self._taken = 0
        self._content, self.json = None if self._content is None else b"", UNREAD

    def end(self) -> None:
        """Release all that is counted: the request has ended."""
        self.drop()
        self._budget.give_back_large(self._large)
        self._large = 0

    def hand_over(self, other: RequestBody) -> None:
        """Give the content, which has been read, to another exchange of this request."""
        other._content, other.size, other.json = self._content, self.size, self.json
        other._taken, other._large = self._taken, self._large
        self._content, self._taken, self._large, self.json = b"", 0, 0, UNREAD
