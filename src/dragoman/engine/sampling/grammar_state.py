"""Grammars in the engine: compiled concurrently with the steps, then one mask for each row that has one.

The server has already compiled a grammar once, so compiling is short; it still runs in a thread of low priority,
while other requests continue. The state of a sequence follows from its grammar and its generated tokens alone, so a
sequence that is preempted, replayed or forked continues unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import BadRequest
from dragoman.core.request import EngineRequest
from dragoman.core.vocabulary import Vocabulary
from dragoman.engine.arrays import Float32

if TYPE_CHECKING:
    from dragoman.grammar.matching import Matcher, Matching

CACHED = 64
"""Compiled grammars that are kept for the next request."""
_NICE = 10
"""Niceness of the thread that compiles, unless that of the process is higher already."""

log = logging.getLogger("dragoman.engine")


class GrammarState:
    """The state of one sequence in its grammar.

    ``end_ids``: all tokens that end texts. ``may_end``: they end this one. ``last_ids``: when nothing can follow in the
    grammar, one of these tokens is still generated; empty: the text is complete without.
    """

    __slots__ = ("_ends", "_is_complete", "_last_ids", "_matcher", "_may_end")

    def __init__(
        self, matcher: Matcher, end_ids: NDArray[np.intp], may_end: bool, last_ids: tuple[int, ...] = ()
    ) -> None:
        self._matcher = matcher
        self._ends = end_ids
        self._may_end = may_end
        self._last_ids = last_ids
        self._is_complete = False

    @property
    def error(self) -> str:
        """Why the sequence cannot continue; empty while it can."""
        return self._matcher.error

    @property
    def is_over(self) -> bool:
        """Whether the text is complete, so that no token can follow."""
        return self._is_complete and not self._last_ids

    def copy(self) -> GrammarState:
        """Return an independent copy of the state."""
        other = GrammarState(self._matcher.copy(), self._ends, self._may_end, self._last_ids)
        other._is_complete = self._is_complete
        return other

    def push(self, token_id: int) -> bool:
        """Advance by a generated token. Return whether the text is complete, so that no token can follow."""
        if self._is_complete:
            return True
        self._is_complete = self._matcher.push(token_id)
        return self.is_over

    def forced(self, most: int, *, spaced: bool) -> list[int]:
        """As ``Matcher.forced``: up to ``most`` tokens of the only text that can come next."""
        return [] if self._is_complete else self._matcher.forced(most, spaced=spaced)

    def allows(self, token_id: int) -> bool:
        """Return whether the token may come next. Costs as much as a mask."""
        if self._is_complete:
            return token_id in self._last_ids
        allowed = self._matcher.mask()
        return token_id < len(allowed) and bool(allowed[token_id])

    def mask(self, logits: Float32) -> None:
        """Set the tokens that the grammar does not allow to -inf in one row of logits.

        Where end tokens are ordinary ones (``ignore_eos``) they are forbidden too, as long as anything else is allowed;
        and where another step has forbidden all that is allowed, the text ends if it may.
        """
        if self._is_complete:
            _allow_only(logits, self._last_ids)
            return
        allowed = self._matcher.mask()
        ends = self._ends[allowed[self._ends]] if len(self._ends) else self._ends
        if len(ends) and not self._may_end:
            allowed[ends] = False
        # Logits beyond the vocabulary are padding of the model.
        logits[len(allowed) :] = -np.inf
        np.copyto(logits[: len(allowed)], -np.inf, where=~allowed)
        if len(ends) and logits.max() == -np.inf:
            logits[ends] = 0.0


class CompiledRequest(NamedTuple):
    """A request that can be scheduled, with one grammar state for each of its sequences where it has a grammar.

    ``cancelled`` are the cancelled sequences; ``error`` is the reason why the grammar cannot be used.
    """

    request: EngineRequest
    grammar_states: Sequence[GrammarState] = ()
    cancelled: Collection[int] = ()
    error: str = ""


class _Waiting(NamedTuple):
    request: EngineRequest
    grammar_states: Future[list[GrammarState]]
    cancelled: set[int]


class Grammars:
    """Compiles the grammars of requests, in the order in which they come."""

    def __init__(self) -> None:
        self._matching: Future[Matching] | None = None
        self._compiled: OrderedDict[str, Matcher] = OrderedDict()
        self._waiting: deque[_Waiting] = deque()
        self._executor: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return any(each.request.request_id == request_id for each in self._waiting)

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Set the vocabulary of all grammars. Without one, a request with a grammar is an error."""
        self._matching = self._thread().submit(self._learn, vocabulary)

    def compile(self, request: EngineRequest) -> Future[list[GrammarState]]:
        """Start to compile the grammar of a request. The result has one state for each sequence, or is BadRequest.

        Raises BadRequest without a vocabulary.
        """
        if self._matching is None:
            raise BadRequest("this engine knows no vocabulary to follow a grammar with")
        return self._thread().submit(self._new_states, self._matching, request)

    def prepare(self, request: EngineRequest) -> None:
        """Start to compile the grammar of a request; ``ready`` returns it. Raises BadRequest without a vocabulary."""
        self._waiting.append(_Waiting(request, self.compile(request), set()))

    def cancel(self, request_id: str, sequence: int | None = None) -> None:
        """Cancel a request, or one of its sequences; unknown ones are no error."""
        for waiting in [each for each in self._waiting if each.request.request_id == request_id]:
            count = len(waiting.request.seeds)
            waiting.cancelled.update(range(count) if sequence is None else (sequence,))
            if len(waiting.cancelled) == count:
                waiting.grammar_states.cancel()
                self._waiting.remove(waiting)

    def ready(self, patience_s: float = 0.0) -> list[CompiledRequest]:
        """Return the requests whose grammars are ready; waits up to ``patience_s`` for the first."""
        if self._waiting and patience_s:
            wait([self._waiting[0].grammar_states], patience_s)
        prepared = []
        while self._waiting and self._waiting[0].grammar_states.done():
            request, grammar_states, cancelled = self._waiting.popleft()
            try:
                prepared.append(CompiledRequest(request, grammar_states.result(), cancelled))
            except BadRequest as error:
                prepared.append(CompiledRequest(request, error=error.message))
            except Exception as error:  # the other requests go on
                log.exception("request %s: its grammar", request.request_id)
                prepared.append(
                    CompiledRequest(request, error=f"The grammar cannot be followed ({type(error).__name__}).")
                )
        return prepared

    def _thread(self) -> ThreadPoolExecutor:
        """Return the executor, whose single thread runs its tasks in order."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammars", initializer=_be_nice)
        return self._executor

    def _learn(self, vocabulary: Vocabulary) -> Matching:
        """Build the matching of a vocabulary, in the thread: it takes some tenths of a second, which would delay every
        step."""
        from dragoman.grammar.matching import Matching  # 6 MB, which would delay every start

        self._compiled.clear()
        return Matching(vocabulary)

    def _new_states(self, learned: Future[Matching], request: EngineRequest) -> list[GrammarState]:
        """Compile the grammar and advance over the tokens generated before, in the thread."""
        matching = learned.result()  # done before, in this thread
        assert request.grammar is not None
        compiled = self._compiled.pop(request.grammar, None) or matching.matcher(request.grammar)
        if compiled.error:
            raise BadRequest(compiled.error)
        self._compiled[request.grammar] = compiled
        if len(self._compiled) > CACHED:
            self._compiled.popitem(last=False)
        grammar_states = []
        for index in range(len(request.seeds)):
            last_ids = request.end_token_ids if request.eos_after_grammar else ()
            grammar_state = GrammarState(compiled.copy(), matching.end_ids, bool(request.end_token_ids), last_ids)
            for token_id in request.generated[index] if request.generated else ():
                grammar_state.push(token_id)
            grammar_states.append(grammar_state)
        return grammar_states


def _allow_only(logits: Float32, token_ids: tuple[int, ...]) -> None:
    """Set all other tokens to -inf in one row of logits; if another step has forbidden all of these, they are
    allowed."""
    ids = list(token_ids)
    kept = logits[ids]
    logits[:] = -np.inf
    logits[ids] = kept if kept.max() > -np.inf else 0.0


def _be_nice() -> None:
    """Lower the priority of this thread below those that compute, on Linux: elsewhere priorities are per process.

    Where the whole process has a lower one already (``nice``, systemd's ``Nice=``) it may not be raised.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # some containers allow no change
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))
