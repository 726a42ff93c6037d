"""What a model in a program has running: requests, and processes of engines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from dragoman import LLM, SamplingParams

SEEDED = SamplingParams(max_tokens=12, seed=7)
ENDLESS = SamplingParams(max_tokens=2000, clamp_to_context=True, seed=1, ignore_eos=True)


def running(llm: LLM) -> int:
    """Requests that serving has."""
    admission: Any = llm._running.model._serving.admission  # type: ignore[attr-defined]
    return int(admission.waiting + admission.running)


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)


def engines() -> list[psutil.Process]:
    """The processes of engines that this process has started."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "dragoman.engine" in child.cmdline():
                found.append(child)
    return found


@contextlib.contextmanager
def engines_stopped() -> Iterator[None]:
    """Meanwhile no generation ends by itself, however long this process stands still."""
    stopped = engines()
    for each in stopped:
        each.suspend()
    try:
        yield
    finally:
        for each in stopped:
            each.resume()
