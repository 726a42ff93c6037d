"""The client of a request that a proxy passed on: only the operator's own proxies are trusted."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from dragoman.core.errors import DragomanError

UNIX = "unix"
"""The entry of the trusted addresses for connections over a Unix socket."""

MAX_HOPS = 64
"""Entries that are read, from the nearest proxy on. ``Forwarded`` may have no more."""

MAX_PREFIX = 256

MAX_FORWARDED_BYTES = 8192
"""The most bytes of a ``Forwarded`` header. One of 64 KB, which a client can send, takes 40 ms to parse."""

ForwardedHeader = Literal["x-forwarded-for", "forwarded"]

_PAIR = rb'[!#$%&\'*+.^_`|~\w-]+=(?:"(?:[^"\\]|\\.)*"|[^;,\s"]+)'
_PREFIX = re.compile(rb"(?:/[\w.~%-]+)+", re.ASCII)
_ELEMENT = re.compile(rb"\s*(" + _PAIR + rb"(?:\s*;\s*" + _PAIR + rb")*)\s*(?:,|$)", re.ASCII)
_PARAMETER = re.compile(rb'([^;=\s]+)=("(?:[^"\\]|\\.)*"|[^;"\s]+)')


class TrustedProxies:
    """Addresses and networks that are trusted to name the client. Raises DragomanError for an entry that is neither.

    ``header``: which of the two the proxies write. The other one is never read: they pass on what a client put there.
    """

    def __init__(self, trusted: Iterable[str] = (), header: ForwardedHeader = "x-forwarded-for") -> None:
        self._header = header.encode()
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._unix = False
        for each in trusted:
            if each == UNIX:
                self._unix = True
                continue
            try:
                self._networks.append(ipaddress.ip_network(each, strict=False))
            except ValueError:
                raise DragomanError(
                    f"--trusted-proxy {each}: not an address, nor a network such as 10.0.0.0/8, nor '{UNIX}'"
                ) from None

    def trusts(self, host: str) -> bool:
        """Return whether the peer is one of the proxies; empty: the other end of a Unix socket."""
        if not host:
            return self._unix
        if not self._networks:
            return False
        address = _address(host)
        return address is not None and any(address in network for network in self._networks)

    def client(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the client's address: the nearest one in the header that is not a trusted proxy.

        Entries further away may be written by the client itself. ``peer``: a trusted address, returned where no other
        is named.
        """
        value = b",".join(value for name, value in headers if name == self._header)
        hops = _forwarded(value, b"for") if self._header == b"forwarded" else _listed(value)
        found = peer
        for hop in reversed(hops):
            address = _address(hop)
            if address is None:  # "unknown", an obfuscated name, or nonsense: no entry further away can be trusted
                break
            found = str(address)
            if not self.trusts(found):
                break
        return found

    def scheme(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """Return ``http`` or ``https``, the scheme of the request to the nearest proxy; None where the header does
        not say."""
        if self._header == b"forwarded":
            found = _forwarded(b",".join(value for name, value in headers if name == b"forwarded"), b"proto")
        else:
            found = _listed(b",".join(value for name, value in headers if name == b"x-forwarded-proto"))
        scheme = found[-1].lower() if found else ""
        return scheme if scheme in ("http", "https") else None

    def prefix(self, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """Return the path that the nearest proxy has taken off the client's, without a slash at its end; empty where
        the header does not say. There is none that goes with ``Forwarded``."""
        if self._header == b"forwarded":
            return ""
        found = b",".join(value for name, value in headers if name == b"x-forwarded-prefix")
        prefix = found.rpartition(b",")[2].strip().rstrip(b"/")
        return prefix.decode("ascii") if len(prefix) <= MAX_PREFIX and _PREFIX.fullmatch(prefix) else ""


def _listed(value: bytes) -> list[str]:
    """Return the last entries of a list with commas."""
    return [each.decode("latin-1").strip() for each in value.rsplit(b",", MAX_HOPS)[-MAX_HOPS:] if each.strip()]


def _forwarded(value: bytes, name: bytes) -> list[str]:
    """Return a parameter of each of the last elements of ``Forwarded`` (RFC 7239), empty where it has none.

    All of the header has to be well-formed: by an open quotation mark a client could take what its proxy adds into a
    quoted string. A header that is too long is ignored.
    """
    if len(value) > MAX_FORWARDED_BYTES:
        return []
    found: list[str] = []
    at = 0
    while at < len(value):
        element = _ELEMENT.match(value, at)
        if element is None or len(found) == MAX_HOPS:
            return []
        pairs = {key.lower(): text for key, text in _PARAMETER.findall(element[1])}
        found.append(pairs.get(name, b"").decode("latin-1").strip('"'))
        at = element.end()
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a text, which may have a port and brackets; IPv4 inside of IPv6 is IPv4."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
