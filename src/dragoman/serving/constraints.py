"""Constraints compiled to the grammars that the engine follows, in separate processes."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from dragoman.core.caller import current_caller
from dragoman.core.constraint import AfterReasoning, Constraint, Lark
from dragoman.core.errors import BadConstraint, BadRequest, UnsupportedConstraint, UnsupportedFeature
from dragoman.grammar.process import GrammarProcess
from dragoman.serving.model import ServedModel
from dragoman.serving.worker_pool import WorkerPools

CACHED = 256
CACHED_CHARS = 1 << 24
"""The most answers that are cached, and the most characters of all of them, with the constraints that they are to."""

CHARS_PER_RANK_SECOND = 200
"""Characters that count as one second of rank: a constraint longer by so many is checked after those of its caller
that arrive up to a second later."""

Answer = str | BadRequest


class _Trial(msgspec.Struct):
    """A constraint that is being checked. ``waiting``: the number of requests that wait for it."""

    task: asyncio.Task[Answer]
    waiting: int = 0


class ConstraintReader:
    """Checks constraints for one model, each once: prompts of a batch share the answer, and so do later requests. A
    refusal is cached too, so that a hostile constraint is tried only once; the loss of a process is not.

    Trials wait in the pool for grammars, small ones first, and end when no request waits for them any more.
    """

    def __init__(self, model: ServedModel, pools: WorkerPools) -> None:
        self._model, self._pool = model, pools.grammars
        self._processes: GrammarProcess | None = None
        self._known: OrderedDict[Constraint | AfterReasoning, tuple[Answer, int]] = OrderedDict()
        """With the characters of each constraint and its answer."""
        self._chars = 0
        self._making = threading.Lock()
        self._trials: dict[tuple[str, Constraint | AfterReasoning], _Trial] = {}

    async def read(self, constraint: Constraint | AfterReasoning | None, param: str) -> str | None:
        """Return the grammar. Raises BadConstraint and UnsupportedConstraint, with the wire's name of the constraint,
        or of the part of it that is refused; Overloaded where too many of the caller's wait, EngineUnavailable when the
        process for it was lost twice."""
        if constraint is None:
            return None
        known = self._known.get(constraint)
        if known is None:
            answer = await self._tried(constraint)
        else:
            answer, _ = known
            self._known.move_to_end(constraint)
        if isinstance(answer, BadRequest):
            error = UnsupportedConstraint if isinstance(answer, UnsupportedFeature) else BadConstraint
            param = answer.param or param
            raise error(f"Invalid '{param}': {answer.message}.", param=param, reason=answer.message)
        return answer

    def close(self) -> None:
        """End the processes, if there are any."""
        if self._processes is not None:
            self._processes.close()

    async def _tried(self, constraint: Constraint | AfterReasoning) -> Answer:
        # Callers do not share trials, so that no request waits in the queue of another caller.
        key = current_caller.get().share_key, constraint
        trial = self._trials.get(key)
        if trial is None:
            trial = self._trials[key] = _Trial(asyncio.create_task(self._try(constraint)))
        trial.waiting += 1
        try:
            return await asyncio.shield(trial.task)
        finally:
            trial.waiting -= 1
            if not trial.waiting:
                del self._trials[key]
                trial.task.cancel()

    async def _try(self, constraint: Constraint | AfterReasoning) -> Answer:
        left = threading.Event()
        size, parts = len(msgspec.json.encode(constraint)), _parts_size(constraint)
        cost_s = (size - parts) / CHARS_PER_RANK_SECOND  # parts are in the grammar, too
        answer = await self._pool.run(lambda: self._checked(constraint, left.is_set), cost_s=cost_s, cancel=left.set)
        if constraint not in self._known:
            self._keep(constraint, answer, size)
        return answer

    def _checked(self, constraint: Constraint | AfterReasoning, cancelled: Callable[[], bool]) -> Answer:
        with self._making:
            if self._processes is None:
                self._processes = GrammarProcess(self._model.vocabulary, count=self._pool.threads)
        try:
            return self._processes.check(constraint, cancelled)
        except BadRequest as error:
            return error

    def _keep(self, constraint: Constraint | AfterReasoning, answer: Answer, size: int) -> None:
        chars = size + len(answer if isinstance(answer, str) else answer.message)
        self._known[constraint] = answer, chars
        self._chars += chars
        while len(self._known) > 1 and (len(self._known) > CACHED or self._chars > CACHED_CHARS):
            _, (_, dropped) = self._known.popitem(last=False)
            self._chars -= dropped


def _parts_size(constraint: Constraint | AfterReasoning) -> int:
    """Return the characters of what an error alone needs."""
    whole = constraint.answer if isinstance(constraint, AfterReasoning) else constraint
    return len(msgspec.json.encode(whole.parts)) if isinstance(whole, Lark) else 0
