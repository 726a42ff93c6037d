"""How far a request is whose answer has not begun, for clients that ask to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar


class ProgressReport:
    """What is known now. Whoever works on the request says so; whoever answers it is called on every change.

    Attributes:
        now: a flat object of JSON; None where there is nothing to tell: not yet, or because the answer begins.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.now: Mapping[str, object] | None = None
        self._changed = changed
        self._is_over = False

    def loading(self, stage: str, share: float) -> None:
        """A model is loaded first; ``share`` of all that this takes is done."""
        self._set({"state": "loading", "stage": stage, "share": round(share, 2)})

    def queued(self, position: int) -> None:
        """It waits; 1 is the next."""
        self._set({"state": "queued", "position": position})

    def prefill(self, done: int, total: int) -> None:
        """So many tokens of its prompt are computed."""
        self._set({"state": "prefill", "done": done, "total": total})

    def end(self) -> None:
        """The answer begins."""
        self._is_over, self.now = True, None

    def _set(self, now: Mapping[str, object]) -> None:
        if not self._is_over:
            self.now = now
            self._changed()


current_progress: ContextVar[ProgressReport | None] = ContextVar("current_progress", default=None)
"""Of the request that the running task works for, where its client asked."""
