"""Journaled requests to the engine: recorded events are delivered again, then the engine continues after them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol, Self

import msgspec

import dragoman
from dragoman.core.elsewhere import note_elsewhere
from dragoman.core.errors import SHUTTING_DOWN, GenerationFailed
from dragoman.core.events import EngineEvent, FinishEvent, ProgressEvent, PromptEvent
from dragoman.core.journal import Journal, Recorded, Run, current_journal
from dragoman.core.observer import current_request
from dragoman.core.request import EngineRequest
from dragoman.engine_client.recovery import InFlightRequest
from dragoman.serving.prefix_names import BLOCK_TOKENS, HEADER, CachedPrefixes, block_names, header_of

TURN_S = 30.0
"""Time that a run waits for its turn among the recorded events of its request. They are there, so it takes no time
where the request is read as before."""

LOST = "The server of this request was lost, and no other one can continue it"


class Events(Protocol):
    """The events of one request. Closing early cancels it."""

    def __aiter__(self) -> AsyncIterator[EngineEvent]: ...

    async def aclose(self) -> None: ...


class Submitter(Protocol):
    """The part of the engine's client that a journaled request needs."""

    def submit(self, request: EngineRequest) -> Events: ...


class JournaledEngine:
    """Submits requests with their journals, where they have one. ``prefixes``: names of what the cache holds."""

    def __init__(self, engine: Submitter, fingerprint: str, cache_blocks: int) -> None:
        self._engine = engine
        self._fingerprint = fingerprint
        self.prefixes = CachedPrefixes(cache_blocks)

    def begin(self, request: EngineRequest, adapter: str) -> JournaledRequest | None:
        """Return the journaled request of the running task; None where it has no journal. ``adapter``: its
        fingerprint."""
        journal = current_journal.get()
        if journal is None:
            return None
        model = f"{self._fingerprint} {adapter}".strip()
        version = f"system_fingerprint {model} of Dragoman {dragoman.__version__}"
        run = journal.enter(request, version)
        has_names = request.embeddings is None and not request.encoder_input and not request.images
        parts = (model, request.cache_salt)
        names = block_names(request.prompt, *parts) if has_names else []
        if names and (observed := current_request.get(None)) is not None:
            observed.answer_headers.setdefault(HEADER, header_of(names))
        return JournaledRequest(journal, run, version, names, parts, self.prefixes)

    def submit(self, request: EngineRequest, journaled: JournaledRequest | None) -> Events:
        """Submit the request. Raises as the engine's ``submit`` does."""
        if journaled is None:
            return self._engine.submit(request)
        return JournaledEvents(self._engine, journaled, request)


class JournaledRequest(msgspec.Struct, frozen=True):
    """A request with its journal. ``version``: what its tokens depend on here. ``names``: of its prompt's blocks;
    ``parts``: what these depend on too."""

    journal: Journal
    run: Run
    version: str
    names: list[str]
    parts: tuple[str, ...]
    prefixes: CachedPrefixes

    @property
    def request(self) -> EngineRequest:
        """The request with the seeds of its earlier run."""
        return self.run.request

    def note_prompt(self, cached_tokens: int) -> None:
        """Note the prompt's blocks, and forget those that the engine did not have."""
        had = cached_tokens // BLOCK_TOKENS
        self.prefixes.forget(self.names[had + 1 :])
        self.prefixes.note(self.names)

    def note_output(self, token_ids: list[int]) -> None:
        if self.names:
            self.prefixes.note(block_names([*self.run.request.prompt, *token_ids], *self.parts))


class JournaledEvents:
    """The events of one request, recorded in the journal of its HTTP request as they are read."""

    def __init__(self, engine: Submitter, journaled: JournaledRequest, request: EngineRequest) -> None:
        self._journaled, self._journal, self._run = journaled, journaled.journal, journaled.run
        run, journal = self._run, self._journal
        self._flight = InFlightRequest(request)
        self._live: Events | None = None
        if request.beams is not None:
            # Its tokens are delivered together, at the end of the search: that is repeated as a whole.
            journal.drop(run)
        earlier = InFlightRequest(request)
        for event in run.events:
            earlier.accept(event)
        if not earlier.is_over:
            _check_version(journal, run, journaled.version)
            replay = earlier.as_replay() if run.events else request
            self._live = engine.submit(msgspec.structs.replace(replay, service=0.0))
            self._live_events = aiter(self._live)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EngineEvent:
        if self._run.events:
            event = await self._recorded()
            self._flight.accept(event)
            return event
        if self._live is None:
            raise StopAsyncIteration
        while True:
            event = await anext(self._live_events)
            if not self._flight.accept(event):
                continue
            if isinstance(event, ProgressEvent):
                return event
            if isinstance(event, PromptEvent):
                self._journaled.note_prompt(event.cached_tokens)
            elif self._is_given_up(event):
                await asyncio.Event().wait()  # until the connection is closed, which cancels this
            self._journal.record(Recorded(self._run.number, event))
            return event

    def _is_given_up(self, event: EngineEvent) -> bool:
        """Return whether the server ends before the request, which another server then continues."""
        if isinstance(event, FinishEvent) and event.message == SHUTTING_DOWN and self._journal.abandon is not None:
            self._journal.abandon()
            return True
        return False

    async def _recorded(self) -> EngineEvent:
        try:
            async with asyncio.timeout(TURN_S):
                return await self._journal.next_recorded(self._run)
        except TimeoutError:
            raise GenerationFailed(f"{LOST}: it cannot be repeated as it was.") from None

    async def aclose(self) -> None:
        """Cancel what is unfinished."""
        self._journal.drop(self._run)
        for token_ids in self._flight.generated[:1]:
            self._journaled.note_output(token_ids)
        if self._live is not None:
            await self._live.aclose()


def _check_version(journal: Journal, run: Run, version: str) -> None:
    """Raise GenerationFailed where this server would continue a run differently, and note that for the ingress: another
    server may continue it."""
    fault = journal.fault
    if run.events and not fault and run.model != version:
        fault = f"it was begun by {run.model}, and this server has {version}"
    if fault:
        note_elsewhere(fault)
        raise GenerationFailed(f"{LOST}: {fault}.")
