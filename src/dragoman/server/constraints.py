"""A constraint becomes the grammar that the engine follows. The work is done in a process of its own."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from dragoman.core.constraint import Constraint
from dragoman.core.errors import BadRequest
from dragoman.grammar.process import GrammarProcess
from dragoman.server.model import ServedModel

CACHED = 256
CACHED_CHARS = 1 << 24
"""Most grammars that are kept, and most characters of all of them."""


class ConstraintReader:
    """Checks constraints for one model, one at a time, each once: prompts of a batch share it, and so do later ones."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._process: GrammarProcess | None = None
        self._known: OrderedDict[Constraint, str] = OrderedDict()
        self._chars = 0
        self._turn = asyncio.Lock()

    async def read(self, constraint: Constraint | None, param: str) -> str | None:
        """The grammar. Raises BadRequest and UnsupportedFeature, with the wire's name of the constraint."""
        if constraint is None:
            return None
        async with self._turn:
            grammar = self._known.get(constraint)
            if grammar is None:
                grammar = await asyncio.to_thread(self._checked, constraint, param)
                self._keep(constraint, grammar)
            self._known.move_to_end(constraint)
        return grammar

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.close()

    def _checked(self, constraint: Constraint, param: str) -> str:
        if self._process is None:
            self._process = GrammarProcess(self._model.vocabulary)
        try:
            return self._process.check(constraint)
        except BadRequest as error:
            raise type(error)(f"Invalid '{param}': {error.message}.", param=param) from None

    def _keep(self, constraint: Constraint, grammar: str) -> None:
        self._known[constraint] = grammar
        self._chars += len(grammar)
        while len(self._known) > CACHED or self._chars > CACHED_CHARS:
            _, dropped = self._known.popitem(last=False)
            self._chars -= len(dropped)
