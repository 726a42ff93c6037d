"""What every answer, and every chunk of a stream, begins with; and the chunk that it ends with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.events import Usage
from dragoman.dialects.openai_stream import DONE, sse


class Envelope(msgspec.Struct, frozen=True):
    """The SDK drops a chunk in silence when one of these is missing from it."""

    id: str
    created: int
    model: str
    fingerprint: str

    def body(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        """The answer or chunk with these choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


class Ends:
    """The last chunks of all choices of one stream: the last of these holds the counts, if they are asked for.

    So it waits until they are known; the others are sent as they come.
    """

    def __init__(self, choices: int, *, counted: bool) -> None:
        self._open, self._counted = choices, counted
        self._last: dict[str, Any] | None = None

    def add(self, chunk: dict[str, Any]) -> Iterable[bytes]:
        """The chunk that ends a choice."""
        self._open -= 1
        if self._counted and not self._open:
            self._last = chunk
            return ()
        return (sse(chunk),)

    def end(self, counts: Sequence[Usage]) -> Iterable[bytes]:
        """What is left to send when all is done."""
        if self._last is not None:
            yield sse(self._last | {"usage": counted(counts)})
        yield DONE


def counted(counts: Iterable[Usage]) -> dict[str, int]:
    """The token counts of all prompts of an answer: three numbers, as the SDKs' types have them."""
    listed = list(counts)
    prompt = sum(one.prompt_tokens for one in listed)
    completion = sum(one.completion_tokens for one in listed)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
