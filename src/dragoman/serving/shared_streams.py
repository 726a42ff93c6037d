"""Equal requests of one caller that wait at the same time, computed once and told to each (``--dedup``).

Requests are equal when the engine would get the same: tokens, seeds, all parameters, and the caller. So they have the
same tokens, and nobody learns of another caller's requests. One joins another only while that waits for its first
event. Each has its own end: one that is cancelled, or whose client leaves, takes nothing from the others.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Protocol, Self

import msgspec

from dragoman.core.events import EngineEvent, FinishEvent, FinishReason, ProgressEvent, TokenEvent
from dragoman.core.explanation import EngineExplanation
from dragoman.core.request import EngineRequest
from dragoman.models import AdapterInfo


class Events(Protocol):
    """The events of one request. Closing early cancels it."""

    def __aiter__(self) -> AsyncIterator[EngineEvent]: ...

    async def aclose(self) -> None: ...


class Engine(Protocol):
    """The engine whose streams are shared."""

    @property
    def adapters(self) -> Mapping[str, AdapterInfo]: ...
    def submit(self, request: EngineRequest) -> Events: ...
    def cancel(self, request_id: str, sequence: int | None = None) -> None: ...
    async def explain(self, request: EngineRequest) -> EngineExplanation: ...
    async def load_adapter(self, name: str, source: str, *, replace: bool = False) -> AdapterInfo: ...
    async def unload_adapter(self, name: str) -> None: ...


class SharingEngine:
    """An engine that submits equal requests once. ``shared``: how many others were not computed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[bytes, _Computed] = {}
        self._listeners: dict[str, _Listener] = {}
        self.shared = 0

    @property
    def adapters(self) -> Mapping[str, AdapterInfo]:
        return self._engine.adapters

    async def load_adapter(self, name: str, source: str, *, replace: bool = False) -> AdapterInfo:
        return await self._engine.load_adapter(name, source, replace=replace)

    async def unload_adapter(self, name: str) -> None:
        await self._engine.unload_adapter(name)

    async def explain(self, request: EngineRequest) -> EngineExplanation:
        return await self._engine.explain(request)

    def submit(self, request: EngineRequest) -> _Listener:
        """Submit the request, or join an equal one that waits. Raises what the engine raises."""
        adapter = None if request.adapter is None else self._engine.adapters.get(request.adapter)
        key = _key(request, "" if adapter is None else adapter.fingerprint)
        computed = self._waiting.get(key)
        if computed is None:
            computed = _Computed(self, key, request.request_id, self._engine.submit(request))
            self._waiting[key] = computed
        else:
            self.shared += 1
        listener = self._listeners[request.request_id] = _Listener(computed, request)
        computed.listeners.append(listener)
        return listener

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        """End a request, or one of its sequences, with CANCELLED; for the engine only when all have ended it."""
        listener = self._listeners.get(request_id)
        if listener is not None:
            listener.cancel(sequence)

    def begin(self, computed: _Computed) -> None:
        """Let no more requests join."""
        if self._waiting.get(computed.key) is computed:
            del self._waiting[computed.key]

    def leave(self, listener: _Listener) -> None:
        self._listeners.pop(listener.request_id, None)

    def cancel_computed(self, request_id: str, sequence: int | None) -> None:
        self._engine.cancel(request_id, sequence)


class _Computed:
    """A request in the engine, and those who are told its events. Whoever waits for one reads it for all."""

    def __init__(self, engine: SharingEngine, key: bytes, request_id: str, stream: Events) -> None:
        self._engine, self.key, self.request_id = engine, key, request_id
        self._stream = stream
        self._events = aiter(stream)
        self.listeners: list[_Listener] = []
        self.is_read = self.has_ended = False

    async def read(self) -> None:
        """Tell all listeners the next event."""
        self.is_read = True
        try:
            event = await anext(self._events)
        except StopAsyncIteration:
            self.has_ended = True
            self._engine.begin(self)
        else:
            if not isinstance(event, ProgressEvent):
                self._engine.begin(self)
            for listener in self.listeners:
                listener.deliver(event)
        finally:
            # Also where this reader is cancelled: another one goes on.
            self.is_read = False
            for listener in self.listeners:
                listener.wake()

    def end(self, sequence: int) -> None:
        """Cancel a sequence that nobody wants any more; all of them where none is wanted."""
        if any(sequence in listener.open for listener in self.listeners):
            return
        if any(listener.open for listener in self.listeners):
            self._engine.cancel_computed(self.request_id, sequence)
        else:
            self._engine.begin(self)
            self._engine.cancel_computed(self.request_id, None)

    async def remove(self, listener: _Listener) -> None:
        """Remove a listener; the last one ends the stream."""
        self._engine.leave(listener)
        if listener not in self.listeners:
            return
        self.listeners.remove(listener)
        if not self.listeners:
            self._engine.begin(self)
            await self._stream.aclose()
            return
        for sequence in sorted(listener.open):
            self.end(sequence)
        for other in self.listeners:
            other.wake()


class _Listener:
    """The events of one of the equal requests."""

    def __init__(self, computed: _Computed, request: EngineRequest) -> None:
        self.request_id = request.request_id
        self.open = set(range(len(request.seeds)))
        self._computed = computed
        self._events: deque[EngineEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EngineEvent:
        while not self._events:
            if not self.open or self._computed.has_ended:
                raise StopAsyncIteration
            if not self._computed.is_read:
                await self._computed.read()
                continue
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()

    async def aclose(self) -> None:
        self._events.clear()
        await self._computed.remove(self)

    def deliver(self, event: EngineEvent) -> None:
        """Add an event, unless it is about a sequence that has ended here."""
        if isinstance(event, TokenEvent | FinishEvent):
            if event.sequence not in self.open:
                return
            if event.finish is not None:
                self.open.discard(event.sequence)
        self._events.append(event)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def cancel(self, sequence: int | None) -> None:
        """End one sequence, or all, here."""
        ended = sorted(self.open if sequence is None else {sequence} & self.open)
        self.open.difference_update(ended)
        for each in ended:
            self._events.append(FinishEvent(self.request_id, each, FinishReason.CANCELLED))
        self.wake()
        for each in ended:
            self._computed.end(each)


def _key(request: EngineRequest, adapter: str) -> bytes:
    """Return a digest of all that the engine gets but the request's own name. It has the caller in it."""
    unnamed = msgspec.structs.replace(request.without_pixels, request_id="")
    digest = hashlib.blake2b(msgspec.msgpack.encode(unnamed), digest_size=32)
    digest.update(adapter.encode())
    return digest.digest()
