"""A running request at the ingress: what another replica needs to continue it, and what its client has already."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence

from dragoman.dialects.api import IDEMPOTENCY_KEY
from dragoman.server.relay import CLIENT, ENTROPY, INTERNAL, JOURNAL, METHOD, NOW, PREFIX, SCHEME, SECRET

MOST_JOURNAL = 64 * 1024 * 1024
"""Bytes of one request's journal. Tokens take some 40 each; with twenty alternatives, 600."""
MOST_ARRIVALS = 16_384
KEY = IDEMPOTENCY_KEY.name.lower().encode()
NOTICES = (b":", b"event: ping\n", b"event: keepalive\n")
"""How events begin that are about the wait, not of the answer: comments, and what Anthropic's dialect and OpenAI's
responses have in their place."""
HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection", b"expect"}
)

Headers = Sequence[tuple[bytes, bytes]]


class Arrivals:
    """The entropy and the times of requests with an ``Idempotency-Key``. One that is sent again has those of the first:
    its answer is the same one, on another replica too."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()

    def entropy_of(
        self, key: str, headers: Headers, client: str, method: str, target: bytes, body: bytes
    ) -> tuple[bytes, bytes]:
        """Return entropy and time of a request, of which those of the newest requests are known."""
        digest = hashlib.blake2b(digest_size=16)
        sender = [value for name, value in headers if name == b"authorization" or b"api-key" in name]
        for part in (key.encode(), client.partition(" ")[0].encode(), method.encode(), target, *sender):
            digest.update(b"%d:" % len(part) + part)
        digest.update(body)
        name = digest.digest()
        found = self._known.pop(name) if name in self._known else new_arrival()
        self._known[name] = found
        if len(self._known) > MOST_ARRIVALS:
            self._known.popitem(last=False)
        return found


def new_arrival() -> tuple[bytes, bytes]:
    """Return the entropy and the time of a request that arrives now."""
    return secrets.token_hex(16).encode(), b"%.6f" % time.time()


class Changed(Exception):
    """Another replica's answer differs from what the client has. The text says why, where that is known."""


class RunningRequest:
    """One request, with the journal that its replica keeps here.

    Attributes:
        sent: bytes of the answer's body that the client has, without notices. head: of its answer; None before it.
        is_events: it is a stream of events.
        key: its Idempotency-Key; empty: it has none.
    """

    def __init__(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes,
        *,
        request_id: str,
        client: str,
        scheme: str,
        prefix: str = "",
        arrivals: Arrivals,
    ) -> None:
        self.method, self.target, self.body = "GET" if method == "HEAD" else method, target, body
        given = next((value.decode("latin-1") for name, value in headers if name == KEY), "")
        self.key = given.strip().strip('"')
        entropy, now = new_arrival()
        if self.key:
            entropy, now = arrivals.entropy_of(self.key, headers, client, method, target, body)
        kept = [(n, v) for n, v in headers if n not in HOP_BY_HOP and not n.startswith(INTERNAL)]
        kept = [(n, v) for n, v in kept if n not in (b"content-length", b"x-request-id")]
        self._headers = [
            *kept,
            (b"x-request-id", request_id.encode("latin-1")),
            (ENTROPY, entropy),
            (NOW, now),
            (CLIENT, client.encode("latin-1")),
            (SCHEME, scheme.encode("latin-1")),
            (PREFIX, prefix.encode("latin-1")),
            (METHOD, method.encode("latin-1")),
        ]
        self._journal = bytearray()
        self._is_recorded = True
        self.entries = 0
        self.head: tuple[int, Headers] | None = None
        self.is_events = False
        self.sent = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._is_between, self._is_notice = True, False
        """Whether the next byte begins an event; whether the present event is a notice."""
        self._skip_left = 0
        self._skipped = hashlib.blake2b(digest_size=16)
        self._entries_before = 0, 0

    def record(self, entry: bytes) -> None:
        """Take an entry of the journal. One that is too long is not kept: the request then begins anew."""
        self.entries += 1
        if self._is_recorded:
            self._journal += entry
            if len(self._journal) > MOST_JOURNAL:
                self._is_recorded = False
                self._journal.clear()

    def begin(self, secret: bytes) -> tuple[Headers, list[bytes]]:
        """Return the headers and body for a replica, which skips nothing: what the client has is skipped here."""
        self._skip_left = self.sent
        self._entries_before = self.entries, len(self._journal)
        self._is_between, self._is_notice = True, False
        self._skipped = hashlib.blake2b(digest_size=16)
        journal = bytes(self._journal)
        headers = [*self._headers, (SECRET, secret)]
        length = len(journal) + len(self.body)
        if length or self.method not in ("GET", "OPTIONS"):
            headers.append((b"content-length", b"%d" % length))
        if journal:
            headers.append((JOURNAL, b"%d" % len(journal)))
        return headers, [part for part in (journal, self.body) if part]

    def forget_attempt(self) -> None:
        """Forget what a replica has recorded since ``begin``: it gives another answer than the client's."""
        self.entries, size = self._entries_before
        del self._journal[size:]

    @property
    def has_succeeded(self) -> bool:
        """Whether its answer is no error."""
        return self.head is not None and self.head[0] < 400

    @property
    def is_repeating(self) -> bool:
        """Whether the replica still repeats what the client has."""
        return self._skip_left > 0

    def new_part(self, data: bytes) -> bytes:
        """Return what of a body's part the client does not have yet. Raises Changed where what it has differs."""
        if not self.is_events:
            return self._new_bytes(data)
        new = b""
        for event in _events(data):
            if self._is_between:
                self._is_notice = event.startswith(NOTICES)
            self._is_between = event.endswith(b"\n\n")
            if not self._is_notice:
                new += self._new_bytes(event)
            elif not self._skip_left:
                new += event
        return new

    def _new_bytes(self, data: bytes) -> bytes:
        if self._skip_left:
            old, data = data[: self._skip_left], data[self._skip_left :]
            self._skipped.update(old)
            self._skip_left -= len(old)
            if not self._skip_left and self._skipped.digest() != self._digest.digest():
                raise Changed
        if data:
            self.sent += len(data)
            self._digest.update(data)
        return data

    def check_head(self, status: int, headers: Headers) -> None:
        """Raise Changed where a head cannot stand for the one that the client has."""
        assert self.head is not None
        relevant = (b"content-type", b"content-length")

        def form(head: tuple[int, Headers]) -> tuple[object, ...]:
            return head[0], *(value for name, value in head[1] if name in relevant)

        if form(self.head) != form((status, headers)):
            raise Changed


def _events(data: bytes) -> list[bytes]:
    """Return a part of a stream as events, of which the last one may go on in the next part."""
    *whole, rest = data.split(b"\n\n")
    events = [each + b"\n\n" for each in whole]
    return [*events, rest] if rest else events
