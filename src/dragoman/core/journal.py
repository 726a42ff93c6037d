"""The journal of one request: everything that its answer follows from besides the request itself and its entropy.

A request that a cluster's ingress passes on has one. Where its server dies, another server is given the request again
with the journal so far, and gives the same answer: first from the recorded tokens, then from new ones.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

import msgspec

from dragoman.core.events import EngineEvent
from dragoman.core.request import EngineRequest

UNRELATED = {"request_id": "", "seeds": (), "tenant": "", "weight": 1.0, "max_running": None, "service": 0.0}
"""Values in place of those that differ between two runs of one request, or do not change its tokens."""


class Submission(msgspec.Struct, frozen=True, array_like=True, tag="request"):
    """A request to the engine, the ``number``-th of its journal. ``model``: the versions that its tokens depend on."""

    number: int
    model: str
    request: EngineRequest


class Recorded(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """An event of the engine for the request of that number."""

    number: int
    event: EngineEvent


class Found(msgspec.Struct, frozen=True, array_like=True, tag="found"):
    """What was stored under a key when the request began, which it may have changed since. Empty: nothing."""

    key: bytes
    value: bytes


Entry = Submission | Recorded | Found

_decoder = msgspec.msgpack.Decoder(Entry)
_encoder = msgspec.msgpack.Encoder()


class Run:
    """One request to the engine, and the recorded events that are not delivered again yet.

    ``model``: the versions that its tokens depend on, where it was begun.
    """

    def __init__(self, number: int, request: EngineRequest, model: str) -> None:
        self.number = number
        self.request = request
        self.model = model
        self.events: deque[EngineEvent] = deque()


class Journal:
    """Records the tokens of one HTTP request, or gives those of an earlier run of it again.

    ``write`` is called with every encoded entry. ``abandon`` is called when the server ends before the request does:
    another one then continues it. ``request``: a digest, the same for all runs of the request and of no other one;
    empty: not known.
    """

    def __init__(
        self,
        *,
        write: Callable[[bytes], None] | None = None,
        abandon: Callable[[], None] | None = None,
        request: bytes = b"",
    ) -> None:
        self._write = write
        self.request = request
        self.abandon = abandon
        self.fault = ""
        """Why the earlier run cannot be continued; empty: it can."""
        self._numbers = 0
        self._earlier: dict[bytes, deque[Run]] = {}
        self._order: deque[int] = deque()
        """The runs of the recorded events, in the order in which these were read."""
        self._turn = asyncio.Event()
        self._found: dict[bytes, deque[bytes]] = {}

    def of_message(self, name: str) -> Journal:
        """Return the journal of one message of a WebSocket, which records nothing. ``name``: which of them it is."""
        return Journal(request=hashlib.blake2b(self.request + name.encode(), digest_size=16).digest())

    # Recording --------------------------------------------------------------------------------------------------------

    def record(self, entry: Entry) -> None:
        if self._write is not None:
            self._write(frame_entry(entry))

    def enter(self, request: EngineRequest, model: str) -> Run:
        """Return the run of a request to the engine: an earlier one of the same request, or a new one."""
        waiting = self._earlier.get(_key(request))
        if waiting:
            run = waiting.popleft()
            # The pixels are those of the request itself, which has come again.
            run.request = msgspec.structs.replace(run.request, request_id=request.request_id, images=request.images)
            return run
        self._numbers += 1
        self.record(Submission(self._numbers, model, request.without_pixels))
        return Run(self._numbers, request, model)

    def recall(self, key: bytes, value: bytes) -> bytes:
        """Return what the earlier run found under the key; without one ``value``, which is recorded."""
        if earlier := self._found.get(key):
            return earlier.popleft()
        self.record(Found(key, value))
        return value

    # Reading an earlier run -------------------------------------------------------------------------------------------

    def read(self, data: bytes) -> None:
        """Take the entries of an earlier run. Entries that another version has written set ``fault``."""
        runs: dict[int, Run] = {}
        try:
            for entry in map(_decoder.decode, split_entries(data)):
                if isinstance(entry, Submission):
                    runs[entry.number] = Run(entry.number, entry.request, entry.model)
                elif isinstance(entry, Found):
                    self._found.setdefault(entry.key, deque()).append(entry.value)
                else:
                    runs[entry.number].events.append(entry.event)
                    self._order.append(entry.number)
        except (msgspec.DecodeError, ValueError, KeyError):
            self.fault = "it was begun on a server of another version"
        self._numbers = max(runs, default=0)
        for run in runs.values():
            self._earlier.setdefault(_key(run.request), deque()).append(run)

    async def next_recorded(self, run: Run) -> EngineEvent:
        """Return the run's next recorded event, when it is its turn among those of all runs: events of several runs
        were written into one answer in that order."""
        while self._order and self._order[0] != run.number:
            self._turn.clear()
            await self._turn.wait()
        event = run.events.popleft()
        self._order.popleft()
        self._turn.set()
        return event

    def drop(self, run: Run) -> None:
        """Drop the run's recorded events: it ended, and does not read them."""
        if run.events:
            run.events.clear()
            self._order = deque(number for number in self._order if number != run.number)
            self._turn.set()


current_journal: ContextVar[Journal | None] = ContextVar("current_journal", default=None)
"""Journal of the request that the running task works for; None: it needs none."""


def _key(request: EngineRequest) -> bytes:
    """Return a digest of the request, the same for all runs of it."""
    what = msgspec.structs.replace(request.without_pixels, **UNRELATED)
    return hashlib.blake2b(msgspec.msgpack.encode(what), digest_size=16).digest()


def frame_entry(entry: Entry) -> bytes:
    payload = _encoder.encode(entry)
    return len(payload).to_bytes(4, "little") + payload


def split_entries(data: bytes) -> list[bytes]:
    """Return the payloads of whole entries. Raises ValueError for an incomplete one."""
    payloads, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 4], "little")
        payload = data[start + 4 : start + 4 + size]
        if len(payload) != size:
            raise ValueError("an incomplete entry")
        payloads.append(payload)
        start += 4 + size
    return payloads
