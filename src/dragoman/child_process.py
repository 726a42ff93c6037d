"""Child processes that never outlive the process that started them, even when they are stopped or busy.

Imports next to nothing: every child imports this first.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_starter: ThreadPoolExecutor | None = None
_starter_lock = threading.Lock()


def die_with_parent(parent_pid: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies, also while it is stopped. Call it first in a child.

    ``parent_pid``: the parent's, for one that died before this call; the process then ends at once. Without it that is
    left to the child's connection to its parent, which is then closed. Does nothing where there is no such signal
    (it is Linux's). A fork does not inherit it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def open_standard_files() -> None:
    """Open closed standard files at /dev/null, for children too, so that no other file gets their descriptors, and
    their output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that calls ``die_with_parent``; ``options`` as ``subprocess.Popen`` has them. Any thread may.

    The kernel takes the end of the *thread* that started a child for the end of its parent. So one that lives as long
    as the process starts it: the main thread, or one that is kept for this. Raises OSError.
    """
    import subprocess

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    if sys.platform != "linux" or threading.current_thread() is threading.main_thread():
        return start()
    return _starting_thread().submit(start).result()


class ChildState(NamedTuple):
    """What the system says about a process.

    Attributes:
        cpu_ticks: processor time of all its threads, in hundredths of a second.
        is_stopped: by a signal or a debugger, until it is continued.
    """

    cpu_ticks: int
    is_stopped: bool


def child_state(pid: int) -> ChildState | None:
    """Return the state of a child process; None for one that ended, and where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # from the state on (proc_pid_stat(5))
        return ChildState(int(fields[11]) + int(fields[12]), fields[0] in (b"T", b"t"))
    except (OSError, IndexError, ValueError):
        return None if sys.platform == "linux" else _child_state_elsewhere(pid)


def _child_state_elsewhere(pid: int) -> ChildState | None:
    """Return what the calls of other systems say, which are slower than reading a file of /proc."""
    import psutil

    try:
        process = psutil.Process(pid)
        used, status = process.cpu_times(), process.status()
    except (psutil.Error, OSError):
        return None
    return ChildState(
        round(100 * (used.user + used.system)), status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    )


def _starting_thread() -> ThreadPoolExecutor:
    global _starter
    with _starter_lock:
        if _starter is None:
            from concurrent.futures import ThreadPoolExecutor

            starter = ThreadPoolExecutor(1, thread_name_prefix="dragoman-children")
            try:
                # Not with the first child: what is submitted stays queued where no thread can be started for it.
                starter.submit(int)
            except RuntimeError:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
            _starter = starter
        return _starter


def _forget_thread() -> None:
    """A fork has none of its parent's threads."""
    global _starter, _starter_lock
    _starter, _starter_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_thread)
