"""The engine's process: ``python -m dragoman.engine --fd N``, where N is its end of a socket pair.

It reads its ``WorkerSettings``, loads the model, sends ``Ready``, and from then on turns submitted requests into one
``StepOutput`` per step, sent while the next one is computed. Without work it sleeps in ``poll``. It ends when its
parent closes the socket, or dies.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import select
import socket
import time
from pathlib import Path

import msgspec

from dragoman import kernels
from dragoman.core.errors import AdapterNotFound, DragomanError
from dragoman.core.explanation import EngineExplanation
from dragoman.engine.block_store import open_block_stores
from dragoman.engine.engine import Engine
from dragoman.engine.lora_reader import AdapterReader
from dragoman.engine.messages import (
    Cancel,
    EngineInfo,
    Explain,
    Explained,
    Failed,
    FrameReader,
    LoadAdapter,
    LoadDraft,
    LoadHead,
    Loading,
    LoadModel,
    Pause,
    Ready,
    Resume,
    SetDraftVocabulary,
    SetThreads,
    SetVocabulary,
    Shutdown,
    StepOutput,
    StepStarted,
    Submit,
    ToEngine,
    UnloadAdapter,
    WorkerSettings,
    frame,
)
from dragoman.engine.process_log import log_to_server
from dragoman.engine.runner import Runner
from dragoman.engine.schedule import Schedule
from dragoman.engine.stub import StubRunner
from dragoman.models import ModelInfo, loading
from dragoman.models.memory import ModelTooLarge
from dragoman.models.model import Model
from dragoman.models.progress import Progress, ignore_progress

log = logging.getLogger("dragoman.engine")

_PATIENCE_S = 0.02
"""Time that a step waits for the rest of a long message, while it comes."""
_QUIET_MS = 300
"""Time without any message after which an idle process may time steps: the server is then ready, as it is."""
_GAP_MS = 2
"""Time without any part of it after which the step does not wait."""


class Worker:
    """Moves messages between the socket and the engine."""

    def __init__(self, connection: socket.socket, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._more = select.poll()
        self._more.register(connection, select.POLLIN)
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._in_batch: list[str] = []
        self._output: StepOutput | None = None
        """Output of the last step, while another follows."""
        self._reader = AdapterReader(engine.adapters)
        self._poll.register(self._reader, select.POLLIN)

    def serve(self) -> None:
        """Run until the parent closes the socket or sends ``Shutdown``. Exceptions of a step pass through."""
        engine, costs = self._engine, self._engine.scheduler.drafts.costs
        is_quiet = False
        while True:
            wait_ms = None if costs is None or costs.is_over else 0 if is_quiet else _QUIET_MS
            ready = [file for file, _ in self._poll.poll(0 if engine.has_work else wait_ms)]
            is_quiet = not ready
            arrived = self._connection.fileno() in ready
            if arrived and not self._receive():
                return
            if self._reader.fileno() in ready:
                for answer in self._reader.finished():
                    self._connection.sendall(frame(answer))
            if engine.has_work:
                if costs is not None:
                    costs.end()
                schedule = engine.schedule()
                self._announce(schedule)
                self._output = engine.run(schedule, self._send_output, self._connection.fileno())
                if not engine.scheduler.has_work:
                    self._send_output()
            elif arrived:
                self._send_output()
                self._connection.sendall(frame(engine.output()))
            elif is_quiet and costs is not None:
                costs.measure(self._connection.fileno())

    def _send_output(self) -> None:
        """Send the output of the last step, unless it is sent already.

        It is sent while the next step is computed, as sending wakes a process that takes this one's core at once.
        """
        output, self._output = self._output, None
        if output is not None:
            self._connection.sendall(frame(output))

    def _receive(self) -> bool:
        """Handle everything that has arrived. Returns False when the process must end.

        A socket holds little at one time. Of a request with images, which has megabytes, more is waited for as long as
        it keeps coming, and not for a step between each two parts of it.
        """
        ends = time.perf_counter() + _PATIENCE_S
        while self._receive_some():
            if not self._frames.is_inside or time.perf_counter() > ends or not self._more.poll(_GAP_MS):
                return True
        return False

    def _receive_some(self) -> bool:
        data = self._connection.recv(1 << 20)
        if not data:
            return False
        for payload in self._frames.feed(data):
            message = self._decoder.decode(payload)
            if isinstance(message, Submit):
                self._engine.submit(message.request)
            elif isinstance(message, Explain):
                self._connection.sendall(frame(self._explained(message)))
            elif isinstance(message, SetVocabulary):
                self._engine.set_vocabulary(message.vocabulary)
            elif isinstance(message, SetDraftVocabulary):
                if self._engine.scheduler.drafts.model is not None:
                    self._engine.scheduler.drafts.model.vocabulary = message.vocabulary
            elif isinstance(message, SetThreads):
                kernels.set_threads(message.threads)
            elif isinstance(message, Cancel):
                self._engine.cancel(message.request_id, message.sequence)
            elif isinstance(message, Pause):
                self._engine.pause(message.request_id)
            elif isinstance(message, Resume):
                self._engine.resume(message.request_id)
            elif isinstance(message, LoadAdapter):
                self._engine.free_unused_adapters()
                refused = self._reader.begin(message.name, message.source)
                if refused is not None:
                    self._connection.sendall(frame(refused))
            elif isinstance(message, UnloadAdapter):
                with contextlib.suppress(AdapterNotFound):
                    self._engine.unload_adapter(message.name)
            elif isinstance(message, Shutdown):
                return False
        return True

    def _explained(self, message: Explain) -> Explained:
        try:
            explanation = self._engine.explain(message.request)
        except Exception as error:  # what is only asked about must not end the requests that run
            log.exception("a request could not be explained")
            explanation = EngineExplanation(error=f"{type(error).__name__}: {error}")
        return Explained(message.request.request_id, explanation)

    def _announce(self, schedule: Schedule) -> None:
        chunks = schedule.chunks + schedule.pooled
        sequences = schedule.decodes + [chunk.sequence for chunk in chunks] + schedule.encodes
        if schedule.sees is not None:
            sequences.append(schedule.sees)
        in_batch = list(dict.fromkeys([s.group.request_id for s in sequences]))
        if in_batch != self._in_batch:
            self._send_output()
            self._in_batch = in_batch
            self._connection.sendall(frame(StepStarted(in_batch)))


class ProgressSender:
    """Sends the progress of loading to the server: at each new stage, and at each hundredth."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._last_sent = ("", -1.0)

    def __call__(self, stage: str, share: float) -> None:
        before, last = self._last_sent
        if stage != before or share >= last + 0.01:
            self._last_sent = (stage, share)
            self._connection.sendall(frame(Loading(stage, share)))


def load(settings: WorkerSettings, progress: Progress = ignore_progress) -> tuple[Runner, ModelInfo]:
    """Load the model that the settings name. Raises ModelError."""
    if isinstance(settings.model, LoadModel):
        head = settings.draft if isinstance(settings.draft, LoadHead) else None
        loaded = loading.load(
            settings.model.source,
            settings.model.settings,
            progress,
            settings.checked,
            head_context=None if head is None else head.context,
            eagle=None if head is None else head.eagle,
            is_restart=settings.is_restart,
            available_bytes=settings.available_bytes,
        )
        return loaded, loaded.card
    stub = StubRunner(settings.model)
    return stub, stub.card


def load_beside(
    settings: WorkerSettings, memory: int | None, progress: Progress = ignore_progress
) -> tuple[Runner, ModelInfo]:
    """Load the model, as ``load`` does. ``memory``: the file of the ``block_store``, which is emptied where the model
    needs what it takes."""
    try:
        return load(settings, progress)
    except ModelTooLarge:
        if memory is None or os.fstat(memory).st_blocks == 0:
            raise
        log.warning("what was computed before the restart is dropped: the model needs the memory")
        os.ftruncate(memory, 0)
        return load(settings, progress)


def main() -> int:
    parser = argparse.ArgumentParser(prog="dragoman.engine")
    parser.add_argument("--fd", type=int, required=True, help="the process's end of the socket pair")
    parser.add_argument("--parent", type=int, help="the process id of the server, without which this one ends")
    descriptor = parser.parse_args().fd
    log_to_server()
    with socket.socket(fileno=descriptor) as connection:
        try:
            run(connection)
        except (BrokenPipeError, ConnectionResetError):
            return 0
        except DragomanError as error:
            return _give_up(connection, error.message)
        except Exception as error:
            log.exception("the engine process ends after an error")
            return _give_up(connection, f"{type(error).__name__}: {error}")
    return 0


def _give_up(connection: socket.socket, message: str) -> int:
    """Send the error to the server, which shows it; for a known error the message is complete."""
    with contextlib.suppress(OSError):
        connection.sendall(frame(Failed(message)))
    return 1


def place_threads(settings: WorkerSettings) -> None:
    """Have this process compute where the settings say, before it has threads or weights. What the system refuses, such
    as a processor that was taken from this container meanwhile, costs speed alone."""
    if settings.processors:
        try:
            os.sched_setaffinity(0, settings.processors)
        except OSError as error:
            log.warning("the engine cannot be tied to its processors (%s): the system chooses them", error.strerror)
    if settings.nodes and not kernels.set_memory_nodes(settings.nodes):
        log.warning("the system does not spread memory over its nodes: pages stay where they are touched first")
    if settings.threads is not None:
        kernels.set_threads(settings.threads)


def run(connection: socket.socket) -> None:
    """Load the model of the first frame, send ``Ready``, and serve."""
    started = time.monotonic()
    first, memory = _first_frame(connection)
    if first is None:
        return
    settings = msgspec.msgpack.decode(first, type=WorkerSettings)
    place_threads(settings)
    # Before the model itself, which plans with the memory that is left.
    draft = None
    if isinstance(settings.draft, LoadDraft):
        draft = loading.load(settings.draft.source, settings.draft.settings)
    runner, model = load_beside(settings, memory, ProgressSender(connection))
    recovery_bytes = recovery_memory(settings, runner)
    engine = Engine(runner, settings.scheduler)
    if draft is not None:
        engine.scheduler.drafts.use_model(draft)
    if isinstance(runner, Model) and runner.head is not None:
        engine.scheduler.drafts.use_head(runner.head, runner.hidden_rows)
    engine.scheduler.drafts.plan_costs(runner)
    if memory is not None:
        named = [group for group in engine.scheduler.tables.groups if not group.own]
        data = [runner.block_data[group.index] for group in named]
        caches = [group.cache for group in named]
        open_block_stores(memory, data, model.fingerprint, recovery_bytes, caches)
        os.close(memory)
    if settings.report_blocks:
        engine.report_blocks()
    if settings.disk is not None:
        label = f"{model.name} {model.precision}, keys and values {model.kv_precision}"
        engine.open_disk(Path(settings.disk.folder), settings.disk.limit_bytes, model.fingerprint, label=label)
    # Everything alive now stays alive: the garbage collector need not scan it between steps.
    gc.collect()
    gc.freeze()
    scheduler = engine.scheduler
    info = EngineInfo(
        model=model,
        vocab_size=runner.vocab_size,
        max_context=scheduler.max_length,
        block_size=runner.block_size,
        num_blocks=scheduler.cache.num_blocks,
        kv_bytes=sum(each.nbytes for each in runner.block_data),
        recovery_bytes=recovery_bytes,
        max_running=scheduler.capacity,
        max_unfinished=scheduler.max_unfinished,
        step_tokens=scheduler.step_tokens,
        load_s=time.monotonic() - started,
        draft=None if draft is None else draft.card,
    )
    connection.sendall(frame(Ready(info)))
    try:
        Worker(connection, engine).serve()
        engine.close()
    finally:
        gc.unfreeze()  # the end of the process frees what is no longer used, and the native module reports what is not


def recovery_memory(settings: WorkerSettings, runner: Runner) -> int:
    """Return the maximum memory of the ``block_store``: as the settings say, within what the first model leaves, so
    that the copies never end the process that they are made for."""
    if settings.is_restart or not isinstance(runner, Model):
        return settings.recovery_bytes
    left = runner.plan.left_bytes - (0 if settings.draft is None else settings.draft.nbytes)
    return max(0, min(settings.recovery_bytes, left))


def _first_frame(connection: socket.socket) -> tuple[bytes | None, int | None]:
    """Return the first frame, and the file of the ``block_store`` sent with it. The parent sends nothing else before
    ``Ready``. None: the parent closed the socket, or sent no such file."""
    frames = FrameReader()
    data, files, _, _ = socket.recv_fds(connection, 1 << 16, 1)
    memory = files[0] if files else None
    while data:
        if payloads := frames.feed(data):
            return payloads[0], memory
        data = connection.recv(1 << 16)
    return None, memory
