"""The engine's process: ``python -m dragoman.engine --fd N``, where N is its end of a socket pair.

It reads its ``WorkerSettings``, loads the model, says ``Ready``, and from then on turns submitted requests into one
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

import msgspec

from dragoman import kernels
from dragoman.core.errors import AdapterNotFound, DragomanError
from dragoman.engine.block_store import open_block_store
from dragoman.engine.engine import Engine
from dragoman.engine.lora_reader import AdapterReader
from dragoman.engine.messages import (
    Cancel,
    EngineInfo,
    Failed,
    FrameReader,
    LoadAdapter,
    Loading,
    LoadModel,
    Pause,
    Ready,
    Resume,
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
from dragoman.models.progress import Progress, nobody

log = logging.getLogger("dragoman.engine")


class Worker:
    """Moves messages between the socket and the engine."""

    def __init__(self, connection: socket.socket, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._in_batch: list[str] = []
        self._output: StepOutput | None = None
        """Of the last step, where another follows."""
        self._reader = AdapterReader(engine.adapters)
        self._poll.register(self._reader, select.POLLIN)

    def serve(self) -> None:
        """Until the parent leaves or says so. What a step raises passes through."""
        engine = self._engine
        while True:
            ready = [file for file, _ in self._poll.poll(0 if engine.has_work else None)]
            arrived = self._connection.fileno() in ready
            if arrived and not self._receive():
                return
            if self._reader.fileno() in ready:
                for answer in self._reader.finished():
                    self._connection.sendall(frame(answer))
            if engine.has_work:
                schedule = engine.schedule()
                self._announce(schedule)
                self._output = engine.run(schedule, self._send_output)
                if not engine.scheduler.has_work:
                    self._send_output()
            elif arrived:
                self._send_output()
                self._connection.sendall(frame(engine.output()))

    def _send_output(self) -> None:
        """Say what the last step brought forth, if that has not been said.

        While the next one is computed, for sending wakes a process up that takes this one's core at once.
        """
        output, self._output = self._output, None
        if output is not None:
            self._connection.sendall(frame(output))

    def _receive(self) -> bool:
        """Take in all that has arrived. False: time to go."""
        data = self._connection.recv(1 << 20)
        if not data:
            return False
        for payload in self._frames.feed(data):
            message = self._decoder.decode(payload)
            if isinstance(message, Submit):
                self._engine.submit(message.request)
            elif isinstance(message, SetVocabulary):
                self._engine.teach(message.vocabulary)
            elif isinstance(message, Cancel):
                self._engine.cancel(message.request_id, message.sequence)
            elif isinstance(message, Pause):
                self._engine.pause(message.request_id)
            elif isinstance(message, Resume):
                self._engine.resume(message.request_id)
            elif isinstance(message, LoadAdapter):
                self._engine.sweep_adapters()
                refused = self._reader.begin(message.name, message.source)
                if refused is not None:
                    self._connection.sendall(frame(refused))
            elif isinstance(message, UnloadAdapter):
                with contextlib.suppress(AdapterNotFound):
                    self._engine.unload_adapter(message.name)
            elif isinstance(message, Shutdown):
                return False
        return True

    def _announce(self, schedule: Schedule) -> None:
        sequences = schedule.decodes + [chunk.sequence for chunk in schedule.chunks] + schedule.encodes
        in_batch = list(dict.fromkeys([s.group.request_id for s in sequences]))
        if in_batch != self._in_batch:
            self._send_output()
            self._in_batch = in_batch
            self._connection.sendall(frame(StepStarted(in_batch)))


class Telling:
    """Tells the server how far the loading is: whenever another stage begins, and at each hundredth."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._told = ("", -1.0)

    def __call__(self, stage: str, share: float) -> None:
        before, last = self._told
        if stage != before or share >= last + 0.01:
            self._told = (stage, share)
            self._connection.sendall(frame(Loading(stage, share)))


def load(settings: WorkerSettings, progress: Progress = nobody) -> tuple[Runner, ModelInfo]:
    """The model that the settings name, ready to run. ModelError where it cannot be loaded."""
    if isinstance(settings.model, LoadModel):
        loaded = loading.load(settings.model.source, settings.model.settings, progress, settings.checked)
        return loaded, loaded.card
    stub = StubRunner(settings.model)
    return stub, stub.card


def main() -> int:
    parser = argparse.ArgumentParser(prog="dragoman.engine")
    parser.add_argument("--fd", type=int, required=True, help="the process's end of the socket pair")
    parser.add_argument("--parent", type=int, help="the process id of the server, without which this one ends")
    connection = socket.socket(fileno=parser.parse_args().fd)
    log_to_server()
    try:
        run(connection)
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except DragomanError as error:
        return _give_up(connection, error.message)
    except Exception as error:
        log.exception("the engine process gives up")
        return _give_up(connection, f"{type(error).__name__}: {error}")
    return 0


def _give_up(connection: socket.socket, message: str) -> int:
    """Last words to the server, which shows them; they carry all there is to say of an error that was foreseen."""
    with contextlib.suppress(OSError):
        connection.sendall(frame(Failed(message)))
    return 1


def run(connection: socket.socket) -> None:
    """Load what the first frame names, say that it is ready, and serve."""
    started = time.monotonic()
    first, memory = _first_frame(connection)
    if first is None:
        return
    settings = msgspec.msgpack.decode(first, type=WorkerSettings)
    if settings.threads is not None:
        kernels.set_threads(settings.threads)
    runner, model = load(settings, Telling(connection))
    engine = Engine(runner, settings.scheduler)
    if memory is not None:
        cache = engine.scheduler.cache
        open_block_store(memory, runner.block_data, model.fingerprint, settings.recovery_bytes, cache)
        os.close(memory)
    # What lives now lives for ever: the collector need not look at it again and again between steps.
    gc.collect()
    gc.freeze()
    scheduler = engine.scheduler
    info = EngineInfo(
        model=model,
        vocab_size=runner.vocab_size,
        max_context=scheduler.max_length,
        block_size=runner.block_size,
        num_blocks=runner.num_blocks,
        max_running=scheduler.capacity,
        max_unfinished=scheduler.max_unfinished,
        step_tokens=scheduler.step_tokens,
        load_s=time.monotonic() - started,
    )
    connection.sendall(frame(Ready(info)))
    Worker(connection, engine).serve()


def _first_frame(connection: socket.socket) -> tuple[bytes | None, int | None]:
    """The frame, and the file of the ``block_store`` that came along. The parent sends nothing else before it hears
    ``Ready``. None: it left instead, or has no such file."""
    frames = FrameReader()
    data, files, _, _ = socket.recv_fds(connection, 1 << 16, 1)
    memory = files[0] if files else None
    while data:
        if payloads := frames.feed(data):
            return payloads[0], memory
        data = connection.recv(1 << 16)
    return None, memory
