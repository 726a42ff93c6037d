"""Core to wire: completions as the events that clients of the first generation read.

They take each ``data:`` line for a token if it has the key ``token``, for the whole answer otherwise, and read nothing
else: no ``[DONE]``, no comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.events import FinishReason, Generation, PromptReady, TextDelta, Token, Usage
from dragoman.dialects.friendli.completions import Choice, TokenReader, Wanted
from dragoman.dialects.openai_stream import finish_reason, sse, usage


class TokenSampled(msgspec.Struct):
    """One token."""

    event: str
    index: int
    text: str
    token: int


class EventStream:
    """The events of one prompt's choices. The last event has the choices of all: see ``complete``."""

    def __init__(self, first_index: int, n: int, wanted: Wanted) -> None:
        self._first_index, self._wanted = first_index, wanted
        self._readers = [TokenReader() for _ in range(n)]
        self._texts = [""] * n
        self._tokens: list[list[Token]] = [[] for _ in range(n)]
        self._finishes = [FinishReason.LENGTH] * n
        self._seeds: tuple[int, ...] = ()

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """Nothing to show."""
        self._seeds = event.seeds
        return ()

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """One event for each token. Raises GenerationFailed."""
        finish_reason(event.finish, event.message)
        i = event.sequence
        self._texts[i] += event.text
        self._tokens[i] += event.tokens
        self._finishes[i] = event.finish or self._finishes[i]
        sampled, _ = self._readers[i].read(event)
        for token, text, _ in sampled:
            yield sse(TokenSampled("token_sampled", self._first_index + i, text, token.token_id))

    def choices(self) -> Iterable[Choice]:
        """The finished choices."""
        for i, (text, tokens, finish) in enumerate(zip(self._texts, self._tokens, self._finishes, strict=True)):
            whole = Generation(index=i, text=text, tokens=tuple(tokens), finish=finish, seed=self._seeds[i])
            ids = [token.token_id for token in tokens]
            yield Choice(self._first_index + i, whole.seed, text, ids, finish_reason(finish), self._wanted.of(whole))


def complete(streams: Sequence[EventStream], counts: Sequence[Usage]) -> Iterable[bytes]:
    """The event that ends the stream."""
    choices: list[Any] = [choice for stream in streams for choice in stream.choices()]
    yield sse({"event": "complete", "choices": choices, "usage": usage(counts)})
