"""Log-probabilities as OctoAI lists them: one list of objects, in completions too; the prompt's before the answer's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.events import PromptReady, Token
from dragoman.dialects.logprobs import chat_logprobs, completion_logprobs


class Wanted(msgspec.Struct, frozen=True):
    """Which are shown. ``arrays``: beside the list of objects, also OpenAI's parallel lists for completions."""

    prompt: bool = False
    generated: bool = False
    arrays: bool = True

    def of(self, prompt: PromptReady | None, tokens: Iterable[Token], shift: int) -> dict[str, Any] | None:
        """Those of the prompt, where it is given, and of generated tokens, ``shift`` characters into the text.

        None where there is nothing to show. The first token of a prompt has no entry.
        """
        listed = prompt.tokens[1:] if prompt is not None and self.prompt else ()
        made = tuple(tokens) if self.generated else ()
        if not (self.prompt or self.generated):
            return None
        shape: dict[str, Any] = {"content": _content((*listed, *made))}
        if self.arrays:
            for part, begin in ((listed, 0), (made, shift)):
                for name, values in completion_logprobs(part, begin).items():
                    shape.setdefault(name, []).extend(values)
        return shape


def _content(tokens: Sequence[Token]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = chat_logprobs(tokens)["content"]
    return content
