"""One line of a batch as a request to the application: its own headers, entropy and caller, and no connection."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from starlette.types import ASGIApp, Message

from dragoman.core.batches import BatchLine, StoredBatch
from dragoman.core.caller import is_deferrable
from dragoman.core.entropy import Entropy
from dragoman.server.exchange import ON_LEFT
from dragoman.server.middleware import ARRIVED_WITH
from dragoman.server.scope_reader import ACCEPTED_CALLER


def line_request_id(batch: StoredBatch, line: BatchLine) -> str:
    """Return the id of a line's request, which follows from the batch and the line, as all that is random about it."""
    return f"req-{_arrival(batch, line).draw_named('request', 12).hex()}"


def _arrival(batch: StoredBatch, line: BatchLine) -> Entropy:
    key = hashlib.blake2b(f"{batch.id}\0{line.custom_id}".encode(), digest_size=32).digest()
    return Entropy(key, float(batch.created_s))


class LineExchange:
    """Asks the application, and collects its answer.

    Attributes:
        status: of the answer; 0: there is none. retry_after_s: what it says about that.
        body: of the answer, as far as it came.
    """

    def __init__(self, batch: StoredBatch, line: BatchLine, path: str, body: bytes) -> None:
        self.status, self.retry_after_s, self.body = 0, 1.0, bytearray()
        self._request: bytes | None = body
        self._gone = asyncio.Event()
        self._extensions: dict[str, Any] = {}
        caller = batch.caller
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"x-request-id", line_request_id(batch, line).encode()),
            ],
            "client": (caller.address, 0) if caller.address else None,
            "server": None,
            "state": {},
            "extensions": self._extensions,
            ARRIVED_WITH: _arrival(batch, line),
            ACCEPTED_CALLER: caller,
        }

    async def run(self, app: ASGIApp) -> None:
        """Return when the request is answered, or cut."""
        is_deferrable.set(True)  # in the task of this line alone
        await app(self._scope, self._receive, self._send)

    def cut(self) -> None:
        """End the request as if its client had left."""
        self._gone.set()
        if (on_left := self._extensions.get(ON_LEFT)) is not None:
            on_left()

    async def _receive(self) -> Message:
        body, self._request = self._request, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            waits = [value for name, value in message["headers"] if name.lower() == b"retry-after"]
            if waits and waits[0].isdigit():
                self.retry_after_s = float(waits[0])
        else:
            self.body += message.get("body", b"")
