"""Responses that are generated without a client: followed, cancelled, and continued after a restart.

The events of a response follow from its record and its tokens alone, so its record is written before its client is
told of it, and its tokens as they come. After a restart the recorded tokens are read again, in silence for those who
had them, and the generation goes on behind them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from dragoman.core.caller import Caller, current_caller
from dragoman.core.decoding import UNDECODABLE
from dragoman.core.entropy import current_entropy
from dragoman.core.errors import DragomanError, GenerationCancelled, GenerationFailed, Overloaded, ShuttingDown
from dragoman.core.journal import Journal, current_journal
from dragoman.core.observer import ObservedRequest, current_request
from dragoman.core.progress import current_progress
from dragoman.core.request import GenerationRequest
from dragoman.core.responses import StoredResponse
from dragoman.core.serving import Serving
from dragoman.dialects.openai.responses.conversations import said
from dragoman.dialects.openai.responses.events import EventWriter
from dragoman.dialects.openai.responses.response import Head
from dragoman.dialects.openai.responses.tools import CalledTool
from dragoman.dialects.openai_stream import encode
from dragoman.dialects.tools import MessageShape
from dragoman.text.reasoning import ReasoningMarks
from dragoman.text.tool_calls import CALL_FORMATS

log = logging.getLogger("dragoman.server")

JOURNAL_ENTRIES, JOURNAL_S = 64, 1.0
"""The tokens, and the seconds, after which the journal is written."""

QUEUED_EVENTS = 2
"""Events of a response that has not begun: it is created, and queued."""

PATH = "/v1/responses"
NOT_STORED = "The response cannot be stored: it may be too large for the store."
OTHER_MODEL = "The model that generated this response is not the one that is served now."


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a response is generated from, as it is stored. ``version``: of the model. The others: see ``Head``."""

    request: GenerationRequest
    version: str
    caller: Caller
    response: dict[str, Any]
    format: str = ""
    names: tuple[str, ...] = ()
    schemas: dict[str, dict[str, Any]] = {}
    marks: tuple[str, str] | None = None
    separate: bool = False
    called: dict[str, CalledTool] = {}
    summarizes: bool = False
    encrypts: bool = False
    logprobs: bool = False
    prewarms: bool = False

    @property
    def head(self) -> Head:
        shape = MessageShape(
            format=CALL_FORMATS[self.format] if self.format else None,
            names=self.names,
            schemas=self.schemas,
            reasoning=None if self.marks is None else ReasoningMarks(*self.marks),
            separate=self.separate,
        )
        return Head(
            response=self.response,
            shape=shape,
            called=self.called,
            summarizes=self.summarizes,
            encrypts=self.encrypts,
            logprobs=self.logprobs,
            prewarms=self.prewarms,
        )


def record_of(head: Head, request: GenerationRequest, version: str) -> Record:
    """Return the record of a response. ``request`` has its prompt in tokens."""
    shape = head.shape
    name = next((name for name, format in CALL_FORMATS.items() if format is shape.format), "")
    return Record(
        request=request,
        version=version,
        caller=current_caller.get(),
        response=head.response,
        format=name,
        names=shape.names,
        schemas=shape.schemas,
        marks=None if shape.reasoning is None else (shape.reasoning.opening, shape.reasoning.closing),
        separate=shape.separate,
        called=head.called,
        summarizes=head.summarizes,
        encrypts=head.encrypts,
        logprobs=head.logprobs,
        prewarms=head.prewarms,
    )


_decode = msgspec.msgpack.Decoder(Record).decode
_encode = msgspec.msgpack.Encoder().encode


class BackgroundRun:
    """One response while it is generated.

    Attributes:
        stored: as it is stored. events: those so far. writer: of its events.
        is_cancelled: by its client. is_over: there are no more events.
    """

    def __init__(self, stored: StoredResponse, record: Record) -> None:
        self.stored, self.record = stored, record
        self.writer = EventWriter(record.head)
        self.events: list[bytes] = list(self.writer.begin(is_queued=True))
        self.is_cancelled = self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._unwritten: list[bytes] = []
        self._written_s = time.monotonic()

    async def follow(self, after: int) -> AsyncGenerator[bytes, None]:
        """Yield the events with higher numbers than ``after``, as they come."""
        number = after + 1
        while True:
            while number < len(self.events):
                yield self.events[number]
                number += 1
            if self.is_over:
                return
            changed = self._changed
            await changed.wait()

    def add(self, events: Sequence[bytes]) -> None:
        """Add events, and tell those who follow."""
        self.events += events
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def end(self) -> None:
        """Note that there are no more events, and tell those who follow."""
        self.is_over = True
        self.add(())

    def note(self, entry: bytes) -> None:
        """Take an entry of the journal."""
        self._unwritten.append(entry)

    def is_due(self) -> bool:
        """Return whether the journal is to be written."""
        return len(self._unwritten) >= JOURNAL_ENTRIES or (
            bool(self._unwritten) and time.monotonic() - self._written_s >= JOURNAL_S
        )

    def taken_journal(self) -> bytes:
        """Return the entries that are not written yet."""
        entries, self._unwritten = b"".join(self._unwritten), []
        self._written_s = time.monotonic()
        return entries


class BackgroundRuns:
    """All responses that are generated now. ``close`` leaves them to the next start of the server."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], BackgroundRun] = {}
        self._starting = 0

    def __len__(self) -> int:
        return len(self._runs) + self._starting

    def find(self, tenant: str, id: str) -> BackgroundRun | None:
        """Return a response that is generated now."""
        return self._runs.get((tenant, id))

    def check_room(self, serving: Serving) -> None:
        """Raise Overloaded where too many run."""
        if len(self) >= serving.responses.max_background:
            raise Overloaded("Too many responses run in the background.")

    async def start(self, serving: Serving, stored: StoredResponse, record: Record) -> BackgroundRun:
        """Begin to generate a response, when its record is kept. Raises Overloaded where too many run, GenerationFailed
        where it cannot be kept."""
        self.check_room(serving)
        self._starting += 1
        try:
            stored = msgspec.structs.replace(stored, is_running=True, record=_encode(record))
            if not await serving.responses.keep(stored):
                raise GenerationFailed("The response cannot be stored, as it has to be in the background.")
        finally:
            self._starting -= 1
        return self._begin(serving, BackgroundRun(stored, record), b"")

    async def resume(self, serving: Serving) -> int:
        """Go on with the responses that an earlier server has not finished; return their number."""
        store = serving.responses
        for stored in await store.unfinished():
            if self.find(stored.tenant, stored.id) is not None:
                continue
            try:
                record = _decode(stored.record)
            except (*UNDECODABLE, KeyError):
                log.error("response %s was begun by another version of the server: it is given up", stored.id)
                await store.delete(stored.tenant, stored.id)
                continue
            self._begin(serving, BackgroundRun(stored, record), await store.journal(stored.id))
        return len(self._runs)

    async def cancel(self, run: BackgroundRun) -> None:
        """End a response for its client."""
        run.is_cancelled = True
        await self._stop([run])

    async def close(self) -> None:
        """Stop all, without waiting for their ends: the next server goes on with them."""
        await self._stop(list(self._runs.values()))

    async def _stop(self, runs: Sequence[BackgroundRun]) -> None:
        """Cancel what is not over, and wait until all ends are stored."""
        for run in runs:
            # Once only: another request to cancel it would interrupt how it ends.
            if run.task is not None and not run.writer.is_over and not run.task.cancelling():
                run.task.cancel()
        await asyncio.gather(*(run.task for run in runs if run.task is not None), return_exceptions=True)

    # One response -----------------------------------------------------------------------------------------------------

    def _begin(self, serving: Serving, run: BackgroundRun, journal: bytes) -> BackgroundRun:
        self._runs[run.stored.tenant, run.stored.id] = run
        run.task = asyncio.create_task(self._work(serving, run, journal), name=run.stored.id)
        return run

    async def _work(self, serving: Serving, run: BackgroundRun, journal: bytes) -> None:
        caller = run.record.caller
        current_caller.set(caller)
        current_request.set(ObservedRequest("openai", PATH, "BACKGROUND", run.stored.id, caller=caller))
        current_progress.set(None)
        current_entropy.set(None)
        try:
            await self._generate(serving, run, journal)
        except asyncio.CancelledError:
            if not run.is_cancelled:
                await serving.responses.append(run.stored.id, run.taken_journal())
                raise
            await self._finish(serving, run, list(run.writer.cancel()))
        except ShuttingDown:
            log.info("response %s goes on at the next start", run.stored.id)
        except GenerationCancelled:
            await self._finish(serving, run, list(run.writer.cancel()))
        except DragomanError as error:
            await self._finish(serving, run, list(run.writer.fail(error)))
        except Exception:
            log.exception("response %s fails", run.stored.id)
            failure = GenerationFailed("The server had an internal error.")
            await self._finish(serving, run, list(run.writer.fail(failure)))
        finally:
            self._runs.pop((run.stored.tenant, run.stored.id), None)
            run.end()  # the streams of those who follow end too: they come back to the next server

    async def _generate(self, serving: Serving, run: BackgroundRun, earlier: bytes) -> None:
        """Generate until the end. Raises DragomanError."""
        record, writer = run.record, run.writer
        while True:
            journal = Journal(write=run.note, abandon=lambda: None)
            if earlier:
                journal.read(earlier)
            current_journal.set(journal)
            try:
                async with serving.lease(_model_of(serving, record.request)):
                    if serving.model(record.request.model).fingerprint != record.version:
                        raise GenerationFailed(OTHER_MODEL)
                    async with aclosing(serving.stream(record.request)) as events:
                        async for event in events:
                            if writer.count == QUEUED_EVENTS:
                                run.add(list(writer.run()))
                            found = list(writer.push(event, now=time.time()))
                            if writer.is_over:
                                await self._finish(serving, run, found)
                                return
                            run.add(found)
                            if run.is_due():
                                await serving.responses.append(run.stored.id, run.taken_journal())
            except Overloaded as error:
                if writer.count > QUEUED_EVENTS:
                    raise
                await asyncio.sleep(error.retry_after_s)  # it waits for a place as long as it takes

    async def _finish(self, serving: Serving, run: BackgroundRun, events: list[bytes]) -> None:
        """Store the end, and then tell it."""
        ended = msgspec.structs.replace(run.stored, is_running=False, record=b"")
        whole = b"".join([*run.events, *events])
        stored = msgspec.structs.replace(ended, response=encode(run.writer.response), events=whole)
        if not await serving.responses.keep(stored, said(stored)):
            log.error("the end of response %s cannot be stored", run.stored.id)
            # Without an end it would seem to run for ever, and run again after each start.
            failed = EventWriter(run.record.head)
            told = b"".join([*failed.begin(is_queued=True), *failed.run(), *failed.fail(GenerationFailed(NOT_STORED))])
            stored = msgspec.structs.replace(ended, response=encode(failed.response), events=told)
            await serving.responses.keep(stored)
        run.stored = stored
        run.add(events)
        run.end()


def _model_of(serving: Serving, request: GenerationRequest) -> str | None:
    """Return the id of the model that a request names; None: it names none, or none that is known."""
    return None if request.model is None else serving.catalog.named(request.model)
