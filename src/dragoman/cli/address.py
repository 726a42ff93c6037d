"""Addresses of running servers."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence

import msgspec

from dragoman.core.errors import DragomanError

HERE = "http://127.0.0.1:8000"
"""The server of this machine, where no other is named."""


class Address(msgspec.Struct, frozen=True):
    """The address of a server, the path its API begins with (without a slash at the end), and its key."""

    host: str
    port: int
    path: str
    secure: bool
    key: str = ""

    @classmethod
    def parse(cls, url: str, key: str = "") -> Address:
        """Return the address of ``http://host:port/prefix``; the scheme may be left out. Raises DragomanError for an
        invalid address."""
        if not url.strip():  # of a shell's variable that is not set
            raise DragomanError("--url is empty: name a server, or leave the option out")
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
        except ValueError as error:
            raise DragomanError(f"{url} is not an address: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise DragomanError(f"{url} is not an http or https address")
        secure = parts.scheme == "https"
        try:
            port = (443 if secure else 80) if parts.port is None else parts.port
        except ValueError:
            port = 0
        if not port:
            raise DragomanError(f"{url} names an impossible port")
        # Clients of OpenAI are given a base that ends in /v1; the paths below include it.
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port, path, secure, key)

    @property
    def authority(self) -> str:
        """Return the address as in the ``Host`` header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.path}"


def address_of(url: str | None, api_key: Sequence[str]) -> Address:
    """Return the address that options name. Raises DragomanError for an invalid one."""
    return Address.parse(HERE if url is None else url, next(iter(api_key), ""))
