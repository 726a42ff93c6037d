"""Images of hosts that the operator allows.

An address of a client's choice is dialled from inside the operator's network. So a host is looked up once, all its
addresses are checked, and one of these is dialled: a name cannot mean another address later. Every redirect is checked
the same way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import httptools

from dragoman.core.errors import BadImage, DragomanError, UnsupportedFeature
from dragoman.serving.image_header import MAX_FILE_BYTES

PORT = 443
TIMEOUT_S = 10.0
MAX_REDIRECTS = 3
MAX_HEAD_BYTES = 1 << 16
READ_BYTES = 1 << 16
MAX_FETCHES = 16
"""Images that are fetched at one time, by all requests."""

_REDIRECTS = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
LookUp = Callable[[str], Awaitable[Sequence[str]]]
Dial = Callable[[str, str], Awaitable[Streams]]


async def dial(address: str, host: str) -> Streams:
    """Connect to an address, which has to prove by its certificate that it is the host."""
    tls = ssl.create_default_context()
    return await asyncio.open_connection(address, PORT, ssl=tls, server_hostname=host, limit=READ_BYTES)


class ImageFetcher:
    """Fetches files over HTTPS from the hosts of the operator's list: names, or ``*.name`` for all below one."""

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        look_up: LookUp,
        dial: Dial = dial,
        timeout_s: float = TIMEOUT_S,
        max_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """``look_up``: returns the addresses of a host. ``dial``: as the function of that name.

        Raises DragomanError for what is no host.
        """
        self._hosts = frozenset(map(host_pattern, hosts))
        self._look_up, self._dial = look_up, dial
        self._timeout_s, self._max_bytes = timeout_s, max_bytes

    async def fetch(self, url: str) -> bytes:
        """Return the file. Raises BadImage, and UnsupportedFeature for a host that is not allowed."""
        self._target(url)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url)
        except TimeoutError:
            raise _failed(f"it did not arrive within {self._timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise _failed(f"its host cannot be reached ({reason})") from None

    async def _follow(self, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            target = self._target(url)
            streams = await self._connected(target.host)
            try:
                answer = await self._answer(streams, target)
            finally:
                streams[1].transport.abort()
            if not answer.location:
                return bytes(answer.body)
            url = urljoin(url, answer.location)
        raise _failed(f"it was redirected more than {MAX_REDIRECTS} times")

    def _target(self, url: str) -> _Target:
        """Return where a URL leads. Raises BadImage, UnsupportedFeature."""
        if not self._hosts:
            message = "Images are taken as 'data:' URLs only: this server fetches none (--image-hosts)."
            raise UnsupportedFeature(message)
        if len(url) > 8192 or any(ord(sign) <= 32 or ord(sign) == 127 for sign in url):
            raise _refused("its address is not a URL")
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname or ""
        except ValueError:
            raise _refused("its address is not a URL") from None
        if parts.scheme != "https":
            raise _refused("its address has to begin with 'https:' or 'data:'")
        if "@" in parts.netloc or "\\" in url:
            raise _refused("its address may have no user and no backslash")
        if port not in (None, PORT):
            raise _refused(f"its address may have no port but {PORT}")
        host = _plain(host)
        if not self._allows(host):
            raise UnsupportedFeature(f"Images are not fetched from '{host[:256]}': the operator has not allowed it.")
        return _Target(host, _path(parts))

    def _allows(self, host: str) -> bool:
        labels = host.split(".")
        above = (".".join(("*", *labels[i:])) for i in range(1, len(labels)))
        return host in self._hosts or any(name in self._hosts for name in above)

    async def _connected(self, host: str) -> Streams:
        """Look a host up, once, and connect to one of its addresses."""
        addresses = list(dict.fromkeys(await self._look_up(host)))[:8]
        if not addresses:
            raise _failed("its host has no address")
        if not all(map(is_public, addresses)):
            raise _failed("its host has an address that is not public")
        for address in addresses[:-1]:
            try:
                async with asyncio.timeout(self._timeout_s / 4):
                    return await self._dial(address, host)
            except (OSError, TimeoutError):
                continue
        return await self._dial(addresses[-1], host)

    async def _answer(self, streams: Streams, target: _Target) -> _Answer:
        reader, writer = streams
        head = (
            f"GET {target.path} HTTP/1.1\r\nhost: {target.host}\r\nuser-agent: dragoman\r\n"
            "accept: image/*\r\naccept-encoding: identity\r\nconnection: close\r\n\r\n"
        )
        writer.write(head.encode("ascii"))
        answer = _Answer(self._max_bytes)
        while not answer.is_complete:
            data = await reader.read(READ_BYTES)
            if not data and not answer.ends_with_connection:
                raise _failed("its host ended the answer early")
            if not data:
                break
            answer.feed(data)
        return answer


class _Target(NamedTuple):
    host: str
    path: str


class _Answer:
    """The answer to one request. Its methods are the callbacks of the parser, which hides what they raise: so they
    note it."""

    def __init__(self, max_bytes: int) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._max_bytes = max_bytes
        self._head_bytes = 0
        self._fault = ""
        self._length: int | None = None
        self._is_chunked = self._has_head = False
        self.body = bytearray()
        self.location = ""
        self.is_complete = False

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection ends the body: its length is not said."""
        return self._has_head and self._length is None and not self._is_chunked

    def feed(self, data: bytes) -> None:
        """Read some bytes. Raises BadImage."""
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fault = self._fault or "its host wants another protocol"
        except httptools.HttpParserError:
            self._fault = self._fault or "its host's answer is not HTTP"
        if not self._has_head and self._head_bytes > MAX_HEAD_BYTES:
            self._fault = self._fault or "its host's answer has too many headers"
        if self._fault:
            raise _failed(self._fault)

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"location":
                self.location = value.decode("latin-1")
            case b"content-length" if value.isdigit():
                self._length = int(value)
            case b"transfer-encoding":
                self._is_chunked = True
            case b"content-encoding" if value.strip().lower() not in (b"", b"identity"):
                self._fault = self._fault or "its host sent it compressed"

    def on_headers_complete(self) -> None:
        self._has_head = True
        status = self._parser.get_status_code()
        if status in _REDIRECTS and self.location:
            self.is_complete = True
            return
        self.location = ""
        if status != 200:
            self._fault = self._fault or f"its host answered with status {status}"
        elif (self._length or 0) > self._max_bytes:
            self._note_too_large(self._length or 0)

    def on_body(self, data: bytes) -> None:
        if self.is_complete or self._fault:
            return
        self.body += data
        if len(self.body) > self._max_bytes:
            self._note_too_large(len(self.body))

    def on_message_complete(self) -> None:
        self.is_complete = True

    def _note_too_large(self, size: int) -> None:
        self._fault = self._fault or f"its file has {size} bytes or more, and the most are {self._max_bytes}"


def is_public(address: str) -> bool:
    """Return whether an address is one of the public Internet: not of this machine, of a private network or of a link,
    and none that hides another one."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id or found.ipv4_mapped or found.sixtofour or found.teredo:
            return False
        if found in _NAT64:  # how networks without IPv4 write the addresses of others
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast and not found.is_reserved


def host_pattern(given: str) -> str:
    """Return a host of the operator's list as it is compared. Raises DragomanError."""
    name = given.strip().lower()
    wild = name.startswith("*.")
    plain = _plain(name[2:] if wild else name)
    if not _NAME.fullmatch(plain):
        raise DragomanError(
            f"--image-hosts: '{given}' is no name of a host: expected one like images.example.com or *.example.com"
        )
    return f"*.{plain}" if wild else plain


def _plain(host: str) -> str:
    """Return a host as certificates have it."""
    host = host.lower().removesuffix(".")
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return ""


def _path(parts: SplitResult) -> str:
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = quote(parts.query, safe="/%:@!$&'()*+,;=~-._?")
    return f"{path}?{query}" if query else path


def _failed(reason: str) -> BadImage:
    return BadImage("failed_to_download_image", reason)


def _refused(reason: str) -> BadImage:
    return BadImage("invalid_image_url", reason)
