"""What steps of several sizes take on this machine, timed just after the start, so that the first drafts need no guess.

Where a model or a head drafts, the length of drafts follows from what steps cost (``step_costs``), and before any step
has run that is not known. While the engine has nothing to do, steps of a few sizes run here and are thrown away: they
write into blocks and slots that nobody owns, draw tokens that nobody gets, and are in no count of requests. A request
ends it; what was timed until then is kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import numpy as np

from dragoman import kernels
from dragoman.engine.arrays import Float32
from dragoman.engine.block_tables import BlockTables
from dragoman.engine.runner import Runner
from dragoman.engine.speculation.draft_model import DraftModel
from dragoman.models.batch import first_rows, rows_of_slot

_LOG = logging.getLogger("dragoman.engine")

MODEL_ROWS = (1, 8, 2, 16, 4)
DRAFT_ROWS = (1, 4, 16)
"""In the order in which they are timed: a model whose steps are long gets to the first ones alone."""
LONGEST_S = 1.0
"""Seconds after which no further step begins."""
ROUNDS = 8
"""Of each size the shortest of so many times counts: what else uses the machine only makes steps longer."""


class CostTable:
    """Times steps, one in each call of ``measure``.

    Attributes:
        is_over: nothing is left to be timed, or a request has ended it.
        read_bytes: what these steps have read, for those who count what requests made the runner read.
    """

    def __init__(self, runner: Runner, tables: BlockTables, drafts: DraftModel) -> None:
        self.is_over = False
        self.read_bytes = 0
        self._runner, self._tables, self._drafts = runner, tables, drafts
        self._spent_s = 0.0
        model = [(True, rows) for rows in MODEL_ROWS if self._has_room(rows)]
        draft = [(False, rows) for rows in DRAFT_ROWS if drafts.has_room(rows)]
        first = draft[:1] + model[:1]
        self._left = first + ROUNDS * (first + model[1:] + draft[1:]) if model and draft else []
        self._warming = len(first)
        self._seconds: dict[tuple[bool, int], float] = {}
        """The shortest time of the model's steps (True), and of those that draft, by their rows."""

    def measure(self, interrupt: int) -> None:
        """Run the next step. When the file descriptor ``interrupt`` becomes readable a step of the model ends without a
        result, and is the next one again."""
        if self._left and self._spent_s < LONGEST_S:
            started = time.perf_counter()
            try:
                self._run(*self._left[0], interrupt)
            except kernels.Interrupted:
                self._spent_s += time.perf_counter() - started
                return
            except Exception:  # requests are served without it too, and their steps show what steps cost
                _LOG.exception("what steps cost could not be measured at the start")
                self.is_over = True
                return
            self._note(self._left.pop(0), time.perf_counter() - started)
        if not self._left or self._spent_s >= LONGEST_S:
            self.end()

    def end(self) -> None:
        """Time no further steps, and tell those who draft what was found."""
        if self.is_over:
            return
        self.is_over = True
        model = plausible({rows: seconds for (is_model, rows), seconds in self._seconds.items() if is_model})
        draft = plausible({rows: seconds for (is_model, rows), seconds in self._seconds.items() if not is_model})
        if model and draft:
            self._drafts.gain.learn_costs(model, draft)
            _LOG.info("milliseconds of steps by their rows: %s; of those that draft: %s", _text(model), _text(draft))

    def _note(self, point: tuple[bool, int], seconds: float) -> None:
        self._spent_s += seconds
        if self._warming:
            self._warming -= 1
        else:
            self._seconds[point] = min(seconds, self._seconds.get(point, seconds))

    def _has_room(self, rows: int) -> bool:
        """Return whether the model can run a step of so many rows without taking anything from anyone."""
        runner, states = self._runner, self._tables.states
        if runner.encoder_context or (states is not None and states.spare is None):
            return False
        has_blocks = all(group.cache.spare is not None for group in self._tables.groups)
        return has_blocks and rows <= min(
            runner.max_tokens, runner.max_logit_rows, runner.block_size, runner.max_context
        )

    def _run(self, is_model: bool, rows: int, interrupt: int) -> None:
        """Compute the first tokens of a text, and draw one after each."""
        if not is_model:
            _draw(self._drafts.try_step(rows))
            return
        blocks = [group.cache.spare for group in self._tables.groups]
        batch = first_rows([block for block in blocks if block is not None], rows)
        if self._tables.states is not None and (slot := self._tables.states.spare) is not None:
            batch = batch._replace(state_slots=np.array([slot], np.int32), state_rows=rows_of_slot(rows, slot))
        before = self._runner.read_bytes
        try:
            _draw(self._runner.run(batch, None, interrupt))
        finally:
            self.read_bytes += self._runner.read_bytes - before


def plausible(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return seconds of steps by their rows without what something else has made longer: no step takes longer than one
    of more rows, or than steps of fewer rows that have as many together."""
    found = dict(seconds)
    for rows in found:
        found[rows] = min(each for others, each in seconds.items() if others >= rows)
    return {rows: min(found[fewer] * max(1.0, rows / fewer) for fewer in found if fewer <= rows) for rows in found}


def _draw(logits: Float32) -> None:
    """Draw a token from each row, as drafts and requests without truncation do."""
    count = len(logits)
    uniform = kernels.philox_uniform(np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64), 0)
    kernels.sample(logits, np.ones(count, np.float32), uniform, np.empty(count, np.int32), {})


def _text(seconds: dict[int, float]) -> str:
    return ", ".join(f"{rows}: {1e3 * each:.2f}" for rows, each in sorted(seconds.items()))
