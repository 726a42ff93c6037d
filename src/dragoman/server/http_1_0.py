"""Answers to clients of HTTP/1.0, which know no chunks: an answer of unknown length ends with its connection."""

import sys

from starlette.types import Message, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def end_with_connection(cycle: RequestResponseCycle) -> None:
    """Have an answer without a `content-length` written as it is, up to the end of the connection.

    uvicorn would send it in chunks, which RFC 9112, section 6.1, forbids towards such a client: it would take their
    sizes for a part of the answer. uvicorn closes the connection behind an answer to HTTP/1.0 in any case.
    """
    send: Send = cycle.send  # type: ignore[assignment]
    cycle.waiting_for_100_continue = False  # nor do they know interim answers (RFC 9110, section 15.2)
    is_unknown = False

    async def send_unframed(message: Message) -> None:
        nonlocal is_unknown
        if message["type"] == "http.response.start":
            is_unknown = not any(name.lower() == b"content-length" for name, _ in message.get("headers", []))
            if is_unknown:
                cycle.chunked_encoding = False
                cycle.expected_content_length = sys.maxsize
        elif is_unknown and message["type"] == "http.response.body" and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_unframed  # type: ignore[method-assign, assignment]
