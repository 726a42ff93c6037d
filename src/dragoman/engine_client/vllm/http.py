"""HTTP/1.1 client for one server: pooled connections, and answers that are read piece by piece."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httptools

from dragoman.engine_client.vllm.settings import Address

CONNECT_S = 5.0
IDLE_S = 3.0
"""Time for which an unused connection is kept: less than uvicorn's 5 seconds."""
MAX_IDLE = 256
READ_BYTES = 1 << 16
MAX_HEAD_BYTES = 1 << 16
MAX_ANSWER_BYTES = 1 << 30
"""Above any real answer: the log-probabilities of a whole context."""


class HttpFailure(Exception):
    """The connection failed, or what came is not HTTP. ``message`` says which, for the operator.

    ``was_connected``: the request may have reached the server. ``is_silence``: nothing came in time. ``again_s``: the
    server is busy, and asks to be asked again after so many seconds; None: it is not.
    """

    def __init__(
        self,
        message: str,
        *,
        was_connected: bool = True,
        is_silence: bool = False,
        again_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.was_connected, self.is_silence = was_connected, is_silence
        self.again_s = again_s


@asynccontextmanager
async def _within(timeout_s: float | None) -> AsyncIterator[None]:
    """Raise HttpFailure where what follows takes longer: a server may send for ever, byte by byte."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise HttpFailure(f"it has not answered within {timeout_s:g} s", is_silence=True) from None


class _Connection:
    """One connection, and the answer that is being read from it. Its methods are the callbacks of the parser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.idle_since = 0.0
        self.begin()

    def begin(self) -> None:
        """Prepare for the next answer."""
        self._parser = httptools.HttpResponseParser(self)
        self.body = bytearray()
        self.has_headers = self.is_complete = self.has_bytes = self.has_surplus = False
        self.status = self.head_bytes = 0
        self.retry_after = b""

    def on_message_begin(self) -> None:
        self.has_surplus = self.is_complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after":
            self.retry_after = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self.is_complete:
            self.status, self.has_headers = status, True

    def on_body(self, data: bytes) -> None:
        if not self.is_complete:
            self.body += data

    def on_message_complete(self) -> None:
        self.is_complete = self.has_headers

    @property
    def is_reusable(self) -> bool:
        return (
            self.is_complete
            and not self.has_surplus
            and bool(self._parser.should_keep_alive())
            and not self.writer.is_closing()
        )

    async def read_more(self, timeout_s: float | None) -> None:
        """Read and parse some bytes. Raises HttpFailure."""
        try:
            async with asyncio.timeout(timeout_s):
                data = await self.reader.read(READ_BYTES)
        except TimeoutError:
            raise HttpFailure(f"it has sent nothing for {timeout_s:g} s", is_silence=True) from None
        except OSError as error:
            raise HttpFailure(str(error.strerror or error)) from None
        if not data:
            raise HttpFailure("it closed the connection")
        self.has_bytes = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise HttpFailure(f"its answer is not HTTP: {error}") from None
        if not self.has_headers:
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                raise HttpFailure("the head of its answer is too long")

    def close(self) -> None:
        self.writer.transport.abort()


class Answer:
    """The answer to one request: its ``status``, and its body."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.status = connection.status

    @property
    def retry_after_s(self) -> float:
        """Return the seconds of its Retry-After; 0 where it has none."""
        value = self._connection.retry_after.strip()
        return float(value) if value.isdigit() and len(value) < 9 else 0.0

    async def read(self, timeout_s: float | None = None) -> bytes:
        """Return the whole body, which comes in that time. Raises HttpFailure."""
        connection = self._connection
        async with _within(timeout_s):
            while not connection.is_complete:
                await connection.read_more(None)
                if len(connection.body) > MAX_ANSWER_BYTES:
                    raise HttpFailure("its answer is too large")
        return bytes(connection.body)

    async def read_some(self, timeout_s: float | None = None) -> bytes:
        """Return the next piece of the body; empty at its end. Raises HttpFailure."""
        connection = self._connection
        while not connection.body and not connection.is_complete:
            await connection.read_more(timeout_s)
        data = bytes(connection.body)
        connection.body.clear()
        return data


class HttpClient:
    """Sends requests to one server. ``api_key``: sent with each of them."""

    def __init__(self, address: Address, api_key: str | None = None) -> None:
        self.address = address
        host = f"[{address.host}]" if ":" in address.host else address.host
        key = "" if api_key is None else f"authorization: Bearer {api_key}\r\n"
        self._head = f"host: {host}:{address.port}\r\n{key}"
        self._tls = ssl.create_default_context() if address.is_tls else None
        self._idle: list[_Connection] = []

    @asynccontextmanager
    async def send(
        self, method: str, path: str, body: bytes = b"", *, timeout_s: float | None = None
    ) -> AsyncIterator[Answer]:
        """Send a request, and yield the answer when its headers are there. ``timeout_s``: for these.

        Leaving before the body has been read closes the connection, by which the server learns that nobody waits.
        Raises HttpFailure.
        """
        head = f"{method} {self.address.path}{path} HTTP/1.1\r\n{self._head}"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection = await self._answered(head.encode("latin-1") + body, timeout_s)
        try:
            yield Answer(connection)
        finally:
            if connection.is_reusable and len(self._idle) < MAX_IDLE:
                connection.idle_since = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.close()

    async def _answered(self, request: bytes, timeout_s: float | None) -> _Connection:
        """Return the connection on which the headers of the answer have come.

        A pooled connection may have been closed by the server meanwhile: then a new one is tried.
        """
        while True:
            connection = self._pooled()
            is_pooled = connection is not None
            if connection is None:
                connection = await self._connected()
            try:
                connection.writer.write(request)
                async with _within(timeout_s):
                    while not connection.has_headers:
                        await connection.read_more(None)
                return connection
            except HttpFailure:
                connection.close()
                if not is_pooled or connection.has_bytes:
                    raise
            except BaseException:
                connection.close()
                raise

    def _pooled(self) -> _Connection | None:
        oldest = asyncio.get_running_loop().time() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since >= oldest and not connection.reader.at_eof():
                connection.begin()
                return connection
            connection.close()
        return None

    async def _connected(self) -> _Connection:
        address = self.address
        try:
            async with asyncio.timeout(CONNECT_S):
                streams = await asyncio.open_connection(address.host, address.port, ssl=self._tls, limit=READ_BYTES)
        except TimeoutError:
            raise HttpFailure(f"it does not answer within {CONNECT_S:g} s", was_connected=False) from None
        except OSError as error:
            raise HttpFailure(str(error.strerror or error), was_connected=False) from None
        return _Connection(*streams)

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()
