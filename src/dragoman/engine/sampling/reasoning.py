"""The step that bounds a reasoning block: its closing mark is forced where the model has not come to it by itself."""

from __future__ import annotations

import numpy as np

from dragoman.core.request import EngineRequest, ReasoningLimit
from dragoman.engine.arrays import Float32
from dragoman.engine.sequence import Processor, Sequence


def reasoning_budget(request: EngineRequest) -> Processor | None:
    """Once the block has as many tokens as it may, those of the closing mark have probability 1, one after the other.

    A mark that the model has begun is ended, not begun anew. A grammar that has no place for the mark comes first: the
    block then ends where the grammar lets it.
    """
    limit = request.reasoning
    if limit is None:
        return None
    block = _Block(limit, len(request.prompt))

    def process(logits: Float32, sequence: Sequence) -> None:
        token_id = block.forced(sequence.token_ids)
        if token_id is None or (sequence.follower is not None and not sequence.follower.allows(token_id)):
            return
        logits[:] = -np.inf
        logits[token_id] = 0.0

    return process


class _Block:
    """Where the text is: before its reasoning, inside or behind. Every token is looked at once.

    The block begins and ends where the text says so, as ``text.reasoning`` reads it, whichever tokens spell the marks.
    """

    def __init__(self, limit: ReasoningLimit, prompt_length: int) -> None:
        self._limit = limit
        self._seen = prompt_length
        self._is_inside = limit.begun
        self._is_over = False
        self._used = 0
        """Tokens behind the opening mark."""
        self._held = ""
        """The end of the text that may be part of a mark."""
        self._closing: tuple[int, ...] = ()
        """The newest tokens, as far as they are the first of the closing mark's own."""

    def forced(self, token_ids: list[int]) -> int | None:
        """The token that has to follow a list that only ever grows; None where any may."""
        while self._seen < len(token_ids) and not self._is_over:
            self._push(token_ids[self._seen])
            self._seen += 1
        if self._is_over or self._used < self._limit.tokens:
            return None
        return self._limit.closing_ids[len(self._closing)]

    def _push(self, token_id: int) -> None:
        limit = self._limit
        text = limit.texts.get(token_id)
        if self._is_inside:
            self._used += 1
            self._closing = (*self._closing, token_id)
            while self._closing != limit.closing_ids[: len(self._closing)]:
                self._closing = self._closing[1:]
            self._held = "" if text is None else self._held[-len(limit.closing) :] + text
        elif text is None:
            self._is_over = True
            return
        else:
            self._held = (self._held + text).lstrip()
            self._is_inside = self._held.startswith(limit.opening)
            self._is_over = not limit.opening.startswith(self._held[: len(limit.opening)])
            self._held = self._held.removeprefix(limit.opening)
        # The second is a guard: whatever a tokenizer makes of its tokens, the mark is forced once.
        if self._is_inside and (limit.closing in self._held or self._closing == limit.closing_ids):
            self._is_over = True
