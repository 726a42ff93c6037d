"""A life of the engine in memory: the real engine on the stub model, which can be killed or stopped at any moment."""

from __future__ import annotations

import errno
import itertools
import signal
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.engine.engine import Engine
from dragoman.engine.messages import (
    AdapterLoaded,
    AdapterRefused,
    Cancel,
    EngineInfo,
    Failed,
    FrameReader,
    FromEngine,
    LoadAdapter,
    Pause,
    Ready,
    Resume,
    SetThreads,
    SetVocabulary,
    Shutdown,
    StepOutput,
    StepStarted,
    StubModel,
    Submit,
    ToEngine,
    UnloadAdapter,
    WorkerSettings,
    frame,
)
from dragoman.engine.stub import StubRunner
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.models.batch import Batch
from tests.simulation.virtual_time import InlineExecutor, VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.fair_shares import FairShares
    from tests.simulation.world import World

POISON = (4001, 4002, 4003)
"""Tokens that, one after the other in a prompt, kill the process that computes them."""
PIPE_S = 0.0002
_pids = itertools.count(100_000_000)
"""Of no process that there is: whoever looks one up finds nothing."""


class Poisoned(Exception):
    """The process dies of what it computes."""


class SimulatedProcess:
    """``engine_client.connection.EngineProcess`` as callbacks of the loop.

    ``world`` says how long all takes, and what fails.
    """

    def __init__(
        self, world: World, settings: WorkerSettings, heard: Callable[[FromEngine], None], gone: Callable[[], None]
    ) -> None:
        self._world, self._loop = world, world.loop
        self._settings, self._heard, self._gone = settings, heard, gone
        self._pid = next(_pids)
        self._to_engine = msgspec.msgpack.Decoder(ToEngine)
        self._from_engine = msgspec.msgpack.Decoder(FromEngine)
        self._inbox: deque[bytes] = deque()
        self._pipe: deque[bytes] = deque()
        self._is_pumping = False
        self._status: int | None = None
        self._is_stopped = False
        self._is_busy = False
        self._in_batch: list[str] = []
        self._output: StepOutput | None = None
        self.engine: Engine | None = None
        self._shares: FairShares | None = None
        self.most_running: dict[str, float] = {}
        """Of each caller, the highest limit of sequences that run which any of its requests came with."""

    @classmethod
    async def spawn(
        cls,
        world: World,
        settings: WorkerSettings,
        heard: Callable[[FromEngine], None],
        gone: Callable[[], None],
        prespawned: PrespawnedWorker | None = None,
    ) -> SimulatedProcess:
        fault = world.next_start_fault()
        if fault == "descriptors":
            raise OSError(errno.EMFILE, "Too many open files")
        process = cls(world, settings, heard, gone)
        world.processes.append(process)
        process._later(world.rng.uniform(0.02, 0.3), lambda: process._begin(fault))
        return process

    # The parent's side -----------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def is_alive(self) -> bool:
        return self._status is None

    def send(self, message: msgspec.Struct) -> None:
        if self.is_alive:
            (payload,) = FrameReader().feed(frame(message))
            self._inbox.append(payload)
            self._later(PIPE_S, self._turn)

    def kill(self) -> None:
        self._end(-signal.SIGKILL)

    async def reap(self) -> int:
        self._end(-signal.SIGKILL)
        assert self._status is not None
        return self._status

    async def stop(self) -> None:
        self.send(Shutdown())
        self._end(0)

    def stop_moving(self) -> None:
        """As SIGSTOP does."""
        self._is_stopped = True

    def _end(self, status: int) -> None:
        """What was written to the pipe before is still read; then the connection is over."""
        if self.is_alive:
            self._status = status
            self._inbox.clear()
            self._pump()

    # The process's side ----------------------------------------------------------------------------------------------

    def _later(self, seconds: float, work: Callable[[], None]) -> None:
        def unless_dead() -> None:
            if self.is_alive and not self._is_stopped:
                work()

        self._loop.call_later(seconds, unless_dead)

    def _begin(self, fault: str) -> None:
        if fault == "dies":
            self._end(-signal.SIGKILL)
            return
        if fault == "fails":
            self._say(Failed("the model's folder is not there"))
            self._end(1)
            return
        assert isinstance(self._settings.model, StubModel)
        runner = StubRunner(self._settings.model, sleep=lambda seconds: None, seen=_poisoned)
        self.engine = engine = Engine(runner, self._settings.scheduler)
        engine._grammars._executor = InlineExecutor()  # type: ignore[assignment]
        self._shares = self._world.fair_shares(engine)
        scheduler = engine.scheduler
        info = EngineInfo(
            model=runner.card,
            vocab_size=runner.vocab_size,
            max_context=scheduler.max_length,
            block_size=runner.block_size,
            num_blocks=runner.num_blocks,
            max_running=scheduler.capacity,
            max_unfinished=scheduler.max_unfinished,
            step_tokens=scheduler.step_tokens,
            load_s=0.1,
        )
        self._say(Ready(info))
        self._turn()

    def _turn(self) -> None:
        """Read what has come; begin a step unless one is being computed. As ``engine.worker.Worker.serve``."""
        if self._is_busy or self.engine is None:
            return
        engine, arrived = self.engine, bool(self._inbox)
        while self._inbox:
            self._take(self._to_engine.decode(self._inbox.popleft()))
            if self._shares is not None:
                self._shares.taken()
        if engine.has_work:
            schedule = engine.schedule()
            if self._shares is not None:
                self._shares.scheduled(schedule)
            sequences = schedule.decodes + [chunk.sequence for chunk in schedule.chunks] + schedule.encodes
            in_batch = list(dict.fromkeys(s.group.request_id for s in sequences))
            if in_batch != self._in_batch:
                self._send_output()
                self._in_batch = in_batch
                self._say(StepStarted(in_batch))
            self._is_busy = True
            step_s = self._world.step_s()
            self._later(step_s, lambda: self._compute(schedule, step_s))
        elif arrived:
            self._send_output()
            self._say(engine.output())

    def _compute(self, schedule: Any, step_s: float) -> None:
        assert self.engine is not None
        self._is_busy = False
        self.engine._busy_s += step_s  # the computation itself takes no virtual time
        try:
            self._output = self.engine.run(schedule, self._send_output)
        except Poisoned:
            self._end(-signal.SIGSEGV)
            return
        self._world.stepped(self)
        if self._shares is not None:
            self._shares.computed(self._output)
        if not self.engine.scheduler.has_work:
            self._send_output()
        self._turn()

    def _take(self, message: Any) -> None:
        engine = self.engine
        assert engine is not None
        match message:
            case Submit():
                request = message.request
                limit = float("inf") if request.max_running is None else request.max_running
                self.most_running[request.tenant] = max(limit, self.most_running.get(request.tenant, 0))
                engine.submit(request)
            case SetVocabulary():
                engine.set_vocabulary(message.vocabulary)
            case SetThreads():
                pass  # its steps are computed by no threads of their own
            case Cancel():
                engine.cancel(message.request_id, message.sequence)
            case Pause():
                engine.pause(message.request_id)
            case Resume():
                engine.resume(message.request_id)
            case LoadAdapter():
                try:
                    self._say(AdapterLoaded(engine.load_adapter(message.name, message.source)))
                except DragomanError as error:
                    self._say(AdapterRefused(message.name, error.message))
            case UnloadAdapter():
                engine.unload_adapter(message.name)
            case Shutdown():
                self._end(0)
            case _:
                raise AssertionError(f"the simulated process does not know {message!r}")

    def _send_output(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            self._say(output)

    # The pipe to the parent ------------------------------------------------------------------------------------------

    def _say(self, message: msgspec.Struct) -> None:
        (payload,) = FrameReader().feed(frame(message))
        self._pipe.append(payload)
        self._pump()

    def _pump(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._loop.call_later(PIPE_S, self._deliver)

    def _deliver(self) -> None:
        """In a callback of the loop, as the transport of a socket does."""
        while self._pipe:
            self._heard(self._from_engine.decode(self._pipe.popleft()))
        self._is_pumping = False
        if not self.is_alive:
            self._is_pumping = True  # nothing comes any more
            self._gone()


def _poisoned(batch: Batch) -> None:
    ids = batch.token_ids
    for at in (ids[:-2] == POISON[0]).nonzero()[0].tolist() if len(ids) > 2 else ():
        if tuple(ids[at : at + 3].tolist()) == POISON:
            raise Poisoned


__all__ = ["POISON", "SimulatedProcess", "VirtualLoop"]
