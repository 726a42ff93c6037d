"""The outermost layer of every request: its id, its line in the log, its count in the metrics, and if there is room."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.core.errors import DragomanError, EngineUnavailable
from dragoman.server.metrics import Metrics

log = logging.getLogger("dragoman.access")

# In ``scope["state"]``: the connection is one too many.
CROWDED = "dragoman.crowded"

_ACCEPTABLE_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
CLIENT_GONE = 499

# How the answer to a request begins, and to one that asks for a WebSocket: with its opening, or with a refusal.
STARTS = {"http": ("http.response.start",), "websocket": ("websocket.accept", "websocket.http.response.start")}
SWITCHING = 101


class Gate:
    """Wraps the application; ``refuse`` answers with an error outside of any route."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, access_log: bool, refuse: Callable[[DragomanError], ASGIApp]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in STARTS:
            await self._app(scope, receive, send)
            return
        began = scope["began"] = time.perf_counter()
        request_id = scope["request_id"] = _request_id(scope)
        status = CLIENT_GONE
        id_header = (b"x-request-id", request_id.encode())

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] in STARTS[scope["type"]]:
                status = message.get("status", SWITCHING)
                message["headers"] = [*message["headers"], id_header]
            await send(message)

        try:
            if scope.get("state", {}).get(CROWDED) and scope["type"] == "websocket":
                await send_with_id({"type": "websocket.http.response.start", "status": 503, "headers": []})
                await send_with_id({"type": "websocket.http.response.body", "body": b""})
            elif scope.get("state", {}).get(CROWDED):
                refusal = self._refuse(EngineUnavailable("The server has as many connections as it can serve."))
                await refusal(scope, receive, send_with_id)
            else:
                await self._app(scope, receive, send_with_id)
        finally:
            if scope.get("gone"):
                status = CLIENT_GONE
            self._metrics.requests.labels(scope.get("dialect", ""), scope.get("operation", ""), str(status)).inc()
            if self._access_log:
                self._write_line(scope, request_id, status, time.perf_counter() - began)

    def _write_line(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        """Neither query nor headers nor body: they may hold secrets, or somebody's text."""
        path = scope.get("raw_path", b"").partition(b"?")[0][:256].decode("ascii", "replace")
        client = scope.get("client") or ("-", 0)
        fields = {
            "client": f"{client[0]}:{client[1]}",
            "method": scope.get("method", "GET"),
            "path": path or scope["path"][:256],
            "status": status,
            "seconds": round(seconds, 6),
            "id": request_id,
        }
        text = 'client=%(client)s method=%(method)s path="%(path)s" status=%(status)d seconds=%(seconds).3f id=%(id)s'
        log.info(text, fields, extra={"title": "request", "fields": fields})


def _request_id(scope: Scope) -> str:
    """The client's own, where it is short and plain; otherwise a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _ACCEPTABLE_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
