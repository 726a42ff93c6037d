"""Reading a request's body, bounded in size and time, and decoding it with precise errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.types import Receive

from dragoman.core.caller import current_caller
from dragoman.core.errors import Cancelled, PayloadTooLarge, RequestTimeout
from dragoman.dialects.api import Dialect, EncodedBody, NotJson, WrongMediaType
from dragoman.dialects.field import Reading, Table
from dragoman.server.body_budget import FREE_BYTES, BodyBudget
from dragoman.server.json_cost import check_complexity
from dragoman.server.settings import ServerSettings

_decode = msgspec.json.Decoder().decode


async def read_body(
    receive: Receive,
    headers: Mapping[str, str],
    *,
    max_bytes: int,
    timeout_s: float,
    budget: BodyBudget,
    ordinary_bytes: int | None = None,
) -> bytes:
    """Return the whole body. The budget has counted what is beyond its first ``FREE_BYTES``; or, where it is longer
    than ``ordinary_bytes``, all of it as that of a large one.

    Raises PayloadTooLarge (unread, if its length is announced), RequestTimeout, Cancelled, EngineUnavailable.
    """
    announced = headers.get("content-length", "0")
    if announced.isdigit() and int(announced[:20]) > max_bytes:
        raise too_large(max_bytes)
    body: bytes | bytearray = b""
    chunk: bytes = b""
    taken = large = 0
    ordinary = max_bytes if ordinary_bytes is None else ordinary_bytes
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Cancelled("The client left before its request was complete.")
                chunk = message.get("body", b"")
                size = len(body) + len(chunk)
                if size > max_bytes:
                    raise too_large(max_bytes)
                if size > ordinary:
                    budget.take_large(size - large)
                    budget.give_back(taken)
                    taken, large = 0, size
                elif size > FREE_BYTES:
                    budget.take(size - FREE_BYTES - taken)
                    taken = size - FREE_BYTES
                # One growing piece: thousands of small ones would take a multiple of their bytes.
                if not body:
                    body = chunk
                elif isinstance(body, bytearray):
                    body += chunk
                else:
                    body = bytearray(body) + chunk
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        budget.give_back(taken)
        budget.give_back_large(large)
        raise RequestTimeout(f"The request's body did not arrive within {timeout_s:g} seconds.") from None
    except BaseException:
        budget.give_back(taken)
        budget.give_back_large(large)
        raise
    finally:
        # An error keeps the frame, in a cycle that the collector may find minutes later.
        body, chunk, message = b"", b"", {}


BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def decode_json(body: bytes) -> Any:
    """Return the JSON value. Of equal keys the last one counts. A byte order mark before it means nothing.

    Raises NotJson with the fault of the text, and PayloadTooLarge for a text that would take too long to decode.
    """
    body = body.removeprefix(BYTE_ORDER_MARK)
    check_complexity(body)
    try:
        return _decode(body)
    except UnicodeDecodeError:
        raise NotJson("The request's body is not valid UTF-8.") from None
    except RecursionError:
        raise NotJson("The request's body is nested too deeply.") from None
    except ValueError as error:
        raise NotJson(f"The request's body is not valid JSON: {_json_fault(body, str(error))}.") from None


_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _json_fault(body: bytes, told: str) -> str:
    """Return what is wrong with a JSON text, by what its decoder has told."""
    if not body:
        return "it is empty"
    # Texts that a client has cut in the middle of an emoji. Near the end of a body the other half seems to be missing.
    if "surrogate" in told or ("truncated" in told and _HALF_PAIR.search(body[-16:])):
        return "a character is half of a UTF-16 surrogate pair"
    return told.partition(" - at ")[0]  # the place in the value, which says nothing here


def check_encoding(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise EncodedBody where the body is compressed. ``headers``: those of an ASGI scope."""
    given = b",".join(value for name, value in headers if name == b"content-encoding").decode("latin-1").lower()
    encodings = [each for each in map(str.strip, given.split(",")) if each not in ("", "identity")]
    if encodings:
        shown = ", ".join(encodings)[:64]
        raise EncodedBody(f"The body must not be compressed; its content encoding is '{shown}'.")


def check_content_type(headers: Mapping[str, str]) -> None:
    """Raise WrongMediaType where the content type is neither JSON nor absent."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type and content_type != "application/json" and not content_type.endswith("+json"):
        shown = content_type[:64]
        raise WrongMediaType(f"The content type must be application/json, not '{shown}'.")


def body_limit(dialect: Dialect | None, settings: ServerSettings) -> int:
    """Return the most bytes of a body: the dialect's limit, or else the server's."""
    own = None if dialect is None else dialect.max_body_bytes
    return settings.max_body_bytes if own is None else own


def image_body_limit(dialect: Dialect | None, settings: ServerSettings) -> int:
    """Return the most bytes of a body where a model sees images."""
    ordinary = body_limit(dialect, settings)
    if dialect is not None and dialect.max_body_bytes is not None and not dialect.takes_image_bodies:
        return ordinary
    return max(ordinary, most_image_body(settings))


def most_image_body(settings: ServerSettings) -> int:
    """Return the most bytes of a body with images: no more than all images may take."""
    return min(settings.max_image_body_bytes, settings.image_bytes)


def too_large(max_bytes: int) -> PayloadTooLarge:
    """Return the error of a body beyond the limit."""
    return PayloadTooLarge(f"The request's body is larger than the {max_bytes} bytes that this server accepts.")


def read_table(table: Table, body: Any, *, strict: bool) -> Reading:
    """Return a body checked by the table, with the highest priority that the caller may have."""
    reading = table.read(body, strict=strict)
    priority, most = reading.values.get("priority"), current_caller.get().limits.max_priority
    if priority is None or priority <= most:
        return reading
    values = {**reading.values, "priority": most}
    return msgspec.structs.replace(reading, values=values, lowered=("priority",) if priority else ())
