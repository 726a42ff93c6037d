"""A small client of a running OpenAI-compatible server: JSON answers and event streams over asyncio sockets.

It is light because it also measures: on two cores, every microsecond of the client is taken from the server.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from dragoman.cli.address import Address
from dragoman.core.decoding import UNDECODABLE
from dragoman.core.errors import EngineUnavailable, GenerationFailed

_LINE_LIMIT = 1 << 22
_ANSWER_LIMIT = 1 << 26


class RateLimited(GenerationFailed):
    """The server asks for a retry after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


async def fetch_json(
    address: Address, path: str, body: dict[str, Any] | None = None, *, timeout_s: float | None = 30
) -> Any:
    """GET the path, or POST ``body`` to it, and return the decoded answer. ``timeout_s`` None: there is no time limit.

    Raises EngineUnavailable when no server answers, GenerationFailed with the server's own message for an error status,
    RateLimited among them.
    """
    try:
        async with asyncio.timeout(timeout_s), _exchange(address, path, body) as lines:
            return msgspec.json.decode(b"".join([line async for line in lines]))
    except TimeoutError:
        raise EngineUnavailable(f"{address} did not answer within {timeout_s:g} s") from None
    except UNDECODABLE as error:
        raise GenerationFailed(f"{address}{path} answered something that is not JSON: {error}") from None


async def fetch_text(address: Address, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = 30) -> str:
    """GET the path, or POST ``body`` to it, and return the answer as text. Raises as ``fetch_json`` does."""
    try:
        async with asyncio.timeout(timeout_s), _exchange(address, path, body) as lines:
            return b"\n".join([line async for line in lines]).decode()
    except TimeoutError:
        raise EngineUnavailable(f"{address} did not answer within {timeout_s:g} s") from None


async def stream_json(address: Address, path: str, body: dict[str, Any]) -> AsyncGenerator[Any, None]:
    """POST ``body`` and yield the JSON of each server-sent event, up to ``[DONE]``. Closing it drops the connection.

    Raises as ``fetch_json`` does, and GenerationFailed for an error that arrives inside the stream.
    """
    async with aclosing(stream_lines(address, path, body)) as lines:
        async for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = msgspec.json.decode(data)
            if isinstance(event, dict) and "error" in event:
                raise GenerationFailed(_error_message(data))
            yield event


async def stream_lines(address: Address, path: str, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    """POST ``body`` and yield the lines of the answer as they come. Otherwise as ``stream_json``."""
    async with _exchange(address, path, body) as lines:
        async for line in lines:
            yield line


@asynccontextmanager
async def _exchange(address: Address, path: str, body: dict[str, Any] | None) -> AsyncIterator[AsyncIterator[bytes]]:
    """Send one request on a new connection; yield the lines of the answer's body."""
    data = b"" if body is None else msgspec.json.encode(body)
    head = (
        f"{'GET' if body is None else 'POST'} {address.path}{path} HTTP/1.1\r\nHost: {address.authority}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\nConnection: close\r\n"
        + (f"Authorization: Bearer {address.key}\r\n" if address.key else "")
        + "\r\n"
    )
    context = ssl.create_default_context() if address.secure else None
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=_LINE_LIMIT, ssl=context)
    except OSError as error:
        # asyncio's text of a refusal is about its own call.
        fault = error.errno or 0
        reason = os.strerror(fault) if fault in errno.errorcode else error.strerror or error
        message = (
            f"nobody answers at {address}: {reason}; `dragoman serve` starts a server, --url names another address"
        )
        raise EngineUnavailable(message) from None
    try:
        writer.write(head.encode() + data)
        status = await _head_line(reader)
        headers: dict[str, str] = {}
        while (line := await _head_line(reader)).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        chunked = headers.get("transfer-encoding") == "chunked"
        lines = _lines(_chunks(reader) if chunked else _blocks(reader, headers.get("content-length")))
        code = status.split(b" ", 2)[1:2]
        if code != [b"200"]:
            answer = b"".join([line async for line in lines])
            number = code[0].decode("latin-1") if code else "no status"
            message = f"{address}{path} answered {number}: {_error_message(answer)}"
            if number == "429":
                wait = headers.get("retry-after", "")
                raise RateLimited(message, float(wait) if wait.isdecimal() else 1.0)
            raise GenerationFailed(message)
        yield lines
    except asyncio.IncompleteReadError:
        raise GenerationFailed(f"the connection to {address} ended in the middle of the answer") from None
    except (OSError, asyncio.LimitOverrunError) as error:
        raise GenerationFailed(f"the connection to {address} broke: {error}") from None
    finally:
        writer.close()


async def _head_line(reader: asyncio.StreamReader) -> bytes:
    """Return a line of an answer's head. Raises GenerationFailed for one that is too long."""
    try:
        return await reader.readline()
    except ValueError:
        raise GenerationFailed("the answer has a line of more than 4 MiB in its head") from None


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the body of a chunked answer (RFC 9112, section 7.1)."""
    while True:
        line = await reader.readuntil(b"\n")
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            raise GenerationFailed(f"the answer has {line!r} where the length of a chunk belongs") from None
        if size == 0:
            return
        yield (await reader.readexactly(size + 2))[:-2]


async def _blocks(reader: asyncio.StreamReader, length: str | None) -> AsyncIterator[bytes]:
    """Yield the body of an answer with a known length, or up to the end of the connection."""
    if length is not None:
        if not length.isdecimal():
            raise GenerationFailed(f"the answer has {length[:40]!r} where its length belongs")
        yield await reader.readexactly(int(length))
        return
    while block := await reader.read(1 << 16):
        yield block


async def _lines(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes cut after each line feed. Raises GenerationFailed for a line that is too long."""
    rest = b""
    async for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield line
        if len(rest) > _ANSWER_LIMIT:
            raise GenerationFailed("the answer has a line of more than 64 MiB")
    if rest:
        yield rest


def _error_message(answer: bytes) -> str:
    """Return the message inside an error body of OpenAI's shape, or LocalLab's, or as much of the body as fits a
    line."""
    try:
        body = msgspec.json.decode(answer)
        error = body.get("error", body.get("detail"))
        if error is None:
            raise KeyError
        return str(error["message"] if isinstance(error, dict) else error)
    except (*UNDECODABLE, AttributeError, KeyError, TypeError):
        return answer[:300].decode(errors="replace").strip() or "an empty answer"
