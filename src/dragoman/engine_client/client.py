"""Client of the engine: submit requests and read their events, across crashes of the engine's process."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import msgspec

from dragoman.core.errors import SHUTTING_DOWN, BadRequest, EngineFailed, EngineUnavailable, ModelError, ShuttingDown
from dragoman.core.events import EngineEvent, FinishEvent, FinishReason
from dragoman.core.explanation import EngineExplanation
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import DraftVocabulary, Vocabulary
from dragoman.engine.block_events import BlockEvent
from dragoman.engine.messages import (
    AdapterLoaded,
    AdapterRefused,
    Cancel,
    EngineInfo,
    EngineStats,
    Explained,
    Failed,
    FromEngine,
    LoadAdapter,
    Loading,
    Ready,
    SetDraftVocabulary,
    SetThreads,
    StepOutput,
    StepStarted,
    Submit,
    UnloadAdapter,
    WorkerSettings,
)
from dragoman.engine_client.backpressure import Backpressure, check_room, most_unread
from dragoman.engine_client.connection import EngineProcess, Spawn, Spawner, ending
from dragoman.engine_client.event_stream import EventStream
from dragoman.engine_client.explanations import Explanations
from dragoman.engine_client.health import Health, State
from dragoman.engine_client.lora_loads import AdapterLoad, AdapterLoads, adapter_folder, with_adapter_name
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.engine_client.recovery import CrashIsolation, Culprits, InFlightRequest, refused
from dragoman.engine_client.restarts import RestartTimes
from dragoman.engine_client.vocabularies import Vocabularies
from dragoman.engine_client.watchdog import Watchdog
from dragoman.models import AdapterInfo

log = logging.getLogger(__name__)


class EngineClient:
    """Runs the engine in a separate process and keeps it running.

    A process that dies is restarted; ``restarts`` says when. Every unfinished request continues after its delivered
    events. A request that kills the process repeatedly fails, and is refused for some minutes; ``recovery`` says how it
    is found. A process that hangs is killed; ``watchdog`` says when. Once it has run, the engine fails only after
    ``give_up_s``.

    All methods must be called from one event loop.
    """

    def __init__(
        self, settings: WorkerSettings, prespawned: PrespawnedWorker | None = None, *, spawn: Spawn | None = None
    ) -> None:
        """Create a client. ``prespawned``: the first process, if already started. ``spawn`` starts every other."""
        self._settings = settings
        self._prespawned = prespawned
        self._start_process = spawn or Spawner()
        self._state = State.STARTING
        self._message = ""
        self._info: EngineInfo | None = None
        self._process: EngineProcess | None = None
        self._vocabularies = Vocabularies()
        self._requests: dict[str, InFlightRequest] = {}
        self._streams: dict[str, EventStream] = {}
        self._adapters = AdapterLoads()
        self._explanations = Explanations()
        self._isolation = CrashIsolation()
        self._in_engine: set[str] = set()
        self._backpressure = Backpressure()
        self._in_batch: list[str] = []
        self._exit_reason = ""
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._exited = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._culprits = Culprits()
        self._watchdog = Watchdog(settings.hang_s)
        self._last_message_s = 0.0
        self._restarts = RestartTimes(settings.give_up_s, self._now)
        self._stats = EngineStats()
        self._past = EngineStats()
        self.on_step: Callable[[EngineStats, EngineStats, float], None] | None = None
        """Called with every step: the counters before and after, and the seconds of delivering its tokens."""
        self.on_blocks: Callable[[list[BlockEvent] | None], None] | None = None
        """Called with the events of the process's prefix cache, and with None when a new process has an empty one."""
        self.on_loading: Callable[[str, float], None] | None = None
        """Called while a process loads its model, with the stage and the share of the whole that is done."""
        self.on_failed: Callable[[str], None] | None = None
        """Called with the reason when the engine has FAILED."""

    # Lifecycle --------------------------------------------------------------------------------------------------------

    async def start(self) -> EngineInfo:
        """Start the process and wait until it can generate. Raises ModelError with the reason the process reports."""
        self._tasks = [asyncio.create_task(self._watch())]
        try:
            info = await self._spawn()
        except BaseException:
            await self.close()
            raise
        self._tasks.insert(0, asyncio.create_task(self._supervise()))
        return info

    async def close(self) -> None:
        """End the process. Unfinished requests end with an error."""
        self._state = State.CLOSED
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._ready is not None:
            self._ready.cancel()  # not awaited where the start was abandoned before
        process, self._process = self._process, None
        if process is not None:
            await process.stop()
        self._fail(list(self._requests.values()), SHUTTING_DOWN)

    async def _spawn(self) -> EngineInfo:
        """Start one process; return its first message."""
        self._exited.clear()
        self._exit_reason = ""
        self._in_batch = []
        self._in_engine.clear()
        self._backpressure.paused.clear()
        self._ready = asyncio.get_running_loop().create_future()
        prespawned, self._prespawned = self._prespawned, None
        threads = self._settings.threads
        self._process = await self._start_process(self._settings, self._on_message, self._on_disconnect, prespawned)
        try:
            info = await self._ready
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{error.message} ({ending(await self._join(), says_why=True)})") from None
        await self._restore_adapters(self._process)
        self._vocabularies.begin(self._process.send)
        self._info = info
        if self.on_blocks is not None:
            self.on_blocks(None)
        self._settings = self._settings.after(info)
        self._state, self._message = State.READY, ""
        if self._settings.threads not in (None, threads):
            self._process.send(SetThreads(self._settings.threads))
        if not self._requests:
            self._restarts.on_progress()
        # Those with the least left to do go first: they free memory soon, and fewest wait for long.
        self._send(self._isolation.begin(sorted(self._requests.values(), key=InFlightRequest.replay_order)))
        return info

    async def _restore_adapters(self, process: EngineProcess) -> None:
        """Load the adapters of the last process, before requests continue. If one fails, its requests fail too."""
        loads = self._adapters.to_restore()
        for load in loads:
            process.send(LoadAdapter(load.key, load.folder))
        for load in loads:
            try:
                info = await load.answer
            except ModelError as error:
                self._lose_adapter(load, error.message)
                continue
            if load.info is not None and info.digest != load.info.digest:
                process.send(UnloadAdapter(load.key))
                self._lose_adapter(load, f"the files in {load.folder} have changed")

    def _lose_adapter(self, load: AdapterLoad, reason: str) -> None:
        message = f"the adapter {load.name} cannot be loaded again: {reason}"
        log.error("%s", message)
        self._adapters.forget(load)
        self._fail([each for each in self._requests.values() if each.request.adapter == load.key], message)

    async def _supervise(self) -> None:
        """After each crash: find the request that caused it, wait, restart."""
        while True:
            await self._exited.wait()
            await self._on_exit()
            while self._state is State.RESTARTING:
                await asyncio.sleep(self._restarts.begin_wait())
                if self._restarts.is_over:
                    self._give_up()
                    return
                try:
                    await self._spawn()
                    down_s, streams = self._restarts.down_s, len(self._requests)
                    log.info("engine restarted after %.1f s, %d streams continue", down_s, streams)
                except Exception as error:
                    # Any cause may pass: missing files, no memory, no descriptors, no processes.
                    expected = isinstance(error, ModelError | EngineUnavailable | OSError)
                    await self._join()
                    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                    self._message = f"the engine cannot be started: {reason}"
                    log.error(
                        "%s; trying again, %d streams wait", self._message, len(self._requests), exc_info=not expected
                    )

    def _give_up(self) -> None:
        self._state = State.FAILED
        self._message = f"the engine has been down for {self._restarts.give_up_s:g} s: {self._message}"
        log.error("%s; giving up", self._message)
        self._fail(list(self._requests.values()), self._message)
        if self.on_failed is not None:
            self.on_failed(self._message)

    async def _watch(self) -> None:
        """Kill a process that hangs."""
        while True:
            await asyncio.sleep(self._watchdog.check_s)
            process = self._process
            is_computing = self._state is State.READY and len(self._in_engine) > len(self._backpressure.paused)
            has_work = is_computing or self._state in (State.STARTING, State.RESTARTING)
            if self._watchdog.check(process.pid if process is not None and has_work else None) and process is not None:
                log.error("%s; killing it", self._watchdog.problem())
                self._watchdog.on_message()
                process.kill()

    async def _on_exit(self) -> None:
        status = await self._join()
        reason = self._exit_reason or ending(status)
        self._restarts.on_exit()
        self._state, self._message = State.RESTARTING, f"the engine process died ({reason})"
        log.error("%s; restarting, %d streams wait", self._message, len(self._requests))
        self._past = self.stats()
        self._past = msgspec.structs.replace(self._past, restarts=self._past.restarts + 1)
        self._stats = EngineStats()
        # The cause of a crash before the first step is among all submitted requests.
        in_batch = [self._requests[each] for each in self._in_batch or self._in_engine if each in self._requests]
        for culprit in self._isolation.blame(in_batch):
            self._culprits.add(culprit.request, self._now())
            self._fail([culprit], f"the engine process died {culprit.deaths} times computing this request ({reason})")

    async def _join(self) -> int:
        process, self._process = self._process, None
        return 0 if process is None else await process.reap()

    # Requests --------------------------------------------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> EventStream:
        """Submit a request and return the stream of its events; events that recovery repeats are left out.

        Raises EngineUnavailable: not started, failed, closed, or down for some seconds. Overloaded: too many
        sequences are unfinished. BadRequest: the id is in use. AdapterNotFound: its adapter is not loaded.
        """
        if self._state is State.CLOSED:
            raise ShuttingDown
        if self._state is State.FAILED:
            raise EngineFailed(self._message)
        if self._info is None or self._state not in (State.READY, State.RESTARTING):
            raise EngineUnavailable(self._message or f"the engine is {self._state}")
        if self._state is State.RESTARTING and self._restarts.is_late:
            wait_s = self._restarts.start_in_s + self._info.load_s
            raise EngineUnavailable(self._message, retry_after_s=max(1.0, wait_s))
        if not self._requests and self._state is State.READY:
            self._restarts.on_progress()
            self._last_message_s = self._now()
        if request.request_id in self._requests:
            raise BadRequest(f"request id {request.request_id!r} is already in use")
        check_room(request, self._requests.values(), self._info)
        if request.adapter is not None:
            request = msgspec.structs.replace(request, adapter=self._adapters.acquire(request.adapter))
        if self._culprits.knows(request, self._now()):
            if request.adapter is not None:
                self._unload(self._adapters.release(request.adapter))
            return refused(request)
        unfinished = InFlightRequest(request)
        stream = EventStream(partial(self.cancel, request.request_id), most_unread(request))
        if self._isolation.alone is None:
            self._send([unfinished])  # first: what cannot be encoded must not be sent again to each later process
        self._requests[request.request_id] = unfinished
        self._streams[request.request_id] = stream
        return stream

    async def explain(self, request: EngineRequest) -> EngineExplanation:
        """Return what would be done with a request now. Raises EngineUnavailable, AdapterNotFound."""
        if self._process is None or self._state is not State.READY:
            raise EngineUnavailable(self._message or f"the engine is {self._state}")
        if request.adapter is not None:
            request = msgspec.structs.replace(request, adapter=self._adapters.key(request.adapter))
        return await self._explanations.ask(self._process, request)

    def set_vocabulary(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Set the function that returns the vocabulary for grammars."""
        self._vocabularies.of_grammars = vocabulary

    def set_draft_vocabulary(self, vocabulary: DraftVocabulary) -> None:
        """Have the draft model make drafts, in later processes too."""
        self._vocabularies.of_drafts = vocabulary
        if self._process is not None and self._state is State.READY:
            self._process.send(SetDraftVocabulary(vocabulary))

    def set_threads(self, threads: int) -> None:
        """Compute with so many threads from the next step on, in later processes too."""
        self._settings = msgspec.structs.replace(self._settings, threads=threads)
        if self._process is not None and self._state is State.READY:
            self._process.send(SetThreads(threads))

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        """End a request, or one of its sequences, with CANCELLED. Finished or unknown ones are ignored."""
        request = self._requests.get(request_id)
        if request is None:
            return
        open_sequences = [index for index in request.open_sequences if sequence is None or index == sequence]
        if open_sequences and request_id in self._in_engine and self._process is not None:
            self._process.send(Cancel(request_id, sequence))
        self._deliver(request, [FinishEvent(request_id, i, FinishReason.CANCELLED) for i in open_sequences]).wake()

    def stats(self) -> EngineStats:
        """Return the newest gauges, and counters summed over all processes."""
        return self._stats.after(self._past)

    def health(self) -> Health:
        message = self._message or self._watchdog.problem()
        return Health(self._state, message, None if self._process is None else self._process.pid)

    @property
    def seconds_since_step(self) -> float:
        """Seconds since the last message of an engine that has work; 0 without work."""
        return (
            self._now() - self._last_message_s
            if len(self._requests) > len(self._backpressure.paused) and self._last_message_s
            else 0.0
        )

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # Adapters --------------------------------------------------------------------------------------------------------

    @property
    def adapters(self) -> dict[str, AdapterInfo]:
        """Adapters that requests may name, by name. They outlive the process."""
        return self._adapters.infos()

    async def load_adapter(self, name: str, source: str, *, replace: bool = False) -> AdapterInfo:
        """Load an adapter while requests run; with ``replace`` in the place of a loaded one, which stays where this one
        cannot be read, unless no other slot is free. ``source``: a folder in the layout of PEFT, or a hub id.

        Raises BadRequest for an invalid name, Conflict where it is taken, ModelError, EngineUnavailable.
        """
        load = self._adapters.begin(name, replace=replace)
        try:
            load.folder = await adapter_folder(self._settings.model, source)
            if self._process is None or self._state is not State.READY:
                raise EngineUnavailable(self._message or "the engine is not ready")
            self._unload(self._adapters.make_room(load, self._settings.model.adapter_slots))
            self._process.send(LoadAdapter(load.key, load.folder))
            info = await load.answer
            self._unload(self._adapters.finish(load, info))
        except BaseException:
            self._adapters.forget(load)
            raise
        for warning in info.warnings:
            log.warning("adapter %s: %s", name, warning)
        return info

    async def unload_adapter(self, name: str) -> None:
        """Remove an adapter for later requests; those that run with it finish. Raises AdapterNotFound."""
        self._unload(self._adapters.unload(name))

    def _unload(self, key: str | None) -> None:
        if key is not None and self._process is not None and self._state is State.READY:
            self._process.send(UnloadAdapter(key))

    # Messages --------------------------------------------------------------------------------------------------------

    def _on_message(self, message: FromEngine) -> None:
        self._watchdog.on_message()
        self._last_message_s = self._now()
        if isinstance(message, StepOutput):
            before, self._stats = self._stats, message.stats
            started = time.perf_counter()
            self._dispatch(message)
            if message.blocks and self.on_blocks is not None:
                self.on_blocks([with_adapter_name(event) for event in message.blocks])
            if self.on_step is not None:
                self.on_step(before, message.stats, time.perf_counter() - started)
        elif isinstance(message, StepStarted):
            self._in_batch = message.request_ids
        elif isinstance(message, AdapterLoaded | AdapterRefused):
            if not self._adapters.on_answer(message) and isinstance(message, AdapterLoaded):
                self._unload(message.info.name)
        elif isinstance(message, Explained):
            self._explanations.on_answer(message)
        elif isinstance(message, Failed):
            self._exit_reason = message.message
        elif isinstance(message, Loading):
            if self.on_loading is not None:
                self.on_loading(message.stage, message.share)
        elif isinstance(message, Ready) and self._ready is not None and not self._ready.done():
            self._ready.set_result(message.info)

    def _on_disconnect(self) -> None:
        """Handle the end of the connection: before ``Ready`` the start has failed."""
        self._adapters.on_disconnect()
        self._explanations.on_disconnect()
        if self._ready is not None and not self._ready.done():
            died = EngineUnavailable("the engine process died while starting")
            self._ready.set_exception(ModelError(self._exit_reason) if self._exit_reason else died)
        else:
            self._exited.set()

    def _dispatch(self, output: StepOutput) -> None:
        """Deliver a step's events, grouped by request; resume the streams after all state is updated."""
        by_request: dict[str, list[EngineEvent]] = {}
        for step in output.beams:
            by_request[step.request_id] = []
            if step.request_id in self._requests:
                self._requests[step.request_id].record_beam_step(step)
        for event in output.events:
            own_events = by_request.get(event.request_id)
            if own_events is None:
                by_request[event.request_id] = [event]
            else:
                own_events.append(event)
        if by_request:
            self._restarts.on_progress()
        streams = []
        for request_id, own_events in by_request.items():
            request = self._requests.get(request_id)
            if request is not None:
                streams.append(self._deliver(request, own_events))
        for stream in streams:
            stream.push()

    def _deliver(self, request: InFlightRequest, events: list[EngineEvent]) -> EventStream:
        """Record a request's new events and put them into its stream, which the caller must wake or push."""
        request_id = request.request_id
        stream = self._streams[request_id]
        new = [event for event in events if request.accept(event)]
        is_over = request.is_over
        stream.deliver(new, is_over)
        if is_over:
            del self._requests[request_id], self._streams[request_id]
            self._in_engine.discard(request_id)
            self._backpressure.paused.discard(request_id)
            if request.request.adapter is not None:
                self._unload(self._adapters.release(request.request.adapter))
        elif self._process is not None and request_id in self._in_engine and self._isolation.alone is None:
            # While a suspect is tested alone, all others wait, so it is never paused.
            self._backpressure.check(request_id, stream, self._process.send)
        if self._isolation.is_cleared(request):
            self._end_suspect_test(request)
        return stream

    def _end_suspect_test(self, request: InFlightRequest) -> None:
        """Pause a suspect that is cleared or finished while the others are tested; afterwards all continue."""
        if request.request_id in self._in_engine and self._process is not None:
            self._process.send(Cancel(request.request_id))
            self._in_engine.discard(request.request_id)
            self._backpressure.paused.discard(request.request_id)
        self._send(self._isolation.next(list(self._requests.values())))

    def _send(self, requests: list[InFlightRequest]) -> None:
        for request in requests:
            if self._process is not None and self._state is State.READY:
                self._vocabularies.prepare(request.request, self._process.send)
                self._process.send(Submit(request.as_replay()))
                self._in_engine.add(request.request_id)

    def _fail(self, requests: list[InFlightRequest], message: str) -> None:
        for request in requests:
            self._deliver(request, request.failure_events(message)).wake()
