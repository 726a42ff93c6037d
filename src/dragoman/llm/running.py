"""Start and end of a program's model; it ends when it is closed, when it is garbage-collected, or with the program."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread
import contextlib
import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack, closing
from typing import Any

from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.worker_settings import worker_settings
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.llm.in_process import InProcessModel
from dragoman.llm.loop_thread import LoopThread
from dragoman.llm.sampling_params import InvalidParams, check_fields
from dragoman.models.settings import ModelSettings
from dragoman.models.topology import Placement
from dragoman.serving.runtime import start_runtime
from dragoman.serving.settings import AdapterSettings, ServingSettings

MAX_WAITING = 1 << 16
"""Requests that may wait for their first token. A batch limits its requests itself; the engine accepts fewer
streams."""

MAX_THREADS = 1024
"""Threads that compute: the kernels take no more."""

THREAD_CHECK_S = 0.1
"""How often it is seen, at the end of the program, what its threads wait for."""

NOT_OPTIONS = {"name", "max_tokens", "max_logit_rows", "max_running", "max_waiting", "share_prefix_cache"}
"""Fields of settings that follow from others, or concern a server and its callers."""

Path = str | os.PathLike[str]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of the kind that the server runs on."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class RunningModel:
    """A model and the thread of its event loop. It has no reference to its ``LLM``, so that can be garbage-collected.

    Attributes:
        is_open: not yet closed.
    """

    def __init__(self, thread: LoopThread, model: InProcessModel, stack: ExitStack) -> None:
        """Create the pair. ``stack``: its exit ends both."""
        self.thread = thread
        self.model = model
        self.is_open = True
        self._stack = stack
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process has loaded it, and is no fork of the one that has."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """End both, unless another call has begun to. In a fork of the process there is nothing to end."""
        with self._lock:
            if not self.is_open or not self.is_own:
                return
            self.is_open = False
        _running.discard(self)
        self._stack.close()


def start_model(
    model: Path | None,
    placement: Placement,
    chat_template: Path | None,
    adapters: Mapping[str, Path],
    options: Mapping[str, Any],
) -> RunningModel:
    """Load a model: see ``LLM``. Raises ModelError, InvalidParams, and TypeError for unknown options."""
    settings, scheduling = _settings(options)
    _check_paths(model=model, chat_template=chat_template)
    template = None if chat_template is None else os.fspath(chat_template)
    serving = ServingSettings(chat_template=template, max_waiting=MAX_WAITING)
    offered = _adapter_settings(adapters)
    interval_s = sys.getswitchinterval()
    try:
        with ExitStack() as stack:
            prespawned = stack.enter_context(closing(PrespawnedWorker()))
            # In this thread: Ctrl-C ends a download.
            source = None if model is None else os.fspath(model)
            worker, described = worker_settings(source, settings, scheduling, placement)
            prespawned.send_settings(worker)
            thread = LoopThread(new_event_loop)
            stack.callback(thread.close)
            opening = start_runtime(
                serving, worker, described.tokenizer_folder, adapters=offered, prespawned=prespawned
            )
            loaded = InProcessModel(stack.enter_context(thread.hold(opening)))
            running = RunningModel(thread, loaded, stack.pop_all())
    finally:
        # A server shortens it for all of its process. This process is the program's.
        sys.setswitchinterval(interval_s)
    _running.add(running)
    _close_all_at_exit()
    return running


def close_forgotten(running: RunningModel) -> None:
    """Close the model in a new thread: garbage is collected in any thread, also in the loop's. In a fork of the process
    there is nothing to close, and nothing to warn of."""
    if running.is_open and running.is_own:
        # Before the warning, which is an exception where the program asks for that (python -W error).
        threading.Thread(target=running.close, name="dragoman-close", daemon=True).start()
        warnings.warn("an LLM was not closed: use it in a with block", ResourceWarning, stacklevel=2)


_running: set[RunningModel] = set()


@functools.cache  # once
def _close_all_at_exit() -> None:
    """Register the closing of all models for the moment before the interpreter waits for threads.

    Later would be too late. After these hooks executors take no more work, and what a thread generates may need one: a
    first chat starts the process of templates by one. So a thread that waits for the end of the main one cannot do it.
    In ``atexit`` no more threads can be started, which the event loop needs.
    """
    register: Callable[[Callable[[], None]], object] = getattr(threading, "_register_atexit", atexit.register)
    register(_close_all)


def _close_all() -> None:
    try:
        if _running:
            _wait_for_threads()
    finally:
        for running in list(_running):
            with contextlib.suppress(Exception):
                running.close()


def _wait_for_threads() -> None:
    """Wait for the threads of the program, which may generate, as the interpreter does next.

    Not for those that wait for the main thread, which does not end before this function, nor for those of executors,
    which end later.
    """
    of_executors: Container[threading.Thread] = getattr(concurrent.futures.thread, "_threads_queues", ())
    ours = (threading.main_thread(), threading.current_thread())
    while threads := [
        each
        for each in threading.enumerate()
        if not (each.daemon or each in ours or each in of_executors or _waits_for_main(each))
    ]:
        threads[0].join(THREAD_CHECK_S)


def _waits_for_main(thread: threading.Thread) -> bool:
    """Return whether the thread is in ``main_thread().join()``. Only its stack says so: ``threading`` does not keep who
    waits for whom. Without it a program with such a thread would never end."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code is threading.Thread.join.__code__ and frame.f_locals["self"] is threading.main_thread():
            return True
        frame = frame.f_back
    return False


def check_placement(threads: object, cpus: object) -> None:
    """Raise InvalidParams for what is no number of threads, or no list of processors."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MAX_THREADS):
        raise InvalidParams(f"'threads' is {threads!r}: expected a number from 1 to {MAX_THREADS}.", param="threads")
    if cpus is not None and not isinstance(cpus, str):
        raise InvalidParams(f"'cpus' is {cpus!r}: expected a text such as '0-15,32'.", param="cpus")


def _check_paths(**given: object) -> None:
    """Raise InvalidParams for what is no path."""
    for name, value in given.items():
        if value is not None and not isinstance(value, str | os.PathLike):
            raise InvalidParams(f"'{name}' is {value!r}: expected a text or a path.", param=name)


def _settings(options: Mapping[str, Any]) -> tuple[ModelSettings, SchedulerSettings]:
    of_model, of_schedule = (_fields(kind) for kind in (ModelSettings, SchedulerSettings))
    if unknown := options.keys() - of_model - of_schedule:
        raise TypeError(f"LLM has no option {min(unknown)!r}; there are {', '.join(sorted(of_model | of_schedule))}")
    model = ModelSettings(**{name: value for name, value in options.items() if name in of_model})
    scheduling = SchedulerSettings(**{name: value for name, value in options.items() if name in of_schedule})
    check_fields(model)
    check_fields(scheduling)
    return model, scheduling


def _fields(settings: type[ModelSettings] | type[SchedulerSettings]) -> set[str]:
    return set(settings.__struct_fields__) - NOT_OPTIONS


def _adapter_settings(adapters: Mapping[str, Path]) -> AdapterSettings:
    if not isinstance(adapters, Mapping):
        raise InvalidParams(f"'adapters' is {adapters!r}: expected a dict of names and folders.", param="adapters")
    for name, source in adapters.items():
        _check_paths(adapters=source)
        if not isinstance(name, str) or not name or set(name) & set("=,@") or set(os.fspath(source)) & set("=,"):
            message = f"'adapters' has {name!r}: names are without '=', ',' and '@', folders without '=' and ','."
            raise InvalidParams(message, param="adapters")
    listed = ",".join(f"{name}={os.fspath(source)}" for name, source in adapters.items())
    return AdapterSettings(lora_adapters=listed or None)
