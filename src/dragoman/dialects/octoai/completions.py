"""Core to wire: completions, whole and streamed. Chunks have the shape of the whole answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.events import GenerationResult, PromptReady, TextDelta
from dragoman.core.request import FillPrompt, GenerationRequest
from dragoman.dialects.logprobs import shown_tokens
from dragoman.dialects.octoai.envelope import Ends, Envelope, counted
from dragoman.dialects.octoai.logprobs import Wanted
from dragoman.dialects.openai_stream import finish_reason, sse

KIND = "text_completion"


class Choice(msgspec.Struct):
    """A choice, whole or streamed."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class Shown(msgspec.Struct, frozen=True):
    """What a choice shows beside its text."""

    echo: bool = False
    wanted: Wanted = Wanted()

    def prompt(self, request: GenerationRequest, event: PromptReady) -> str:
        """The prompt before the text: what stands before the gap, where one is filled."""
        if not self.echo:
            return ""
        return request.prompt.prefix if isinstance(request.prompt, FillPrompt) else event.text


def completion(
    head: Envelope, requests: Sequence[GenerationRequest], results: Sequence[GenerationResult], shown: Shown
) -> dict[str, Any]:
    """A whole completion: the choices of all prompts, prompt by prompt. Raises GenerationFailed."""
    choices: list[Choice] = []
    for request, result in zip(requests, results, strict=True):
        before = shown.prompt(request, result.prompt)
        for generation in result.generations:
            tokens = shown_tokens(generation.tokens, len(generation.text), generation.finish)
            logprobs = shown.wanted.of(result.prompt, tokens, _shift(result.prompt, before))
            reason = finish_reason(generation.finish)
            choices.append(Choice(len(choices), before + generation.text, reason, logprobs))
    return head.body(KIND, choices) | {"usage": counted(result.usage for result in results)}


class CompletionStream:
    """The chunks of one prompt's choices."""

    def __init__(self, head: Envelope, request: GenerationRequest, first_index: int, shown: Shown, ends: Ends) -> None:
        self._head, self._request, self._shown, self._ends = head, request, shown, ends
        self._first_index = first_index
        self._shift = 0
        self._length = [0] * request.n

    def prompt(self, event: PromptReady) -> Iterable[bytes]:
        """The echoed prompt and its log-probabilities, once for each choice."""
        before = self._shown.prompt(self._request, event)
        self._shift = _shift(event, before)
        wanted = self._shown.wanted
        if before or wanted.prompt:
            logprobs = wanted.of(event, (), self._shift)
            for i in range(self._request.n):
                yield sse(self._chunk(Choice(self._first_index + i, before, None, logprobs)))

    def delta(self, event: TextDelta) -> Iterable[bytes]:
        """The chunk of the delta, unless it shows nothing. Raises GenerationFailed."""
        reason, wanted, i = finish_reason(event.finish, event.message), self._shown.wanted, event.sequence
        self._length[i] += len(event.text)
        tokens = shown_tokens(event.tokens, self._length[i], event.finish) if wanted.generated else []
        logprobs = wanted.of(None, tokens, self._shift) if tokens else None
        chunk = self._chunk(Choice(self._first_index + i, event.text, reason, logprobs))
        if reason is not None:
            yield from self._ends.add(chunk)
        elif event.text or tokens:
            yield sse(chunk)

    def _chunk(self, choice: Choice) -> dict[str, Any]:
        return self._head.body(KIND, [choice])


def _shift(prompt: PromptReady, before: str) -> int:
    """Where the offsets of generated tokens begin: behind the prompt, where it or its log-probabilities are shown."""
    return len(before) or len(prompt.text)
