"""An event loop whose time jumps to the next timer when nothing is ready, and clocks that agree with it.

Nothing waits: minutes of timeouts pass in milliseconds, and the order of everything follows from one seed. Work for
threads is done by the loop, some time after it was asked for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import random
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

EPOCH_S = 1_800_000_000.0
"""What the wall clock says when a simulation begins."""
MOST_TURNS = 400_000
LONGEST_S = 100_000.0
TURN_S = 1e-6
"""What a turn of the loop takes at least: who waits for a moment to pass sees it pass."""
THREAD_S = 0.003
"""The longest that the simulated threads take for anything."""


class Stuck(AssertionError):
    """Nothing will ever happen again, or things happen without end."""


class ThreadStarted(AssertionError):
    """Something runs beside the loop: what it does follows from the machine's load, not from the seed."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """``on_turn`` is called whenever the loop looks for what comes next."""

    def __init__(self, rng: random.Random) -> None:
        self.now_s = 0.0
        self.wall_offset_s = 0.0
        self.turns = 0
        self.on_turn: Callable[[], None] = lambda: None
        self.errors: list[dict[str, Any]] = []
        self._rng = rng
        self._lanes: dict[int, float] = {}
        self._threads = threading.active_count()
        super().__init__(_Jumping(self))
        self._clock_resolution = 1e-9
        self.set_exception_handler(lambda loop, context: self.errors.append(context))

    def time(self) -> float:
        return self.now_s

    def close(self) -> None:
        """Cancel the tasks of a world that ended early: what they do when they are collected as garbage would fail in
        another test."""
        self.on_turn = lambda: None
        for _ in range(10):
            if self.is_closed() or not (left := asyncio.all_tasks(self)):
                break
            for task in left:
                task.cancel()
            with contextlib.suppress(Exception):  # the loop may have been asked to stop already
                self.run_until_complete(asyncio.wait(left, timeout=10.0))
        super().close()

    def advance(self, timeout_s: float | None) -> None:
        """In place of waiting for files: time passes."""
        self.turns += 1
        if threading.active_count() > self._threads:
            raise ThreadStarted(f"threads run: {sorted(thread.name for thread in threading.enumerate())}")
        self.on_turn()
        if timeout_s is None:
            raise Stuck("nothing is ready, and no timer runs")
        if self.turns > MOST_TURNS or self.now_s > LONGEST_S:
            raise Stuck(f"it does not come to an end: {self.turns} turns, {self.now_s:.0f} s")
        self.now_s += max(TURN_S, timeout_s)

    def thread_s(self) -> float:
        """How long a thread takes for something."""
        return self._rng.uniform(0, THREAD_S)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Done by the loop itself, later; what one executor gets is done in order."""
        future = self.create_future()
        lane = id(executor)
        when = max(self.now_s + self.thread_s(), self._lanes.get(lane, 0.0))
        self._lanes[lane] = when

        def run() -> None:
            if future.done():
                if executor is not None:
                    func(*args)  # a thread that has begun goes on, whoever waits
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_at(when, run)
        return future


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.advance(timeout)
        return []


class InlineExecutor(concurrent.futures.Executor):
    """Does everything at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class VirtualQueue:
    """Work for the threads of a ``serving.worker_pool.WorkerPool``, done by the loop some time later, one by one."""

    def put(self, item: Any) -> None:
        if item is None:
            return
        job, finished = item
        loop = job.loop

        def run() -> None:
            result, error = None, None
            try:
                result = job.context.run(job.work)
            except BaseException as caught:
                error = caught
            finished(job, result, error)

        loop.call_later(loop.thread_s(), run)


class NoThread:
    """Stands for a thread that is not needed."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        pass

    def join(self, timeout: float | None = None) -> None:
        pass


REAL = {name: getattr(time, name) for name in ("monotonic", "perf_counter", "time", "time_ns")}
_running: list[VirtualLoop] = []


def _monotonic() -> float:
    return _running[-1].now_s if _running else REAL["monotonic"]()


def _wall() -> float:
    if not _running:
        return float(REAL["time"]())
    return EPOCH_S + _running[-1].now_s + _running[-1].wall_offset_s


def _wall_ns() -> int:
    return int(_wall() * 1e9)


# A module that is imported while these are in place may keep them: without a running loop they are the real ones.
VIRTUAL = {"monotonic": _monotonic, "perf_counter": _monotonic, "time": _wall, "time_ns": _wall_ns}


@contextlib.contextmanager
def virtual_clocks(loop: VirtualLoop) -> Iterator[None]:
    """The clocks of the process are the loop's; the wall clock may be off by ``loop.wall_offset_s``."""
    places, defaults = _places(len(sys.modules)), _defaults(len(sys.modules))
    _running.append(loop)
    try:
        for owner, name, clock in places:
            setattr(owner, name, VIRTUAL[clock])
        for function, _, virtual in defaults:
            function.__defaults__, function.__kwdefaults__ = virtual
        yield
    finally:
        for owner, name, clock in places:
            setattr(owner, name, REAL[clock])
        for function, real, _ in defaults:
            function.__defaults__, function.__kwdefaults__ = real
        _running.pop()


@functools.cache
def _places(modules: int) -> list[tuple[Any, str, str]]:
    """Where the clocks are looked up: module, name there, and which clock. Looked for again when modules have come."""
    places: list[tuple[Any, str, str]] = [(time, name, name) for name in REAL]
    for module in _modules():
        for name, value in list(vars(module).items()):
            places += [(module, name, clock) for clock, real in REAL.items() if value is real]
    return places


_Defaults = tuple[tuple[Any, ...] | None, dict[str, Any] | None]


@functools.cache
def _defaults(modules: int) -> list[tuple[Any, _Defaults, _Defaults]]:
    """Functions that take a clock and have one by default: each with its defaults, and with virtual ones."""
    virtual_of = {id(real): VIRTUAL[name] for name, real in REAL.items()}
    found: list[tuple[Any, _Defaults, _Defaults]] = []
    for module in _modules():
        classes = [each for each in vars(module).values() if inspect.isclass(each)]
        for owner in (module, *(each for each in classes if each.__module__ == module.__name__)):
            for function in vars(owner).values():
                if inspect.isfunction(function) and function.__module__ == module.__name__:
                    given, named = function.__defaults__, function.__kwdefaults__
                    values = (*(given or ()), *(named or {}).values())
                    if any(id(value) in virtual_of for value in values):
                        virtual = (
                            given and tuple(virtual_of.get(id(value), value) for value in given),
                            named and {name: virtual_of.get(id(value), value) for name, value in named.items()},
                        )
                        found.append((function, (given, named), virtual))
    return found


def _modules() -> list[Any]:
    return [module for key, module in sys.modules.items() if key.split(".")[0] in ("dragoman", "limits")]
