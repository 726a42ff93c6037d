"""A constraint becomes the grammar that the engine follows. The work is done in a process of its own."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from dragoman.core.constraint import Constraint, Reasoned
from dragoman.core.errors import BadConstraint, BadRequest, UnsupportedConstraint, UnsupportedFeature
from dragoman.grammar.process import GrammarProcess
from dragoman.server.model import ServedModel

CACHED = 256
CACHED_CHARS = 1 << 24
"""Most answers that are kept, and most characters of all of them."""

Answer = str | BadRequest


class ConstraintReader:
    """Checks constraints for one model, one at a time, each once: prompts of a batch share the answer, and so do later
    requests. A refusal is remembered too, so that a hostile constraint is tried only once."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._process: GrammarProcess | None = None
        self._known: OrderedDict[Constraint | Reasoned, Answer] = OrderedDict()
        self._chars = 0
        self._turn = asyncio.Lock()

    async def read(self, constraint: Constraint | Reasoned | None, param: str) -> str | None:
        """The grammar. Raises BadConstraint and UnsupportedConstraint, with the wire's name of the constraint."""
        if constraint is None:
            return None
        if constraint not in self._known:
            # Whoever has been answered before does not wait behind those who have not.
            async with self._turn:
                if constraint not in self._known:
                    self._keep(constraint, await asyncio.to_thread(self._checked, constraint))
        answer = self._known[constraint]
        self._known.move_to_end(constraint)
        if isinstance(answer, BadRequest):
            error = UnsupportedConstraint if isinstance(answer, UnsupportedFeature) else BadConstraint
            raise error(f"Invalid '{param}': {answer.message}.", param=param, reason=answer.message)
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.close()

    def _checked(self, constraint: Constraint | Reasoned) -> Answer:
        if self._process is None:
            self._process = GrammarProcess(self._model.vocabulary)
        try:
            return self._process.check(constraint)
        except BadRequest as error:
            return error

    def _keep(self, constraint: Constraint | Reasoned, answer: Answer) -> None:
        self._known[constraint] = answer
        self._chars += _size(answer)
        while len(self._known) > 1 and (len(self._known) > CACHED or self._chars > CACHED_CHARS):
            _, dropped = self._known.popitem(last=False)
            self._chars -= _size(dropped)


def _size(answer: Answer) -> int:
    return len(answer if isinstance(answer, str) else answer.message)
