"""Processes that test grammars, as the server uses them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.core.constraint import AfterReasoning, Constraint
from dragoman.core.errors import BadRequest, EngineUnavailable, UnsupportedFeature
from dragoman.core.vocabulary import Vocabulary
from dragoman.text.sandbox import Cancelled, ProcessFailure, ProcessLost, SandboxedProcesses

_WORKER = Path(__file__).with_name("worker.py")
_MARGIN_S = 5.0
"""Margin for the setup (a vocabulary of 300,000 tokens takes a second), and for a busy machine."""


class GrammarLimits(NamedTuple):
    """Limits of testing one grammar: processor seconds (ten times as long by the clock, where others want the
    processor), and bytes in addition to those of the process itself."""

    time_s: float = 0.8
    memory_bytes: int = 1 << 29


class GrammarProcess:
    """Checks constraints for one vocabulary, one at a time in each of ``count`` processes. Methods block, and may be
    called from any thread."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits | None = None, count: int = 1) -> None:
        self._limits = limits or GrammarLimits()
        setup = {
            "time_s": self._limits.time_s,
            "memory_bytes": self._limits.memory_bytes,
            "vocabulary": {
                "tokens": [token.decode("latin-1") for token in vocabulary.tokens],
                "special_ids": vocabulary.special_ids,
                "end_ids": vocabulary.end_ids,
            },
        }
        # The process enforces the limits itself; if it fails to, it is ended.
        self._processes = SandboxedProcesses(
            _WORKER, lambda: setup, time_s=2 * self._limits.time_s + _MARGIN_S, answer_bytes=1 << 26, count=count
        )

    def check(self, constraint: Constraint | AfterReasoning, cancelled: Cancelled | None = None) -> str:
        """Return the grammar that enforces the constraint. Raises BadRequest and UnsupportedFeature with the reason and
        the place of the part that is refused, and EngineUnavailable when the process was lost twice.

        ``cancelled``: once it is true the result is not needed; what is raised then means nothing.
        """
        try:
            return str(self._processes.ask({"constraint": msgspec.to_builtins(constraint)}, cancelled)["grammar"])
        except ProcessLost as loss:
            raise EngineUnavailable(f"The grammar could not be checked: {loss.reason}. Try again.") from None
        except ProcessFailure as failure:
            match failure.kind:
                case "bad":
                    raise BadRequest(failure.message, param=failure.place) from None
                case "unsupported":
                    raise UnsupportedFeature(failure.message, param=failure.place) from None
                case "time":
                    raise UnsupportedFeature(f"it is too complex: {failure.message} to compile") from None
                case _:
                    raise UnsupportedFeature(f"it is too complex: {failure.message}") from None

    def close(self) -> None:
        """End the process; a later ``check`` starts another."""
        self._processes.close()
