"""Core to wire: completions, whole and streamed to current clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.core.events import FinishReason, Generation, GenerationResult, PromptReady, TextDelta, Token, Usage
from dragoman.dialects.friendli.envelope import Envelope
from dragoman.dialects.logprobs import FLOOR, completion_logprobs, shown_tokens
from dragoman.dialects.openai_stream import DONE, finish_reason, sse, usage

KIND = "text_completion"


class Choice(msgspec.Struct):
    """A choice of a whole completion. The SDKs insist on all but the last."""

    index: int
    seed: int
    text: str
    tokens: list[int]
    finish_reason: str | None
    logprobs: dict[str, list[Any]] | list[float] | None = None


class ChunkChoice(msgspec.Struct, omit_defaults=True):
    """One token of a streamed completion, or the end of a choice, which has no ``token``."""

    index: int
    text: str
    token: int | msgspec.UnsetType = msgspec.UNSET
    finish_reason: str | msgspec.UnsetType | None = msgspec.UNSET
    logprobs: dict[str, list[Any]] | list[float] | msgspec.UnsetType | None = msgspec.UNSET


class Wanted(msgspec.Struct, frozen=True):
    """Which log-probabilities an answer shows: ``rich`` with alternatives and offsets, ``flat`` one number a token."""

    rich: bool = False
    flat: bool = False

    def of(self, generation: Generation) -> dict[str, list[Any]] | list[float] | None:
        """Those of a whole choice: of the tokens that its text shows, or of all."""
        if self.rich:
            return completion_logprobs(shown_tokens(generation.tokens, len(generation.text), generation.finish), 0)
        return [_finite(token) for token in generation.tokens] if self.flat else None

    def of_one(self, token: Token, *, shown: bool) -> dict[str, list[Any]] | list[float] | None:
        """Those of one event of a stream."""
        if self.rich:
            return completion_logprobs([token], 0) if shown else None
        return [_finite(token)] if self.flat else None


def completion(head: Envelope, results: Sequence[GenerationResult], wanted: Wanted) -> dict[str, Any]:
    """A whole completion: the choices of all prompts, prompt by prompt. Raises GenerationFailed."""
    choices: list[Choice] = []
    for result in results:
        for generation in result.generations:
            reason = finish_reason(generation.finish)
            tokens = [token.token_id for token in generation.tokens]
            logprobs = wanted.of(generation)
            choices.append(Choice(len(choices), generation.seed, generation.text, tokens, reason, logprobs))
    return head.body(KIND, choices, usage=usage(result.usage for result in results))


class Sampled(NamedTuple):
    """A sampled token with the text that its event shows. ``shown``: it is part of the text, and was not cut off."""

    token: Token
    text: str
    shown: bool


class TokenReader:
    """One sequence's deltas, token by token. A token that ends the text without being part of it is left out.

    Text that comes before its token, because the rest of that token is held back, waits for it.
    """

    def __init__(self) -> None:
        self._length = 0
        self._waiting = ""

    def read(self, delta: TextDelta) -> tuple[list[Sampled], str]:
        """The tokens of a delta, and at the end the rest of the text, which belongs to none of them."""
        self._length += len(delta.text)
        text, tokens = self._waiting + delta.text, list(delta.tokens)
        start = self._length - len(text)
        ending = delta.finish in (FinishReason.EOS, FinishReason.STOP_TOKEN)
        if ending and tokens and tokens[-1].text_offset >= self._length:
            tokens.pop()
        if not tokens:
            self._waiting = "" if delta.finish else text
            return [], text if delta.finish else ""
        self._waiting = ""
        # A token's text reaches to where the next one's begins.
        places = [min(max(token.text_offset - start, 0), len(text)) for token in tokens[1:]]
        cuts = zip([0, *places], [*places, len(text)], strict=True)
        shown = {id(token) for token in shown_tokens(tokens, self._length, delta.finish)}
        sampled = [
            Sampled(token, text[begin:stop], id(token) in shown)
            for token, (begin, stop) in zip(tokens, cuts, strict=True)
        ]
        return sampled, ""


class CompletionStream:
    """The chunks of one prompt's choices: one for each token, and one for each end."""

    def __init__(self, head: Envelope, first_index: int, n: int, wanted: Wanted) -> None:
        self._head, self._first_index, self._wanted = head, first_index, wanted
        self._readers = [TokenReader() for _ in range(n)]

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """Nothing: prompts are not echoed."""
        return ()

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """One chunk for each token of the delta, and the last one of the choice. Raises GenerationFailed."""
        reason = finish_reason(event.finish, event.message)
        index = self._first_index + event.sequence
        sampled, rest = self._readers[event.sequence].read(event)
        for token, text, shown in sampled:
            logprobs = self._wanted.of_one(token, shown=shown)
            yield self._chunk(ChunkChoice(index, text, token.token_id, None, logprobs))
        if reason is not None:
            yield self._chunk(ChunkChoice(index, rest, finish_reason=reason, logprobs=None))

    def _chunk(self, choice: ChunkChoice) -> bytes:
        return sse(self._head.body(KIND, [choice]))


def stream_end(head: Envelope, kind: str, counts: Sequence[Usage]) -> Iterable[bytes]:
    """The counts, where they were asked for, and the mark of the end."""
    if head.counted:
        yield sse(head.body(kind, [], usage=usage(counts)))
    yield DONE


def _finite(token: Token) -> float:
    """JSON has no infinity, and this client's lists no null."""
    return FLOOR if token.logprob is None else max(token.logprob, FLOOR)
