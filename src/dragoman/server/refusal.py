"""The answer that a connection gives by itself, to input that is not a valid request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from dragoman.core.errors import BadRequest, DragomanError
from dragoman.dialects.api import ErrorResponse
from dragoman.server.middleware import REFUSED, RequestLog, new_request_id

# The log line of the refusal says more.
logging.getLogger("uvicorn.error").addFilter(lambda record: record.msg != "Invalid HTTP request received.")


HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
"""What a client begins with that speaks HTTP/2 without asking first (RFC 9113, section 3.4)."""

ONLY_HTTP1 = "This server speaks HTTP/1.1, and not HTTP/2 without TLS."


NO_TLS = "This port speaks HTTP without TLS: its address begins with http://. --tls-cert makes it speak TLS."
NO_PROXY_PROTOCOL = (
    "This server does not read the PROXY protocol: switch it off in the proxy (HAProxy's send-proxy, nginx' "
    "proxy_protocol), which names clients in X-Forwarded-For."
)


def other_protocol(data: bytes) -> tuple[int, DragomanError, bytes, str] | None:
    """Return how a connection is refused that begins with another protocol: status, error, the whole answer where it is
    not the error's, and the protocol's name. None for what may be HTTP."""
    if data.startswith(HTTP2_PREFACE):
        return 505, BadRequest(ONLY_HTTP1), http2_refusal(), "HTTP/2"
    if data.startswith(b"\x16\x03"):  # a handshake (RFC 8446, section 5.1)
        return 400, BadRequest(NO_TLS), b"", "TLS"
    if data.startswith((b"PROXY ", b"\r\n\r\n\0\r\nQUIT\n")):
        return 400, BadRequest(NO_PROXY_PROTOCOL), b"", "PROXY"
    return None


def head_fault(version: str, hosts: int, codings: Sequence[bytes]) -> str:
    """Return what is wrong with the head of a request that the parser takes; empty where nothing is.

    ``hosts``: the number of its Host headers (RFC 9112, section 3.2). ``codings``: the values of its Transfer-Encoding
    (section 6.1).
    """
    if version not in ("1.0", "1.1"):
        return f"HTTP/{version} is not spoken here."
    if hosts > 1:
        return "The request has more than one Host header."
    if version == "1.1" and not hosts:
        return "The request has no Host header."
    if any(coding.strip().lower() != b"chunked" for coding in codings):
        return "The only transfer coding that this server decodes is 'chunked'."
    return ""


def http2_refusal() -> bytes:
    """Return what tells an HTTP/2 client to come again with HTTP/1.1: empty settings, and a GOAWAY frame with the code
    HTTP_1_1_REQUIRED and the reason in words."""
    no_stream, http_1_1_required = bytes(4), (13).to_bytes(4, "big")
    goaway = no_stream + http_1_1_required + ONLY_HTTP1.encode()
    return _frame(4, b"") + _frame(7, goaway)


def _frame(kind: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2 without flags, of the connection itself."""
    return len(payload).to_bytes(3, "big") + bytes([kind]) + bytes(5) + payload


def refusal_bytes(answer: ErrorResponse, status: int, request_id: str) -> bytes:
    """Return the whole answer as bytes; the connection is closed after it."""
    told = answer.body_of(request_id)
    body = told if isinstance(told, bytes) else msgspec.json.encode(told)
    headers = {"content-type": "application/json", **answer.headers, "content-length": str(len(body))}
    if status == 503:
        headers.setdefault("retry-after", "1")
    headers |= {"x-request-id": request_id, "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{lines}\r\n".encode() + body


def note_refusal(
    requests: RequestLog | None,
    begun: Sequence[Any],
    status: int,
    seconds: float,
    client: tuple[str, int] | None,
    method: str,
    url: bytes,
) -> str:
    """Have the refusal logged and counted, once. Returns the request's id.

    ``begun``: the cycles of requests that the application has already, and logs itself.
    """
    for cycle in begun:
        cycle.scope[REFUSED] = status
        if "request_id" in cycle.scope:
            return str(cycle.scope["request_id"])
    request_id = new_request_id()
    if requests is not None and not begun:
        path = url.partition(b"?")[0][:256].decode("ascii", "replace")
        requests.note(
            status=status,
            seconds=seconds,
            request_id=request_id,
            client=client,
            method=method,
            path="".join(c if c.isprintable() else "?" for c in path) or "-",
        )
    return request_id
