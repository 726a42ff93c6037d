"""Child processes that never outlive the process that started them, even when they are stopped or busy.

Imports next to nothing: every child imports this first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a program that calls ``die_with_parent``; ``options`` as ``subprocess.Popen`` has them. Any thread may.

    The kernel takes the end of the *thread* that started a child for the end of its parent. So one that lives as long
    as the process starts it: the main thread, or one that is kept for this.
    """
    import subprocess

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, **options)

    if sys.platform != "linux" or threading.current_thread() is threading.main_thread():
        return start()
    return _starting_thread().submit(start).result()


def _starting_thread() -> ThreadPoolExecutor:
    global _starter
    with _starter_lock:
        if _starter is None:
            from concurrent.futures import ThreadPoolExecutor

            _starter = ThreadPoolExecutor(1, thread_name_prefix="dragoman-children")
        return _starter


def _forget_thread() -> None:
    """A fork has none of its parent's threads."""
    global _starter, _starter_lock
    _starter, _starter_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_thread)
