"""The limit on open connections, and the choice of connections to close for new ones.

A connection that waits for its client (for a request's head, between two requests, in a TLS handshake) costs the server
nothing but its slot. When slots are short, such connections are closed for new ones, those first whose client has the
most of them, the oldest of these first; then those whose client does not read its answer. Any other that is being
answered is never closed. Some slots beyond the limit are kept in reserve: for the answer that the server is full, and
for health checks.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from typing import Any

from dragoman.core.errors import DragomanError, EngineUnavailable, Overloaded

GRACE_S = 0.5
"""Seconds for which a connection may wait for its client before it is closed for others: the time for its first
packet."""

GRACE_LOOKS = 4
"""Accepting turns of the loop that have to pass as well: where the event loop is late, input has been there for
longer than the grace, unread."""

UNREAD_S = 5.0
"""Seconds for which a client may leave more of its answer unread than its connection buffers, before it is closed
for others."""

FULL = "The server has as many connections as it can serve. Try again later."
TOO_MANY = "This address has as many connections as it may have. Try again later."


class Slot:
    """The slot of one connection. ``drop`` closes it; ``client``: the key that it is counted by, empty for none."""

    __slots__ = ("client", "drop", "is_unread", "looks", "since", "waiting")

    def __init__(self, client: str) -> None:
        self.client = client
        self.drop: Callable[[], object] | None = None
        self.since = 0.0
        self.waiting: _Waiting | None = None
        self.is_unread = False
        self.looks = 0


class _Waiting:
    """Connections that wait for their clients, by client, the oldest first."""

    def __init__(self) -> None:
        self._by_client: dict[str, dict[Slot, None]] = {}

    def add(self, slot: Slot) -> None:
        self._by_client.setdefault(slot.client, {})[slot] = None

    def remove(self, slot: Slot) -> None:
        slots = self._by_client[slot.client]
        del slots[slot]
        if not slots:
            del self._by_client[slot.client]

    def oldest(self, client: str | None = None) -> Slot | None:
        """Return the oldest of the client, or of the client with the most."""
        if client is not None:
            slots = self._by_client.get(client)
        else:
            slots = max(self._by_client.values(), key=len, default=None)
        return next(iter(slots)) if slots else None


class Connections:
    """The slots of one server.

    ``max_connections``: those answered at once; ``reserve``: those beyond them, to be refused, and for health checks;
    ``max_per_client``: those of one address. ``on_room`` is called when one has closed.
    """

    def __init__(
        self,
        max_connections: int,
        reserve: int,
        max_per_client: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_connections, self.reserve, self.max_per_client = max_connections, reserve, max_per_client
        self.on_room: Callable[[], None] | None = None
        self.dropped = 0
        self.refused = 0
        self._clock = clock
        self._all: set[Slot] = set()
        self._closing: set[Slot] = set()
        """Slots that were given to others, whose connections still have their descriptors: until the loop's next turn,
        with TLS for as long as their clients take to answer."""
        self._looks = 0
        self._busy = 0
        self._by_client: dict[str, int] = {}
        self._idle, self._uploading, self._unread = _Waiting(), _Waiting(), _Waiting()

    def __len__(self) -> int:
        return len(self._all)

    def has_room(self) -> bool:
        """Return whether one more may be accepted, perhaps in the place of one that is then closed."""
        if len(self._closing) >= max(1, self.reserve):
            return False
        if len(self._all) >= self.max_connections:
            self.drop_one()
        return len(self._all) < self.max_connections + self.reserve

    def begin_turn(self) -> None:
        """Count a turn of the event loop in which connections are accepted."""
        self._looks += 1

    def enter(self, client: str) -> Slot | None:
        """Return a slot for a new connection, which waits for its client; None where the client has far too many."""
        limit = self.max_per_client
        if limit is not None and client and self._by_client.get(client, 0) >= limit:
            self.drop_one(client)
            # Some more are accepted, to get the error.
            if self._by_client.get(client, 0) >= limit + max(1, self.reserve // 4):
                self.refused += 1
                return None
        slot = Slot(client)
        self._all.add(slot)
        self._count(client, 1)
        self._wait(slot, self._idle)
        return slot

    def leave(self, slot: Slot) -> None:
        """Free the slot of a closed connection. A second call does nothing."""
        if slot in self._closing:
            self._closing.discard(slot)
        elif slot in self._all:
            self._free(slot)
        else:
            return
        if self.on_room is not None:
            self.on_room()

    def _free(self, slot: Slot) -> None:
        self._all.discard(slot)
        self._count(slot.client, -1)
        self._leave_state(slot)
        slot.drop = slot.waiting = None

    def set_idle(self, slot: Slot) -> None:
        """Mark the connection as waiting for its client from now on."""
        if slot in self._all:
            self._leave_state(slot)
            self._wait(slot, self._idle)

    def set_uploading(self, slot: Slot) -> None:
        """Mark the connection as having a request whose body is still to come."""
        if slot in self._all:
            self._leave_state(slot)
            self._wait(slot, self._uploading)

    def set_busy(self, slot: Slot) -> None:
        """Mark the connection as having a whole request to be answered."""
        if slot.waiting is not None:
            slot.waiting.remove(slot)
            slot.waiting = None
            self._busy += 1

    def set_unread(self, slot: Slot) -> None:
        """Mark the connection's client as not reading what is written to it. It stays busy."""
        if slot in self._all and slot.waiting is None and not slot.is_unread:
            slot.since, slot.looks, slot.is_unread = self._clock(), self._looks, True
            self._unread.add(slot)

    def set_read(self, slot: Slot) -> None:
        """Mark the connection's client as reading again."""
        if slot.is_unread:
            slot.is_unread = False
            self._unread.remove(slot)

    def refusal(self, slot: Slot) -> DragomanError | None:
        """Return why the connection's requests are refused; empty if they are not."""
        limit = self.max_per_client
        if limit is not None and slot.client and self._by_client[slot.client] > limit:
            self.refused += 1
            return Overloaded(TOO_MANY)
        if self._busy + (slot.waiting is not None) > self.max_connections:
            self.refused += 1
            return EngineUnavailable(FULL)
        return None

    def begin_request(self, client: str) -> DragomanError | None:
        """Count a request that a proxy passed on for its client, until ``end_request``; return why it is refused."""
        self._count(client, 1)
        if self.max_per_client is not None and self._by_client.get(client, 0) > self.max_per_client:
            self.refused += 1
            return Overloaded(TOO_MANY)
        return None

    def end_request(self, client: str) -> None:
        self._count(client, -1)

    def drop_one(self, client: str | None = None) -> bool:
        """Close the connection that has waited longest for its client, of one client or of all, if there is one."""
        for waiting, grace_s in ((self._idle, GRACE_S), (self._uploading, GRACE_S), (self._unread, UNREAD_S)):
            slot = waiting.oldest(client)
            if slot is None or slot.drop is None or self._looks - slot.looks < GRACE_LOOKS:
                continue
            if self._clock() - slot.since >= grace_s:
                self.dropped += 1
                drop = slot.drop
                self._free(slot)
                self._closing.add(slot)
                drop()
                return True
        return False

    def _leave_state(self, slot: Slot) -> None:
        if slot.waiting is None:
            self._busy -= 1
            self.set_read(slot)
        else:
            slot.waiting.remove(slot)

    def _wait(self, slot: Slot, waiting: _Waiting) -> None:
        slot.since, slot.looks, slot.waiting = self._clock(), self._looks, waiting
        waiting.add(slot)

    def _count(self, client: str, change: int) -> None:
        if client:
            count = self._by_client.get(client, 0) + change
            if count:
                self._by_client[client] = count
            else:
                del self._by_client[client]


def client_of(address: Any) -> str:
    """Return the key that connections are counted by: an IPv4 address, or the /64 network of an IPv6 client.

    ``address``: as ``socket.accept`` gives it; empty for a Unix socket.
    """
    return counted_as(address[0]) if isinstance(address, tuple) else ""


def counted_as(host: str) -> str:
    """Return the key of an address in text."""
    if ":" not in host:
        return host
    try:
        parsed = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, 64), strict=False).network_address) + "/64"
