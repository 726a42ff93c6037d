"""A parser that declines offers of another protocol (``Upgrade: h2c``, as Java's HTTP client makes with its first
request), but for WebSockets where a path has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from typing import Any

import httptools

from dragoman.server.framing import origin_form

CONNECT = b"CONNECT"


class UpgradeIgnoringParser:
    """``httptools``' request parser, without offers of another protocol.

    RFC 9110, section 7.8: a server may ignore ``Upgrade``. The library cannot: it takes whatever follows the headers,
    the body too, for the other protocol. So the head is parsed once more, without the offer, before the rest. The
    protocol's callbacks for the head run twice: while ``declines`` is true, they should do nothing.

    ``socket_paths``: the paths where an offer of a WebSocket is accepted.
    """

    def __init__(self, protocol: Any, socket_paths: Container[bytes] = ()) -> None:
        self._protocol = protocol
        self._socket_paths = socket_paths
        self._parser = self._new_parser()

    @property
    def declines(self) -> bool:
        """Return, inside a callback, whether this head will be parsed again."""
        return bool(self._parser.should_upgrade()) and self._parser.get_method() != CONNECT and not self.opens_socket

    @property
    def opens_socket(self) -> bool:
        """Return, inside a callback or after one, whether this head asks for a WebSocket on a path that has one."""
        if not self._parser.should_upgrade() or self._parser.get_method() != b"GET":
            return False
        upgrade = next((value for name, value in self._protocol.headers if name.lower() == b"upgrade"), b"")
        path = origin_form(self._protocol.url).partition(b"?")[0]
        return upgrade.lower() == b"websocket" and path in self._socket_paths

    def feed_data(self, data: bytes) -> None:
        """Feed the data as the library does; HttpParserUpgrade is raised only for CONNECT and WebSockets."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self.declines:
                raise
            head = self._head_without_offer()
            self._parser = self._new_parser()
            self._parser.feed_data(head + data[offer.args[0] :])

    def get_method(self) -> bytes:
        return bytes(self._parser.get_method())

    def get_http_version(self) -> str:
        return str(self._parser.get_http_version())

    def should_keep_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    def should_upgrade(self) -> bool:
        return bool(self._parser.should_upgrade())

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self._protocol)
        with contextlib.suppress(AttributeError):  # older libraries are always lenient in this, as uvicorn expects
            parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _head_without_offer(self) -> bytes:
        version = self.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._protocol.url, version)]
        for name, value in self._protocol.headers:
            if name.lower() == b"connection":
                options = [option.strip() for option in value.split(b",")]
                value = b", ".join(
                    option for option in options if option.lower() not in (b"upgrade", b"http2-settings")
                )
            if name.lower() != b"upgrade":
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])
