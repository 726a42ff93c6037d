"""Deadlines of generations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dragoman.core.errors import GenerationFailed, GenerationTimeout
from dragoman.core.events import FinishReason


class Deadline:
    """Calls ``cancel`` ``limit_s`` seconds after arrival, and turns the errors that follow into those of a timeout."""

    def __init__(self, arrived: float, limit_s: float | None, cancel: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._cancel = cancel
        self._passed = False
        self._timer: asyncio.TimerHandle | None = None
        if limit_s is not None:
            self._timer = asyncio.get_running_loop().call_at(arrived + limit_s, self._pass)

    def lift(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def has_passed(self) -> bool:
        return self._passed

    def reason(self, finish: FinishReason) -> FinishReason:
        return FinishReason.TIMEOUT if self._passed and finish is FinishReason.CANCELLED else finish

    def failure(self, message: str) -> GenerationFailed:
        return GenerationTimeout(self.words(message)) if self._passed else GenerationFailed(message)

    def words(self, message: str) -> str:
        return f"The generation did not finish within {self._limit_s:g} seconds." if self._passed else message

    def _pass(self) -> None:
        self._passed = True
        self._cancel()
